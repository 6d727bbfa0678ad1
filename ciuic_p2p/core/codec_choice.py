"""Which codec the tensors of a run travel under, and why: asked for by the user, the source's table, or the quickest.

Pure and table-driven: the same situation gives the same choice on every peer. Knows codecs by name, size and speed only.
Round trips are no input, for they are the same under every codec. Why `auto` is not `source`: docs/decisions/0008.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ciuic_p2p.core.topology import LinkSurvey

AUTO = "auto"
SOURCE = "source"
POLICIES = (AUTO, SOURCE)
"""What a run may ask for beside a codec's name."""

SLOW_MBPS = 100.0
LARGE_BYTES = 100_000_000
ZSTD_LEVEL = 3
"""The figures of the source's table."""

HYSTERESIS = 1.25
"""What is in use stays until something else is better by this factor, so that noise of ±10 % cannot bring it back and forth."""

DEFAULT_CODEC = "int4"
"""At the same number of inner steps it loses ≤ 0.15 % of validation loss, and 1-bit loses 8 %: raise inner_steps before going
below 4 bits. In the project's tiny models; see the decision."""


@dataclass(frozen=True, slots=True)
class CodecSpeed:
    """GB of float32 in a second, on one core."""

    encode_gbps: float
    decode_gbps: float

    def seconds(self, count: int) -> float:
        """Once in and once out."""
        return 4e-9 * count * (1 / self.encode_gbps + 1 / self.decode_gbps)


SPEEDS: Mapping[str, CodecSpeed] = {
    "int4": CodecSpeed(5.2, 8.8),
    "int8": CodecSpeed(5.4, 10.5),
    "float16": CodecSpeed(13.9, 11.3),
    "float32": CodecSpeed(15.3, 11.2),
}
"""What `auto` chooses among, preferred first. `python -m benchmarks.codecs` in one run on one machine; twice as fast
codecs would move the borders to links twice as fast."""

PACKING_PAYS_BELOW_MBPS = 120.0
"""Packing is tried where the least gain it is kept for, 5 %, saves more time than zstd 3 takes: 0.05 × 8 / (1/0.4 + 1/1.2)
Gbit/s, with 0.4 GB/s in and 1.2 out. A sample of each payload decides then (tensors/lossless.py)."""


class Stage(enum.Enum):
    """What travels."""

    PSEUDO_GRADIENTS = enum.auto()
    PARAMETERS = enum.auto()
    """And all other state."""
    CHECKPOINT = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecChoice:
    codec: str
    lossless_level: int
    """Of zstd, for payloads of which a sample gains; 0: payloads travel as the codec made them."""
    reason: str
    """With the figure that decided, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    policy: str
    """One of POLICIES, or the name of the codec that the user wants."""
    stage: Stage
    count: int
    """Values of the whole tensor."""
    encoded_bytes: Mapping[str, int]
    """Of the whole tensor under each codec: the mean of what it takes on its way there and back."""
    links: LinkSurvey
    """Between those who send it to each other."""
    crosses_regions: bool
    previous: CodecChoice | None = None


def choose_codec(situation: Situation) -> CodecChoice:
    """The same for the same situation."""
    if situation.policy == SOURCE:
        return _choose_by_table(situation)
    if situation.policy != AUTO:
        return CodecChoice(codec=situation.policy, lossless_level=0, reason=f"{situation.policy}: asked for by the trainer")
    if situation.stage is Stage.PSEUDO_GRADIENTS:
        return _choose_quickest(situation)
    return _choose_exact(situation)


# -- the source's table ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rule:
    stage: Stage
    because: Callable[[Situation], str]
    """The figure that makes it apply; empty when it does not."""
    codec: str
    lossless_level: int = 0


def _over_a_slow_link(situation: Situation) -> str:
    links, previous = situation.links, situation.previous
    if not links.slowest_mbps:
        return ""
    if links.slowest_mbps < SLOW_MBPS:
        return f"{_describe(links)} is below {SLOW_MBPS:.0f}"
    border_mbps = SLOW_MBPS * HYSTERESIS
    if previous is not None and previous.codec == "onebit" and links.slowest_mbps < border_mbps:
        return f"{_describe(links)} is not yet {border_mbps:.0f}"
    return ""


def _across_continents(situation: Situation) -> str:
    return "the contributors are in several regions" if situation.crosses_regions else ""


def _of_a_large_tensor(situation: Situation) -> str:
    size_bytes = 4 * situation.count
    return f"{size_bytes / 1e6:.0f} MB are over {LARGE_BYTES / 1e6:.0f}" if size_bytes > LARGE_BYTES else ""


SOURCE_TABLE = (
    _Rule(Stage.PSEUDO_GRADIENTS, _over_a_slow_link, "onebit"),
    _Rule(Stage.PARAMETERS, _across_continents, "bfloat16"),
    _Rule(Stage.CHECKPOINT, _of_a_large_tensor, "float32", ZSTD_LEVEL),
)
"""The source documents on adaptive compression: "gradients 1-bit with error feedback below 100 Mbit/s; parameters bf16 across
continents; checkpoints over 100 MB zstd level 3". They ask for no compression anywhere else."""


def _choose_by_table(situation: Situation) -> CodecChoice:
    for rule in SOURCE_TABLE:
        because = rule.because(situation) if rule.stage is situation.stage else ""
        if because:
            return CodecChoice(
                codec=rule.codec, lossless_level=rule.lossless_level, reason=f"{SOURCE}: {because}, so {rule.codec}"
            )
    figure = f"at {_describe(situation.links)} " if situation.links.slowest_mbps else ""
    return CodecChoice(codec="float32", lossless_level=0, reason=f"{SOURCE}: {figure}no rule asks for compression")


# -- auto --------------------------------------------------------------------------------------------------------------


def _choose_quickest(situation: Situation) -> CodecChoice:
    """4 bits, unless every link is so fast that encoding takes longer than it saves. Never below 4 bits."""
    links = situation.links
    level = _packing_level(situation)
    if not links.slowest_mbps or not links.is_complete:
        reason = f"{AUTO}: {DEFAULT_CODEC} until all links are measured"
        return CodecChoice(codec=DEFAULT_CODEC, lossless_level=level, reason=reason)
    seconds = {codec: _predict_seconds(codec, situation) for codec in SPEEDS}
    previous = situation.previous
    held = previous.codec if previous is not None and previous.codec in seconds else DEFAULT_CODEC
    quickest = min(seconds, key=seconds.__getitem__)
    chosen = quickest if seconds[held] > HYSTERESIS * seconds[quickest] else held
    return CodecChoice(codec=chosen, lossless_level=level, reason=f"{AUTO}: {_compare(chosen, seconds, links)}")


def _predict_seconds(codec: str, situation: Situation) -> float:
    """The whole tensor encoded, sent over the slowest link and decoded, one after the other."""
    transfer_s = situation.encoded_bytes[codec] * 8e-6 / situation.links.slowest_mbps
    return transfer_s + SPEEDS[codec].seconds(situation.count)


def _compare(chosen: str, seconds: Mapping[str, float], links: LinkSurvey) -> str:
    other = min((codec for codec in seconds if codec != chosen), key=seconds.__getitem__)
    if seconds[chosen] <= seconds[other]:
        gain = seconds[other] / max(seconds[chosen], 1e-12)
        return f"at {_describe(links)} {chosen} is {gain:.2f} times as fast as {other}"
    gain = seconds[chosen] / max(seconds[other], 1e-12)
    return f"at {_describe(links)} {other} is {gain:.2f} times as fast as {chosen}, which stays up to {HYSTERESIS}"


def _choose_exact(situation: Situation) -> CodecChoice:
    """Replicas are bit-identical, so state travels without loss; checkpoints are packed where the source packs them."""
    if situation.stage is Stage.CHECKPOINT:
        because = _of_a_large_tensor(situation)
        level = ZSTD_LEVEL if because else 0
    else:
        because, level = "", _packing_level(situation)
    reason = f"{AUTO}: {because or 'state stays exact'}, so float32"
    return CodecChoice(codec="float32", lossless_level=level, reason=reason)


def _packing_level(situation: Situation) -> int:
    packs = situation.previous is not None and situation.previous.lossless_level > 0
    border_mbps = PACKING_PAYS_BELOW_MBPS * (HYSTERESIS if packs else 1.0)
    return ZSTD_LEVEL if 0 < situation.links.slowest_mbps < border_mbps else 0


def _describe(links: LinkSurvey) -> str:
    """Rounded down, so that what is below a border reads so."""
    return f"{math.floor(links.slowest_mbps * 10) / 10:.1f}".removesuffix(".0") + f" Mbit/s {links.slowest_way}"
