"""What the peers of one region send over the same cables: what they say of them, who has something to send, whose part is how
large.

Pure: no clock, no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ciuic_p2p.core.cables import Cables, CrossingFlow, cables_of, is_region
from ciuic_p2p.core.messages import MOST_WAYS, Plan, Way
from ciuic_p2p.core.trees import trees_of
from ciuic_p2p.terms import PeerId

MOST_REGIONS = MOST_WAYS // 4
"""Of which others are believed that there is a cable: who makes up regions shall not fill this peer's memory and messages."""

Crossings = Mapping[str, Mapping[PeerId, int]]
"""Region → peer of this region → values that it sends there."""


class Crossing:
    """Of one peer. But for `round_opened`, for one thread."""

    def __init__(self, me: PeerId, region_of: Callable[[PeerId], str]) -> None:
        self._me = me
        self._region_of = region_of
        self._cables = Cables()
        self._round: tuple[int, Crossings] = (0, {})
        """How many rounds were opened, and what crosses in the newest one, of whichever run."""
        self._told: dict[PeerId, tuple[int, tuple[Way, ...]]] = {}
        """What each peer says of the ways from its region, and how many rounds were open when it said so."""
        self._moved_mbps: dict[str, float] = {}
        self._waits: frozenset[str] = frozenset()

    def round_opened(self, plan: Plan) -> None:
        """From any thread."""
        self._round = self._round[0] + 1, crossings_of(plan, self._region_of(self._me), self._region_of)

    def told(self, peer: PeerId, ways: tuple[Way, ...]) -> None:
        self._told[peer] = self._round[0], ways

    def forget(self, peer: PeerId) -> None:
        self._told.pop(peer, None)

    def neighbours(self) -> list[PeerId]:
        """Others of this region, as far as they have said anything."""
        here = self._region_of(self._me)
        return [peer for peer in self._told if is_region(here) and self._region_of(peer) == here]

    def now_waits(self, regions: Iterable[str]) -> bool:
        """Whether this peer has something to send to these and no others; whether that is news."""
        waits = frozenset(filter(self._lies_behind, regions))
        is_news, self._waits = waits != self._waits, waits
        return is_news

    def judge(self, flows: Mapping[str, Collection[CrossingFlow]], line_mbps: float, used_mbps: float) -> None:
        """One window. flows: what was sent to each region. line_mbps: of the own line up; used_mbps: of it, by all flows."""
        crossed = {region: sent for region, sent in flows.items() if sent and self._lies_behind(region)}
        told = self._ways_told()
        self._moved_mbps = {region: sum(flow.window.sent_mbps for flow in sent) for region, sent in crossed.items()}
        for region, sent in crossed.items():
            others_mbps = sum(way.moved_mbps for way in told if way.region == region)
            self._cables.judge(region, sent, line_mbps, used_mbps, others_mbps)
        for region in (*crossed, *sorted({way.region for way in told} - crossed.keys())):
            known = self.capacities()
            if region not in crossed and region not in known and len(known) >= MOST_REGIONS:
                continue
            words = [way.mbps for way in told if way.region == region and way.mbps > 0 and way.moved_mbps > 0]
            self._cables.agree(region, words, line_mbps / self.share_of(region), moves=region in crossed)

    def share_of(self, region: str) -> float:
        """This peer's part of the cable there. Whom the round has send there counts until it says that it sent all."""
        rounds, crossings = self._round
        crossing = crossings.get(region, {})
        others = []
        for peer in self.neighbours():
            of_round, ways = self._told[peer]
            if (peer in crossing and of_round < rounds) or any(way.waits for way in ways if way.region == region):
                others.append(peer)
        return share_of_cable(crossing, others, self._me)

    def capacities(self) -> dict[str, float]:
        """Region → Mbit/s of the cable there, for all of this peer's region together, where it is a limit."""
        return self._cables.capacities()

    def limits(self, sent: Mapping[PeerId, float], crosses_to: Callable[[PeerId], str]) -> dict[PeerId, float]:
        """Mbit/s to each peer behind a cable: of this peer's part, in proportion to what each is sent."""
        return self._cables.limits(sent, crosses_to, self.share_of)

    def ways(self) -> tuple[Way, ...]:
        """What the others are told."""
        found, moved = self.capacities(), self._moved_mbps
        return tuple(
            Way(region=region, mbps=found.get(region, 0.0), moved_mbps=moved.get(region, 0.0), waits=region in self._waits)
            for region in sorted({*found, *moved, *self._waits}, key=lambda region: (region not in moved, region))[:MOST_WAYS]
        )

    def cables_mbps(self) -> dict[tuple[str, str], float]:
        """(from region, to region) → what lies between carries, by what all say."""
        return cables_of({peer: ways for peer, (_, ways) in self._told.items()} | {self._me: self.ways()}, self._region_of)

    def comes_over_a_cable(self, peer: PeerId) -> bool:
        """What a peer sends here passes one."""
        here = self._region_of(self._me)
        _, ways = self._told.get(peer, (0, ()))
        return self._lies_behind(self._region_of(peer)) and any(way.region == here and way.mbps > 0 for way in ways)

    def _ways_told(self) -> list[Way]:
        return [way for peer in self.neighbours() for way in self._told[peer][1] if self._lies_behind(way.region)]

    def _lies_behind(self, region: str) -> bool:
        here = self._region_of(self._me)
        return is_region(here) and is_region(region) and region != here


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


def share_of_cable(crossing: Mapping[PeerId, int], others: Iterable[PeerId], me: PeerId) -> float:
    """This peer's part of a cable on which `others` have something to send as well.

    crossing: what the round's plan has each send there; who is not in it, such as a donor of a state, counts like their mean.
    """
    typical = sum(crossing.values()) / len(crossing) if crossing else 1.0
    mine = crossing.get(me, typical)
    return mine / (mine + sum(crossing.get(peer, typical) for peer in others))
