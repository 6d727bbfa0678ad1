"""The seconds that a draft takes: the busiest line, cable or processor, and the latency of the way up its trees and down.

Knows what a value costs on each; `loads.py` counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ciuic_p2p.core.codec_choice import SPEEDS, CodecSpeed
from ciuic_p2p.core.parts import PART_S, PARTS_PER_SPAN
from ciuic_p2p.core.planning.draft import Draft
from ciuic_p2p.core.planning.loads import Loads, count_loads
from ciuic_p2p.core.planning.network import Ground

SEALING_GBPS = 1.5
"""GB a second that a pair of lanes seals or opens: AES-256-GCM and the sockets, on one core."""

OTHER_SPEED = CodecSpeed(1.5, 3.0)
"""Of codecs that `auto` does not choose among: onebit 2.4 in, topk 1.1."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a draft takes, in seconds."""

    transfer_s: float
    """Of the busiest line or cable: no rate planned by it asks for more than there is."""
    compute_s: float
    """Of the busiest processor, one core: encoding, decoding, sealing."""
    latency_s: float
    bound_by: str
    """What it is that takes longest, for people."""
    values_per_s: float
    """What the slowest pair moves one way."""

    @property
    def seconds(self) -> float:
        return max(self.transfer_s, self.compute_s) + self.latency_s


def forecast(
    draft: Draft, ground: Ground, count: int, encoded_bytes: float, codec: str, name_of: Callable[[int], str]
) -> Forecast:
    """encoded_bytes: of the whole tensor of `count` values; name_of: peers by number, for people."""
    loads = count_loads(draft, ground, count)
    megabits = encoded_bytes * 8e-6 / max(count, 1)
    busiest = _busiest(loads, ground, megabits, name_of)
    compute_s = max(_compute_s(loads, peer, codec, encoded_bytes / max(count, 1)) for peer in range(len(ground.peers)))
    transfer_s, what = max(busiest, key=lambda taken: taken[0])
    hops = 2 * loads.depth - 1
    waiting_s = hops * min(PART_S, transfer_s / PARTS_PER_SPAN) if len(ground.peers) > 1 else 0.0
    return Forecast(
        transfer_s=transfer_s,
        compute_s=compute_s,
        latency_s=loads.latency_ms / 1000 + waiting_s,
        bound_by=what if transfer_s >= compute_s else "the processors",
        values_per_s=_slowest_flow(loads, ground, megabits),
    )


def _busiest(loads: Loads, ground: Ground, megabits: float, name_of: Callable[[int], str]) -> list[tuple[float, str]]:
    """The busiest of each kind: (seconds, what)."""
    peer = max(range(len(ground.peers)), key=lambda p: max(loads.up[p], loads.down[p]) / ground.lines_mbps[p])
    found = [(max(loads.up[peer], loads.down[peer]) * megabits / ground.lines_mbps[peer], f"the line of {name_of(peer)}")]
    for (source, target), mbps in ground.cables_mbps.items():
        seconds = loads.cables.get((source, target), 0) * megabits / mbps
        found.append((seconds, f"the cable from {ground.regions[source]} to {ground.regions[target]}"))
    for (one, other), mbps in ground.pairs_mbps.items():
        seconds = loads.pairs.get((one, other), 0) * megabits / mbps
        found.append((seconds, f"a pair of {ground.regions[one]} and {ground.regions[other]}"))
    return found


def _compute_s(loads: Loads, peer: int, codec: str, bytes_per_value: float) -> float:
    speed = SPEEDS.get(codec, OTHER_SPEED)
    coding_s = 4e-9 * (loads.encoded[peer] / speed.encode_gbps + loads.decoded[peer] / speed.decode_gbps)
    return coding_s + max(loads.up[peer], loads.down[peer]) * bytes_per_value / SEALING_GBPS / 1e9


def _slowest_flow(loads: Loads, ground: Ground, megabits: float) -> float:
    """Values a second: the share that one of a line's, or a cable's, flows has of it."""
    lines = [mbps / max(flows, 1) for mbps, flows in zip(ground.lines_mbps, loads.flows, strict=True)]
    cables = [mbps / loads.cable_flows[pair] for pair, mbps in ground.cables_mbps.items() if loads.cable_flows.get(pair)]
    return min(lines + cables) / megabits if megabits > 0 else 0.0
