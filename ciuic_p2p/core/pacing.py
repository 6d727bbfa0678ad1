"""How fast a peer may send to each other one, so that no line is asked for more than it has. Pure: no clock, no sockets.

A line is a peer's own access to the network, with a capacity up and one down. Capacities are searched for as congestion control
does it, but for all connections of a line together: five senders that each find their own rate overfill one receiver's line (on
three-regions.json 25 s a round instead of 7.5).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ciuic_p2p.core.messages import Plan
from ciuic_p2p.core.trees import trees_of
from ciuic_p2p.terms import PeerId

FIRST_GUESS_MBPS = 100.0
LEAST_MBPS = 0.5
MOST_MBPS = 100_000.0

USED_SHARE = 0.85
"""A window that moved so much of the capacity was limited by it; less says nothing about it."""
SEARCH_GROWTH = 1.25
"""A window, until congestion was seen once."""
FAST_GROWTH = 1.5
"""Instead, from the second such window on, while nothing was ever cut: many lines carry about as much as the guess, but one
that carries a quarter more is likely to carry much more. Below 1 / LIKELY_SHARE, so that its own queue is not taken for that of
another line."""
PROBE_GROWTH = 1.02
CALM_WINDOWS = 10
"""So many full windows without congestion after the last one, and the search begins anew: the line has changed."""
LEAST_BUSY_SHARE = 0.3
LEAST_DELAY_LASTS_S = 120.0
DRAIN_SHARE = 0.97
"""Of what a congested line carried: a little less, so that its queue empties."""
SURE_WINDOWS = 2
"""Congested ones in a row: a single one may be a busy processor's doing."""
LIKELY_SHARE = 0.6
UNLIKELY_WINDOWS = 5
"""With less under way than that share of the capacity, the queue is likely elsewhere; unless it stays."""
CUT_WINDOWS = 4
"""Of so many congested ones in a row, at most, a cut takes the mean: acknowledgements that come late, through the queue of the
other direction, make a single window look a third smaller or larger than it was."""
HOLD_WINDOWS = 2
"""After a cut: what was on its way is still seen to be queued."""
GUESS_SHARE = 1.2
LARGEST_CUT = 0.5
"""A window that was not full may say too little; a line that broke down is followed in a few windows."""

CLEAR_MS = 10.0
"""A line before which packets wait no longer than that may have more to give."""
FULL_MS = 30.0
"""A line before which packets wait longer is asked for more than it has. A connection over a short path gets little of such a
line: it has no more under way than its own round trip wants, without the queue."""
LOST_SHARE = 0.03
"""Retransmitted bytes of a window, of those sent: more than a lossy path, such as a satellite's 0.5 %, loses by itself."""

LEAST_WINDOW_BYTES = 64 << 10
LEAST_WINDOW_SHARE = 0.02
"""Of what the line carries in a window; see `least_window_bytes`."""
MOSTLY_BUSY = 0.8
"""Of a window: what little trickles at a round's end says nothing of a path."""

NEAR_MS = 2.0
"""Peers so near share a switch, not an access line: nothing is paced between them."""
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
    busy_s: float
    """The part of it in which something was on its way to the peer."""
    retransmitted_bytes: int
    received_bytes: int

    @property
    def sent_mbps(self) -> float:
        return self.sent_bytes * 8e-6 / self.seconds

    @property
    def received_mbps(self) -> float:
        return self.received_bytes * 8e-6 / self.seconds

    @property
    def offered_bytes(self) -> int:
        """What was put on the path, whether or not it arrived: where a line broke down nearly all is sent again."""
        return max(self.sent_bytes, self.retransmitted_bytes)

    @property
    def is_busy(self) -> bool:
        """Nearly all the time something was on its way."""
        return self.busy_s >= MOSTLY_BUSY * self.seconds

    @property
    def loses(self) -> bool:
        return self.retransmitted_bytes > LOST_SHARE * max(self.sent_bytes, 1 << 16)


def total_sent_mbps(windows: Collection[FlowWindow]) -> float:
    """Over the time in which anything was sent: a round begins and ends within a window."""
    busy_s = max(max(window.busy_s, LEAST_BUSY_SHARE * window.seconds) for window in windows)
    return sum(window.sent_bytes for window in windows) * 8e-6 / min(busy_s, max(window.seconds for window in windows))


class DelayMeter:
    """How much longer than at best messages of one peer take to get here, from when they say that they were sent.

    The clocks need not agree: the least difference between them stands for an empty path (as in LEDBAT, RFC 6817). It is
    the least of the last minutes, so that clocks may drift.
    """

    def __init__(self) -> None:
        self.queued_ms = 0.0
        """Of the newest message."""
        self._least_ms = self._next_least_ms = math.inf
        self._next_began_s = -math.inf

    def add(self, sent_at_ms: float, now_s: float) -> None:
        """A message that says so has come."""
        delay_ms = now_s * 1000 - sent_at_ms
        if now_s - self._next_began_s > LEAST_DELAY_LASTS_S:
            self._least_ms, self._next_least_ms, self._next_began_s = self._next_least_ms, delay_ms, now_s
        self._next_least_ms = min(self._next_least_ms, delay_ms)
        self._least_ms = min(self._least_ms, delay_ms)
        self.queued_ms = delay_ms - self._least_ms


class Capacity:
    """What a line carries in one direction, in Mbit/s: an estimate that follows the windows it is told."""

    def __init__(self, first_mbps: float = FIRST_GUESS_MBPS, *, is_fixed: bool = False) -> None:
        """is_fixed: the user said so, measurements do not change it."""
        self.mbps = min(max(first_mbps, LEAST_MBPS), MOST_MBPS)
        self.is_measured = is_fixed
        self._is_fixed = is_fixed
        self._searches = True
        self._was_cut = False
        self._calm_windows = 0
        self._hold_windows = self._full_windows = 0
        self._carried_mbps: deque[float] = deque(maxlen=CUT_WINDOWS)
        """In the congested windows in a row up to now."""
        self._moved_mbps: deque[float] = deque(maxlen=CUT_WINDOWS)
        """In the last windows."""

    def add(self, moved_mbps: float, queued_ms: float, *, loses: bool) -> None:
        """One window in which so much was moved, lay in the queue before the line for so long, and was lost or not."""
        if self._is_fixed:
            return
        is_congested = loses or queued_ms > FULL_MS
        self._moved_mbps.append(moved_mbps)
        self._count_congested(moved_mbps, is_congested=is_congested)
        if self._hold_windows:
            self._hold_windows -= 1
        elif is_congested:
            if not self.is_measured or self._full_windows >= (
                SURE_WINDOWS if moved_mbps >= LIKELY_SHARE * self.mbps else UNLIKELY_WINDOWS
            ):
                self._cut(sum(self._carried_mbps) / len(self._carried_mbps))
        elif moved_mbps >= USED_SHARE * self.mbps and queued_ms < CLEAR_MS:
            self._grow(moved_mbps)

    def settle_at(self, mbps: float) -> None:
        """Others see it too, and this is what they and this peer agree on."""
        self.mbps = min(max(mbps, LEAST_MBPS), MOST_MBPS)
        self.is_measured = True

    def _count_congested(self, moved_mbps: float, *, is_congested: bool) -> None:
        if not is_congested:
            self._carried_mbps.clear()
            self._full_windows = 0
            return
        self._carried_mbps.append(moved_mbps)
        self._full_windows += 1

    def _cut(self, carried_mbps: float) -> None:
        if self.is_measured:
            self.mbps = max(min(DRAIN_SHARE * carried_mbps, self.mbps), LARGEST_CUT * self.mbps, LEAST_MBPS)
            self._searches = False
        else:  # the first guess says nothing; under heavy loss a line carries less than it could: go on searching
            # not from this window alone: at a round's end the queue is still there, and little is left to be moved
            self.mbps = max(min(GUESS_SHARE * max(self._moved_mbps), self.mbps), LEAST_MBPS)
        self.is_measured, self._was_cut, self._calm_windows = True, True, 0
        self._hold_windows = HOLD_WINDOWS

    def _grow(self, moved_mbps: float) -> None:
        self._calm_windows += 1
        self._searches = self._searches or self._calm_windows >= CALM_WINDOWS
        self.mbps = min(max(self._growth() * self.mbps, moved_mbps), MOST_MBPS)
        self.is_measured = True

    def _growth(self) -> float:
        if not self._searches:
            return PROBE_GROWTH
        return FAST_GROWTH if self.is_measured and not self._was_cut else SEARCH_GROWTH


def least_window_bytes(line_mbps: float, window_s: float) -> float:
    """A flow that moved less in a window says nothing of its path. Where a line carries little, little says something: else
    nobody would see that it could carry more."""
    return min(LEAST_WINDOW_BYTES, LEAST_WINDOW_SHARE * line_mbps * 125_000 * window_s)


def common_queue_ms(queued_ms: Collection[float]) -> float:
    """What packets wait before the one line that all these flows share: each waits there, some also elsewhere.

    0 for a single flow, of which nobody can say where it waits.
    """
    return min(queued_ms) if len(queued_ms) > 1 else 0.0


def is_near(round_trips_ms: Collection[float]) -> bool:
    """By the probes, and by what the kernel saw on the lanes; 0: not known. Probes wait for processors busy with a round, so
    the least says how far a peer is."""
    return min((ms for ms in round_trips_ms if ms > 0), default=NEAR_MS) < NEAR_MS


def most(flags: Collection[bool]) -> bool:
    return 2 * sum(flags) > len(flags)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a round moves, in values: from this peer to each other one, and to each of those in all."""

    sent: Mapping[PeerId, int]
    received_by: Mapping[PeerId, int]


def demand_of(plan: Plan, me: PeerId) -> Demand:
    """Each edge of a span's tree carries it once up and its result once down; listeners get results from the owners."""
    sent: dict[PeerId, int] = {}
    received_by = dict.fromkeys(plan.contributors, 0) | dict.fromkeys(plan.listeners, plan.count)
    for span, tree in zip(plan.spans, trees_of(plan), strict=True):
        values = span.stop - span.start
        for child, parent in tree.edges():
            received_by[child] += values
            received_by[parent] += values
        above = tree.parent_of(me)
        for peer in (*tree.children_of(me), *([above] if above is not None else [])):
            sent[peer] = sent.get(peer, 0) + values
        if span.owner == me:
            for peer in plan.listeners:
                sent[peer] = sent.get(peer, 0) + values
    return Demand(sent, received_by)


class Demands:
    """What rounds move: each that is open, and of each run the last one that closed, while frames of it wait.

    A round closes when no contributor needs it any more; listeners may still wait for their results.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], Demand] = {}
        self._rests: dict[str, Demand] = {}

    def open(self, run: str, epoch: int, demand: Demand) -> None:
        self._open[run, epoch] = demand

    def close(self, run: str, epoch: int) -> bool:
        """False when it was not open."""
        demand = self._open.pop((run, epoch), None)
        if demand is not None:
            self._rests[run] = demand
        return demand is not None

    def forget_rests(self, waits_for: Callable[[PeerId], bool]) -> None:
        """Of those to whom nothing is under way any more."""
        for run, demand in list(self._rests.items()):
            if not any(waits_for(peer) for peer in demand.sent):
                self._rests.pop(run, None)

    def now(self, waiting: Collection[PeerId]) -> list[Demand]:
        """Towards `waiting` only: what others leave of the line up is for these.

        No rest of a run that has an open round: its frames go with those of that round.
        """
        opened = list(self._open.items())
        busy_runs = {run for (run, _), _ in opened}
        rests = [demand for run, demand in list(self._rests.items()) if run not in busy_runs]
        return [_among(demand, waiting) for demand in (*(demand for _, demand in opened), *rests)]


def _among(demand: Demand, peers: Collection[PeerId]) -> Demand:
    return Demand({peer: values for peer, values in demand.sent.items() if peer in peers}, demand.received_by)


def lanes_for(mbps: float, rtt_ms: float) -> int:
    """How many connections carry that rate over such a path, each with no more than LANE_WINDOW_BYTES on the way."""
    if rtt_ms < FAR_MS:
        return NEAR_LANES
    on_the_way_bytes = mbps * 125 * rtt_ms
    return min(FAR_LANES + int(on_the_way_bytes / LANE_WINDOW_BYTES), MOST_LANES)


def pair_rates(
    demands: list[Demand],
    up_mbps: float,
    down_mbps: Mapping[PeerId, float],
    room_mbps: Mapping[PeerId, float],
    crossing_mbps: Callable[[Mapping[PeerId, int]], Mapping[PeerId, float]] = lambda _sent: {},
) -> dict[PeerId, float]:
    """Mbit/s from this peer to each one that it sends to: its share of the line up, and of their line down.

    down_mbps: of their lines. room_mbps: what they could take from this peer now, for others do not use their shares.
    crossing_mbps: what is sent to each → what the cables on the way leave for it, where they are a limit.
    All of a round's transfers then end together, which is the quickest when the spans follow the capacities. What one cannot
    use of its share of the line up, because their line or a cable is narrower, is the others'.
    """
    sent: dict[PeerId, int] = {}
    received_by: dict[PeerId, int] = {}
    for demand in demands:
        for peer, values in demand.sent.items():
            sent[peer] = sent.get(peer, 0) + values
            received_by[peer] = received_by.get(peer, 0) + demand.received_by[peer]
    sent = {peer: values for peer, values in sent.items() if values > 0}
    crossing = crossing_mbps(sent)
    most_mbps = {
        peer: min(max(down_mbps[peer] * values / received_by[peer], room_mbps[peer]), crossing.get(peer, math.inf))
        for peer, values in sent.items()
    }
    return {peer: max(mbps, LEAST_MBPS) for peer, mbps in _share_out(up_mbps, sent, most_mbps).items()}


def _share_out(mbps: float, weights: Mapping[PeerId, int], most_mbps: Mapping[PeerId, float]) -> dict[PeerId, float]:
    """In proportion to the weights, to none more than its most: what that leaves is for the others."""
    shares: dict[PeerId, float] = {}
    open_weights = dict(weights)
    while open_weights:
        level = max(mbps - sum(shares.values()), 0.0) / sum(open_weights.values())
        full = [peer for peer, weight in open_weights.items() if most_mbps[peer] <= level * weight]
        if not full:
            return shares | {peer: level * weight for peer, weight in open_weights.items()}
        for peer in full:
            shares[peer] = most_mbps[peer]
            del open_weights[peer]
    return shares
