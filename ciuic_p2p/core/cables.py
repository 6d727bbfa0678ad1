"""What lies between regions: how much of it this peer may use, found like a line's capacity but from what no line explains.

Many peers share one cable between two regions. What all of a region move over it together, and the queue that is neither before
their lines nor before the receivers', tell each of them what it carries, as for a line (core/pacing.py); they tell each other
and come to say the same (core/crossing.py says who takes how much of it). Where nothing of the kind was seen there is no limit.
Pure: no clock, no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from ciuic_p2p.core.messages import Way
from ciuic_p2p.core.pacing import FULL_MS, GUESS_SHARE, LEAST_MBPS, Capacity, FlowWindow, most, total_sent_mbps
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
    """Of one peer's region to each other one."""

    def __init__(self) -> None:
        self._found: dict[str, Capacity] = {}
        self._congested: dict[str, int] = {}

    def judge(
        self, region: str, flows: Iterable[CrossingFlow], line_mbps: float, used_mbps: float, others_mbps: float = 0.0
    ) -> None:
        """One window in which all these crossed to `region`.

        line_mbps: this peer's own line up; used_mbps: of it, by all. others_mbps: what the others of this region moved there.
        """
        crossed = list(flows)
        moved_mbps = total_sent_mbps([flow.window for flow in crossed])
        queued_ms = min(flow.queued_ms for flow in crossed)
        if (found := self._found.get(region)) is not None:
            found.add(moved_mbps + others_mbps, queued_ms, loses=most([flow.window.loses for flow in crossed]))
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
            self._found[region] = Capacity(GUESS_SHARE * (moved_mbps + others_mbps))

    def agree(self, region: str, told: Collection[float], most_mbps: float, *, moves: bool) -> None:
        """Takes the mean of what those of this region say who moved something there lately; `moves`: this peer is one of them.

        most_mbps: of which the own line is the limit again, whatever filled the cable being gone.
        """
        found = self._found.get(region)
        if told:
            words = [*told, found.mbps] if found is not None and moves else list(told)
            found = self._found.setdefault(region, Capacity())
            found.settle_at(sum(words) / len(words))
        if found is not None and found.mbps > most_mbps:
            del self._found[region]

    def capacities(self) -> dict[str, float]:
        """Region → Mbit/s of what lies between, for all of this peer's region together."""
        return {region: found.mbps for region, found in sorted(self._found.items())}

    def limits(
        self, sent: Mapping[PeerId, float], region_of: Callable[[PeerId], str], share_of: Callable[[str], float]
    ) -> dict[PeerId, float]:
        """Mbit/s to each peer behind a cable: this peer's share of it, divided in proportion to what each is sent."""
        to_region: dict[str, float] = {}
        for peer, amount in sent.items():
            to_region[region_of(peer)] = to_region.get(region_of(peer), 0.0) + amount
        return {
            peer: max(self._found[region].mbps * share_of(region) * amount / to_region[region], LEAST_MBPS)
            for peer, amount in sent.items()
            if (region := region_of(peer)) in self._found and amount > 0
        }


def cables_of(ways: Mapping[PeerId, Iterable[Way]], region_of: Callable[[PeerId], str]) -> dict[tuple[str, str], float]:
    """(from, to) → Mbit/s: the cables between regions, by the mean of what the peers at their beginnings say."""
    told: dict[tuple[str, str], list[float]] = {}
    for peer in sorted(ways):
        here = region_of(peer)
        for way in ways[peer]:
            if way.mbps > 0 and is_region(here) and is_region(way.region) and here != way.region:
                told.setdefault((here, way.region), []).append(way.mbps)
    return {pair: sum(words) / len(words) for pair, words in told.items()}


def is_region(name: str) -> bool:
    """A label that says where a peer is."""
    return name not in ("", UNKNOWN_REGION)
