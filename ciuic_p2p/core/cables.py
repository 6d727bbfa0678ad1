"""What lies between regions: how much of it this peer may use, found like a line's capacity but from what no line explains.

Many peers share one cable between two regions. Each finds its own share by the queue that is neither before its own line nor
before the receivers' (core/pacing.py), as congestion control does; what the peers of one region found together is the
cable's capacity, and each then takes of it in proportion to what the round's plan has it send. Where nothing of the kind was
seen there is no limit. Pure: no clock, no sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ciuic_p2p.core.messages import Plan, Way
from ciuic_p2p.core.pacing import FULL_MS, GUESS_SHARE, LEAST_MBPS, MOST_MBPS, Capacity, FlowWindow, most, total_sent_mbps
from ciuic_p2p.core.trees import trees_of
from ciuic_p2p.terms import UNKNOWN_REGION, PeerId

SURE_WINDOWS = 3
"""Congested ones in a row before a cable is believed in at all: fewer may be a busy processor's doing."""
LEAST_SHARE = 0.01
"""Of the own line: less is what a round's end or a slow pace leaves, and no cable."""
LINE_SHARE = 0.8
"""Of the own line: where more of it is used, a queue that looks like a cable's is likely the line's."""


@dataclass(frozen=True, slots=True)
class CrossingFlow:
    """What happened to one peer of another region in one window."""

    window: FlowWindow
    queued_ms: float
    """Not before this peer's line, nor before the other's."""


class Cables:
    """Of one peer to each other region."""

    def __init__(self) -> None:
        self._shares: dict[str, Capacity] = {}
        self._congested: dict[str, int] = {}

    def judge(self, region: str, flows: Iterable[CrossingFlow], line_mbps: float, used_mbps: float) -> None:
        """One window in which all these crossed to `region`. line_mbps: this peer's own line up; used_mbps: of it, by all."""
        crossed = list(flows)
        moved_mbps = total_sent_mbps([flow.window for flow in crossed])
        queued_ms = min(flow.queued_ms for flow in crossed)
        loses = most([flow.window.loses for flow in crossed])
        share = self._shares.get(region)
        if share is not None:
            share.add(moved_mbps, queued_ms, loses=loses)
            if share.mbps > line_mbps:  # whatever filled the cable is gone: the line is the limit again
                del self._shares[region]
            return
        is_full = (
            queued_ms > FULL_MS
            and any(flow.window.is_busy for flow in crossed)
            and moved_mbps > LEAST_SHARE * line_mbps
            and used_mbps < LINE_SHARE * line_mbps
        )
        congested = self._congested.get(region, 0) + 1 if is_full else 0
        self._congested[region] = congested
        if congested >= SURE_WINDOWS:
            self._congested[region] = 0
            self._shares[region] = Capacity(GUESS_SHARE * moved_mbps)

    def settle(self, region: str, crossing: Mapping[PeerId, int], others_mbps: Mapping[PeerId, float], me: PeerId) -> None:
        """All who cross take their part of what they found together, once each of them has found something.

        crossing: what each peer of this region sends to `region` in the round. others_mbps: the shares that they told.
        """
        share = self._shares.get(region)
        if share is None or crossing.get(me, 0) == 0 or any(peer not in others_mbps for peer in crossing if peer != me):
            return
        found_mbps = share.mbps + sum(mbps for peer, mbps in others_mbps.items() if peer in crossing and peer != me)
        share.settle_at(found_mbps * crossing[me] / sum(crossing.values()))

    def ways(self) -> tuple[Way, ...]:
        """What others are told."""
        return tuple(Way(region=region, mbps=share.mbps) for region, share in sorted(self._shares.items()))

    def limits(self, sent: Mapping[PeerId, float], region_of: Callable[[PeerId], str]) -> dict[PeerId, float]:
        """Mbit/s to each peer behind a cable: this peer's share of it, divided in proportion to what each is sent."""
        to_region: dict[str, float] = {}
        for peer, amount in sent.items():
            to_region[region_of(peer)] = to_region.get(region_of(peer), 0.0) + amount
        return {
            peer: max(self._shares[region].mbps * amount / to_region[region], LEAST_MBPS)
            for peer, amount in sent.items()
            if (region := region_of(peer)) in self._shares and amount > 0
        }


Crossings = Mapping[str, Mapping[PeerId, int]]
"""Region → peer of this region → values that it sends there."""


def crossings_of(plan: Plan, here: str, region_of: Callable[[PeerId], str]) -> Crossings:
    """Of the peers of region `here`, in one round."""
    found: dict[str, dict[PeerId, int]] = {}

    def cross(source: PeerId, target: PeerId, values: int) -> None:
        region = region_of(target)
        if values and region_of(source) == here and is_region(region) and region != here:
            sent = found.setdefault(region, {})
            sent[source] = sent.get(source, 0) + values

    if not is_region(here):
        return found
    for span, tree in zip(plan.spans, trees_of(plan), strict=True):
        values = span.stop - span.start
        for child, parent in tree.edges():
            cross(child, parent, values)
            cross(parent, child, values)
        for listener in plan.listeners:
            cross(span.owner, listener, values)
    return found


def sum_of_shares(ways: Mapping[PeerId, Iterable[Way]], region_of: Callable[[PeerId], str]) -> dict[tuple[str, str], float]:
    """(from, to) → Mbit/s: the cables between regions, as far as the peers that use them found them.

    ways: of every peer, none where it has found nothing (yet): then it is taken to have the middle of the others' shares.
    """
    found: dict[tuple[str, str], list[float]] = {}
    peers = Counter(map(region_of, ways))
    for peer in sorted(ways):
        here = region_of(peer)
        for way in ways[peer]:
            if is_region(here) and is_region(way.region) and here != way.region:
                found.setdefault((here, way.region), []).append(way.mbps)
    return {pair: min(sum(shares) / len(shares) * peers[pair[0]], MOST_MBPS) for pair, shares in found.items()}


def is_region(name: str) -> bool:
    """A label that says where a peer is."""
    return name not in ("", UNKNOWN_REGION)
