"""How fast a peer may send to each other one, so that no line is asked for more than it has. Pure: no clock, no sockets.

A line is a peer's own access to the network, with a capacity up and one down. Capacities are searched for as congestion control
does it, but for all connections of a line together: five senders that each find their own rate overfill one receiver's line (on
three-regions.json 25 s a round instead of 7.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ciuic_p2p.core.messages import Plan
from ciuic_p2p.terms import PeerId

FIRST_GUESS_MBPS = 100.0
LEAST_MBPS = 0.5
MOST_MBPS = 100_000.0

USED_SHARE = 0.85
"""A window that moved so much of the capacity was limited by it; less says nothing about it."""
SEARCH_GROWTH = 1.5
"""A window, until congestion was seen once."""
PROBE_GROWTH = 1.03
CALM_WINDOWS = 20
"""So many full windows without congestion after the last one, and the search begins anew: the line has changed."""
DRAIN_SHARE = 0.97
"""Of what a congested line carried: a little less, so that its queue empties."""
LARGEST_CUT = 0.5
"""A window that was not full may say too little; a line that broke down is followed in a few windows."""

QUEUED_MS = 60.0
QUEUED_SHARE = 0.4
"""A round trip longer than its least by both of these, relative to the path, means that a queue has built up."""
LOST_SHARE = 0.03
"""Retransmitted bytes of a window, of those sent: more than a lossy path, such as a satellite's 0.5 %, loses by itself."""

FAR_MS = 10.0
NEAR_LANES = 2
FAR_LANES = 4
"""A lost packet holds up one of them only, and a short burst leaves at once."""
MOST_LANES = 24
LANE_WINDOW_BYTES = 1 << 20
"""Of what Linux lets a connection have on its way by default (4 MiB, half of it for bookkeeping), half again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowWindow:
    """What happened on all lanes to one peer in one window."""

    seconds: float
    sent_bytes: int
    """That left and arrived, as acknowledgements say."""
    retransmitted_bytes: int
    rtt_ms: float
    least_rtt_ms: float
    received_bytes: int

    @property
    def sent_mbps(self) -> float:
        return self.sent_bytes * 8e-6 / self.seconds

    @property
    def is_congested(self) -> bool:
        queued_ms = self.rtt_ms - self.least_rtt_ms
        is_queued = queued_ms > QUEUED_MS and queued_ms > QUEUED_SHARE * self.least_rtt_ms
        return is_queued or self.retransmitted_bytes > LOST_SHARE * max(self.sent_bytes, 1 << 16)


class Capacity:
    """What a line, or a path, carries in one direction, in Mbit/s: an estimate that follows the windows it is told."""

    def __init__(self, first_mbps: float = FIRST_GUESS_MBPS, *, is_fixed: bool = False) -> None:
        """is_fixed: the user said so, measurements do not change it."""
        self.mbps = first_mbps
        self.is_measured = is_fixed
        self._is_fixed = is_fixed
        self._searches = True
        self._calm_windows = 0

    def add(self, moved_mbps: float, *, is_congested: bool) -> None:
        """One window in which so much was moved."""
        if self._is_fixed:
            return
        if is_congested:
            self._cut(moved_mbps)
        elif moved_mbps >= USED_SHARE * self.mbps:
            self._grow(moved_mbps)

    def _cut(self, moved_mbps: float) -> None:
        self.mbps = max(min(DRAIN_SHARE * moved_mbps, self.mbps), LARGEST_CUT * self.mbps, LEAST_MBPS)
        self.is_measured, self._searches, self._calm_windows = True, False, 0

    def _grow(self, moved_mbps: float) -> None:
        self._calm_windows += 1
        self._searches = self._searches or self._calm_windows >= CALM_WINDOWS
        factor = SEARCH_GROWTH if self._searches else PROBE_GROWTH
        self.mbps = min(max(factor * self.mbps, moved_mbps), MOST_MBPS)
        self.is_measured = True


def blame_own_line(windows: Mapping[PeerId, FlowWindow]) -> bool:
    """Whether this peer's own line up is what is congested: then most of what it sends is, whoever it goes to."""
    congested = sum(window.is_congested for window in windows.values())
    return 2 * congested > len(windows)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a round moves, in values: from this peer to each other one, and to each of those in all."""

    sent: Mapping[PeerId, int]
    received_by: Mapping[PeerId, int]


def demand_of(plan: Plan, me: PeerId) -> Demand:
    """A contributor gets the others' contributions to its span and sends each its result; listeners get results only."""
    owned = dict.fromkeys(plan.contributors, 0)
    for span in plan.spans:
        owned[span.owner] += span.stop - span.start
    others = len(plan.contributors) - 1
    sent, received_by = {}, {}
    for peer in plan.contributors:
        if peer != me:
            sent[peer] = owned.get(me, 0) + (owned[peer] if me in owned else 0)
            received_by[peer] = plan.count - owned[peer] + others * owned[peer]
    for peer in plan.listeners:
        if peer != me and me in owned:
            sent[peer], received_by[peer] = owned[me], plan.count
    return Demand(sent, received_by)


def lanes_for(mbps: float, rtt_ms: float) -> int:
    """How many connections carry that rate over such a path, each with no more than LANE_WINDOW_BYTES on the way."""
    if rtt_ms < FAR_MS:
        return NEAR_LANES
    on_the_way_bytes = mbps * 125 * rtt_ms
    return min(FAR_LANES + int(on_the_way_bytes / LANE_WINDOW_BYTES), MOST_LANES)


def pair_rates(
    demands: list[Demand], up_mbps: float, down_mbps: Mapping[PeerId, float], paths: Mapping[PeerId, float]
) -> dict[PeerId, float]:
    """Mbit/s from this peer to each one that it sends to: its share of the line up, of their line down, and within the path.

    All of a round's transfers then end together, which is the quickest when the spans follow the capacities.
    """
    sent: dict[PeerId, int] = {}
    received_by: dict[PeerId, int] = {}
    for demand in demands:
        for peer, values in demand.sent.items():
            sent[peer] = sent.get(peer, 0) + values
            received_by[peer] = received_by.get(peer, 0) + demand.received_by[peer]
    in_all = sum(sent.values())
    rates = {}
    for peer, values in sent.items():
        if values > 0:
            of_mine, of_theirs = up_mbps * values / in_all, down_mbps[peer] * values / received_by[peer]
            rates[peer] = max(min(of_mine, of_theirs, paths.get(peer, MOST_MBPS)), LEAST_MBPS)
    return rates
