"""The paths that there are between two peers, how they are written, and which of them is the quickest for a transfer.

Pure; knows neither sockets nor a clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ciuic_p2p.terms import PeerId

DIRECT, RELAY = "direct", "relay"
_VIA = "via "

LEG_ROUND_TRIPS = 1.0
"""Of a transfer over a path that is open: what is asked for goes one way and comes the other."""

FORWARDING_HANDICAP = 2.0
"""A forwarder's line carries every byte twice, beside as many of its own in a round: its legs are counted as so much slower."""

SWITCH_GAIN = 2.0
"""Another path than the present one must be so much quicker. What a pair gets of a cable that many share changes by a third or
more with who else sends: at 1.25 lanes moved to forwarders behind the same cable, again and again."""

LEAST_GAIN_S = 0.1
"""And so much in seconds: for less no path is changed."""

RELAY_GUESS_MBPS = 1.0
"""A relayed stream that was not timed; libp2p's circuits carry 128 KiB each (circuit relay v2, default limits)."""


def via(forwarder: PeerId) -> str:
    """How a path through a third peer is written among this project's peers; people see the name instead of the id."""
    return _VIA + forwarder


def forwarder_of(path: str) -> PeerId | None:
    """None for a path without a third peer."""
    return PeerId(path.removeprefix(_VIA)) if path.startswith(_VIA) else None


def rank(path: str) -> int:
    """A session moves to a path of a lower rank when there is one: direct, then via a third peer, then relayed."""
    return {DIRECT: 0, RELAY: 2}.get(path, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One measured direction between two peers, without a third. 0 Mbit/s: not measured."""

    rtt_ms: float
    goodput_mbps: float
    is_relayed: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.rtt_ms < math.inf and 0 <= self.goodput_mbps < math.inf):  # false for a NaN
            raise ValueError("a leg of an impossible time or rate")


Legs = Mapping[tuple[PeerId, PeerId], Leg]
"""(from, to) → leg; what is not in it has no connection of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way from a peer to another. predicted_s: of the transfer that was asked for; infinite where nothing says so."""

    name: str
    """`DIRECT`, `RELAY`, or `via(...)`."""
    predicted_s: float
    round_trip_ms: float
    goodput_mbps: float
    """Of the bottleneck; 0: not measured."""


def both_ways(legs: Legs) -> dict[tuple[PeerId, PeerId], Leg]:
    """Each pair by its slower direction, for a choice that holds for both."""
    return {(source, target): _slower(leg, legs.get((target, source), leg)) for (source, target), leg in legs.items()}


def _slower(one: Leg, other: Leg) -> Leg:
    measured = [leg.goodput_mbps for leg in (one, other) if leg.goodput_mbps > 0]
    return Leg(
        rtt_ms=max(one.rtt_ms, other.rtt_ms),
        goodput_mbps=min(measured, default=0.0),
        is_relayed=one.is_relayed or other.is_relayed,
    )


def predict_s(round_trip_ms: float, goodput_mbps: float, size_bytes: float) -> float:
    """Seconds that a transfer takes; infinite for bytes over a path that carries nothing."""
    if goodput_mbps <= 0:
        return math.inf if size_bytes > 0 else LEG_ROUND_TRIPS * round_trip_ms / 1000
    return LEG_ROUND_TRIPS * round_trip_ms / 1000 + size_bytes * 8e-6 / goodput_mbps


def paths_between(source: PeerId, target: PeerId, size_bytes: float, legs: Legs) -> tuple[Path, ...]:
    """All of them, the quickest first; of those that take equally long, the one of the lower rank, then of the lower id."""
    found = [*_own(source, target, size_bytes, legs), *_forwarded(source, target, size_bytes, legs)]
    return tuple(sorted(found, key=lambda path: (path.predicted_s, rank(path.name), path.name)))


def select_path(source: PeerId, target: PeerId, size_bytes: float, legs: Legs, current: str = "") -> Path | None:
    """The path for a transfer of `size_bytes`; None when there is none.

    current: the path that is in use, which stays unless another is quicker by SWITCH_GAIN and LEAST_GAIN_S. A direct path that
    nobody has timed is taken: what is sent over it times it.
    """
    paths = paths_between(source, target, size_bytes, legs)
    if not paths:
        return None
    known = {path.name: path for path in paths}
    direct = known.get(DIRECT)
    if direct is not None and direct.goodput_mbps == 0:
        return direct
    quickest = paths[0]
    present = known.get(current, direct or quickest)
    gains = present.predicted_s - quickest.predicted_s
    if present.predicted_s == quickest.predicted_s or gains < LEAST_GAIN_S:
        return present
    return quickest if present.predicted_s >= SWITCH_GAIN * quickest.predicted_s else present


def _own(source: PeerId, target: PeerId, size_bytes: float, legs: Legs) -> Iterator[Path]:
    leg = legs.get((source, target))
    if leg is None:
        return
    goodput_mbps = leg.goodput_mbps or (RELAY_GUESS_MBPS if leg.is_relayed else 0.0)
    yield Path(
        name=RELAY if leg.is_relayed else DIRECT,
        predicted_s=predict_s(leg.rtt_ms, goodput_mbps, size_bytes),
        round_trip_ms=leg.rtt_ms,
        goodput_mbps=leg.goodput_mbps,
    )


def _forwarded(source: PeerId, target: PeerId, size_bytes: float, legs: Legs) -> Iterator[Path]:
    """Through each peer that both have a direct connection with."""
    for (first, forwarder), inward in legs.items():
        outward = legs.get((forwarder, target))
        if first != source or forwarder in (source, target) or outward is None or inward.is_relayed or outward.is_relayed:
            continue
        goodput_mbps = min(inward.goodput_mbps, outward.goodput_mbps)
        round_trip_ms = inward.rtt_ms + outward.rtt_ms
        yield Path(
            name=via(forwarder),
            predicted_s=predict_s(round_trip_ms, goodput_mbps / FORWARDING_HANDICAP, size_bytes),
            round_trip_ms=round_trip_ms,
            goodput_mbps=goodput_mbps,
        )
