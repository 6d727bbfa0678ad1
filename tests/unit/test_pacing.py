"""How fast to send: a line's capacity is found and followed, queues are told from clocks, and shares add up to a line."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.messages import Plan, Span
from ciuic_p2p.core.pacing import (
    CALM_WINDOWS,
    CLEAR_MS,
    CUT_WINDOWS,
    DRAIN_SHARE,
    FAR_LANES,
    FAR_MS,
    FAST_GROWTH,
    FIRST_GUESS_MBPS,
    FULL_MS,
    GUESS_SHARE,
    HOLD_WINDOWS,
    LANE_WINDOW_BYTES,
    LARGEST_CUT,
    LEAST_BUSY_SHARE,
    LEAST_DELAY_LASTS_S,
    LEAST_MBPS,
    LOST_SHARE,
    MOST_LANES,
    MOST_MBPS,
    NEAR_LANES,
    PROBE_GROWTH,
    SEARCH_GROWTH,
    SURE_WINDOWS,
    UNLIKELY_WINDOWS,
    USED_SHARE,
    Capacity,
    DelayMeter,
    Demand,
    Demands,
    FlowWindow,
    _share_out,
    common_queue_ms,
    demand_of,
    is_near,
    lanes_for,
    least_window_bytes,
    most,
    pair_rates,
    total_sent_mbps,
)
from ciuic_p2p.terms import PeerId, StateHash
from ciuic_p2p.testing.ways import in_a_ring, in_groups

WINDOW_S = 0.5

# -- one line's capacity ----------------------------------------------------------------------------------------------------


def full_and_clear(capacity: Capacity, windows: int = 1) -> None:
    for _ in range(windows):
        capacity.add(capacity.mbps, 0.0, loses=False)


def congested(capacity: Capacity, moved_mbps: float, windows: int = 1) -> None:
    for _ in range(windows):
        capacity.add(moved_mbps, 2 * FULL_MS, loses=False)


def measured_20_mbps() -> Capacity:
    """Found by a full clear window."""
    capacity = Capacity(20 / SEARCH_GROWTH)
    full_and_clear(capacity)
    assert (capacity.mbps, capacity.is_measured) == (20.0, True)
    return capacity


def test_a_new_capacity_is_a_guess() -> None:
    capacity = Capacity()
    assert (capacity.mbps, capacity.is_measured) == (FIRST_GUESS_MBPS, False)


def test_full_clear_windows_are_a_search_that_soon_gets_faster() -> None:
    capacity = Capacity(8.0)
    full_and_clear(capacity, 4)
    assert capacity.mbps == pytest.approx(8 * SEARCH_GROWTH * FAST_GROWTH**3)
    assert capacity.is_measured


def test_a_guess_that_was_cut_is_left_at_the_slower_pace() -> None:
    capacity = Capacity()
    congested(capacity, 8.0 / GUESS_SHARE)
    full_and_clear(capacity, HOLD_WINDOWS)
    full_and_clear(capacity, 3)
    assert capacity.mbps == pytest.approx(8 * SEARCH_GROWTH**3)


def test_what_was_moved_was_possible() -> None:
    capacity = Capacity(8.0)
    capacity.add(50.0, 0.0, loses=False)
    assert capacity.mbps == 50.0


def test_the_search_ends_at_what_no_line_has() -> None:
    capacity = Capacity(MOST_MBPS)
    full_and_clear(capacity)
    assert capacity.mbps == MOST_MBPS


@pytest.mark.parametrize(
    ("moved_share", "queued_ms"),
    [(USED_SHARE - 0.01, 0.0), (0.0, 0.0), (1.0, CLEAR_MS), (1.0, FULL_MS)],
    ids=["not-full", "idle", "not-clear", "barely-not-congested"],
)
def test_other_windows_say_nothing(moved_share: float, queued_ms: float) -> None:
    capacity = Capacity(20.0)
    for _ in range(50):
        capacity.add(moved_share * 20.0, queued_ms, loses=False)
    assert (capacity.mbps, capacity.is_measured) == (20.0, False)


@pytest.mark.parametrize("loses", [False, True])
def test_a_cut_goes_a_little_below_what_was_carried_when_congestion_is_sure(loses: bool) -> None:
    capacity = measured_20_mbps()
    for window in range(SURE_WINDOWS):
        assert capacity.mbps == 20.0, window
        capacity.add(18.0, 0.0 if loses else 2 * FULL_MS, loses=loses)
    assert capacity.mbps == pytest.approx(DRAIN_SHARE * 18.0)


@pytest.mark.parametrize("moved_mbps", [0.1, 2.0, 15.0, 300.0])
def test_the_first_congested_window_replaces_the_guess(moved_mbps: float) -> None:
    capacity = Capacity()
    congested(capacity, moved_mbps)
    assert capacity.mbps == pytest.approx(min(max(GUESS_SHARE * moved_mbps, LEAST_MBPS), FIRST_GUESS_MBPS))
    assert capacity.is_measured


def test_a_congested_window_now_and_then_cuts_nothing() -> None:
    capacity = measured_20_mbps()
    for _ in range(20):
        congested(capacity, 15.0, SURE_WINDOWS - 1)
        capacity.add(0.0, 0.0, loses=False)
    assert capacity.mbps == 20.0


def test_with_little_under_way_the_queue_must_stay_before_it_counts() -> None:
    capacity = measured_20_mbps()
    congested(capacity, 5.0, UNLIKELY_WINDOWS - 1)
    assert capacity.mbps == 20.0
    congested(capacity, 5.0)
    assert capacity.mbps == LARGEST_CUT * 20.0


def test_after_a_cut_nothing_moves_while_the_old_queue_drains() -> None:
    # Given a capacity just cut
    capacity = measured_20_mbps()
    congested(capacity, 20.0, SURE_WINDOWS)
    after = capacity.mbps
    assert after == DRAIN_SHARE * 20.0
    # when the windows of the queue that was there already follow, then they cut nothing more,
    congested(capacity, 18.0, HOLD_WINDOWS)
    assert capacity.mbps == after
    # but what is still congested then is so because of the new rate.
    congested(capacity, 19.0)
    assert capacity.mbps == pytest.approx(DRAIN_SHARE * (20.0 + 2 * 18.0 + 19.0) / CUT_WINDOWS)


def test_a_cut_takes_the_mean_of_the_last_congested_windows() -> None:
    # Given windows whose acknowledgements came late and early, then the line is held for what it carried in all of them,
    capacity = measured_20_mbps()
    congested(capacity, 13.0)
    congested(capacity, 19.0)
    assert capacity.mbps == pytest.approx(DRAIN_SHARE * 16.0)
    # and for nothing that was moved before the queue was last empty.
    full_and_clear(capacity)
    congested(capacity, 13.0)
    congested(capacity, 14.0)
    assert capacity.mbps == pytest.approx(DRAIN_SHARE * 13.5)


def test_after_congestion_it_probes_gently_and_searches_again_when_all_stays_calm() -> None:
    capacity = measured_20_mbps()
    congested(capacity, 20.0, SURE_WINDOWS)
    full_and_clear(capacity, HOLD_WINDOWS)
    found = capacity.mbps
    full_and_clear(capacity, CALM_WINDOWS - 1)
    assert capacity.mbps == pytest.approx(found * PROBE_GROWTH ** (CALM_WINDOWS - 1))
    probed = capacity.mbps
    full_and_clear(capacity)
    assert capacity.mbps == pytest.approx(probed * SEARCH_GROWTH)


@given(
    windows=st.lists(st.tuples(st.floats(0, 2e5), st.floats(0, 1e4), st.booleans()), max_size=80),
    first_mbps=st.floats(LEAST_MBPS, MOST_MBPS),
)
@settings(max_examples=100, deadline=None)
def test_whatever_comes_it_stays_within_what_lines_have(windows: list[tuple[float, float, bool]], first_mbps: float) -> None:
    capacity = Capacity(first_mbps)
    for moved_mbps, queued_ms, loses in windows:
        capacity.add(moved_mbps, queued_ms, loses=loses)
        assert LEAST_MBPS <= capacity.mbps <= MOST_MBPS


def test_a_dead_line_is_still_tried_at_the_least_rate() -> None:
    capacity = Capacity()
    congested(capacity, 0.0, 200)
    assert capacity.mbps == LEAST_MBPS


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e4), st.booleans()), max_size=30))
@settings(max_examples=30, deadline=None)
def test_what_the_user_said_stays(windows: list[tuple[float, float, bool]]) -> None:
    capacity = Capacity(7.5, is_fixed=True)
    for moved_mbps, queued_ms, loses in windows:
        capacity.add(moved_mbps, queued_ms, loses=loses)
    assert (capacity.mbps, capacity.is_measured) == (7.5, True)


@dataclass
class EmulatedLine:
    """Sends at the capacity's rate through a line with a queue before it; what does not fit is lost."""

    line_mbps: float
    capacity: Capacity
    queue_limit_s: float
    queued_mbit: float = 0.0

    def pass_windows(self, windows: int) -> list[float]:
        """The estimates."""
        return [self._pass_window() for _ in range(windows)]

    def _pass_window(self) -> float:
        offered_mbit = self.queued_mbit + self.capacity.mbps * WINDOW_S
        moved_mbit = min(offered_mbit, self.line_mbps * WINDOW_S)
        left_mbit = offered_mbit - moved_mbit
        self.queued_mbit = min(left_mbit, self.queue_limit_s * self.line_mbps)
        is_lossy = left_mbit - self.queued_mbit > LOST_SHARE * offered_mbit
        self.capacity.add(moved_mbit / WINDOW_S, 1000 * self.queued_mbit / self.line_mbps, loses=is_lossy)
        return self.capacity.mbps


FOUND_WINDOWS = 30
"""15 s."""


def assert_follows(estimates: list[float], line_mbps: float) -> None:
    """Soon, and for good."""
    settled = estimates[FOUND_WINDOWS:]
    assert [estimate for estimate in settled if not 0.9 * line_mbps < estimate < 1.1 * line_mbps] == []


@pytest.mark.parametrize("queue_limit_s", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("line_mbps", [2.0, 10.0, 100.0, 1000.0])
def test_a_line_is_found_and_followed_when_it_changes(line_mbps: float, queue_limit_s: float) -> None:
    # Given a line, then what it carries is found to within 10 %;
    line = EmulatedLine(line_mbps, Capacity(), queue_limit_s)
    assert_follows(line.pass_windows(8 * FOUND_WINDOWS), line_mbps)
    # when it gets half as quick,
    line.line_mbps /= 2
    assert_follows(line.pass_windows(8 * FOUND_WINDOWS), line_mbps / 2)
    # or four times as quick, then that is found as well.
    line.line_mbps *= 4
    assert_follows(line.pass_windows(8 * FOUND_WINDOWS), 2 * line_mbps)


# -- queues -----------------------------------------------------------------------------------------------------------------


def hear(meter: DelayMeter, from_s: float, to_s: float, delay_ms: float, offset_ms: float = 0.0, drift: float = 0.0) -> None:
    """Twice a second a message from a peer whose clock is `offset_ms` ahead and gains `drift` of the time."""
    for number in range(int((to_s - from_s) / WINDOW_S)):
        sent_s = from_s + number * WINDOW_S
        meter.add(sent_s * 1000 * (1 + drift) + offset_ms, sent_s + delay_ms / 1000)


@given(offset_ms=st.floats(-1e9, 1e9), path_ms=st.floats(0, 500), queued_ms=st.floats(0, 5000))
@settings(max_examples=50, deadline=None)
def test_neither_the_clocks_nor_the_path_look_like_a_queue(offset_ms: float, path_ms: float, queued_ms: float) -> None:
    meter = DelayMeter()
    hear(meter, 0, 10, path_ms, offset_ms)
    assert meter.queued_ms == pytest.approx(0, abs=1e-3)
    hear(meter, 10, 11, path_ms + queued_ms, offset_ms)
    assert meter.queued_ms == pytest.approx(queued_ms, abs=1e-3)


@pytest.mark.parametrize("drift", [-5e-5, 5e-5], ids=["theirs-is-slow", "theirs-is-quick"])
def test_clocks_that_drift_apart_for_hours_never_look_like_a_full_line(drift: float) -> None:
    meter, worst_ms = DelayMeter(), 0.0
    for second in range(0, 7200, 10):
        hear(meter, second, second + 10, 40.0, 1e6, drift)
        worst_ms = max(worst_ms, meter.queued_ms)
    assert worst_ms <= 2 * LEAST_DELAY_LASTS_S * 1000 * abs(drift) + 1 < FULL_MS


def test_a_burst_of_late_messages_is_a_queue_while_it_lasts_and_then_none() -> None:
    meter = DelayMeter()
    hear(meter, 0, 60, 40.0)
    hear(meter, 60, 65, 340.0)
    assert meter.queued_ms == pytest.approx(300)
    hear(meter, 65, 66, 40.0)
    assert meter.queued_ms == pytest.approx(0, abs=1e-6)
    # Also as long as the least delay is remembered: a queue of two minutes is still one.
    hear(meter, 66, 66 + LEAST_DELAY_LASTS_S - 1, 340.0)
    assert meter.queued_ms == pytest.approx(300)


def test_a_longer_path_is_the_empty_one_after_some_minutes() -> None:
    meter = DelayMeter()
    hear(meter, 0, 60, 40.0)
    hear(meter, 60, 60 + 3 * LEAST_DELAY_LASTS_S, 90.0)
    assert meter.queued_ms == pytest.approx(0, abs=1e-6)


def test_all_flows_wait_before_the_line_that_they_share() -> None:
    assert common_queue_ms([]) == 0
    assert common_queue_ms([500.0]) == 0, "nobody can say where a single one waits"
    assert common_queue_ms([80.0, 30.0, 500.0]) == 30.0
    assert common_queue_ms([80.0, 0.0]) == 0


def test_most_are_more_than_half() -> None:
    assert [most([True]), most([True, True, False])] == [True, True]
    assert [most([]), most([True, False]), most([False])] == [False, False, False]


def test_a_window_loses_by_its_share_but_not_by_a_packet_of_next_to_nothing() -> None:
    def window(sent: int, again: int) -> FlowWindow:
        return FlowWindow(seconds=0.5, sent_bytes=sent, busy_s=0.5, retransmitted_bytes=again, received_bytes=sent // 2)

    assert (window(1_000_000, 0).sent_mbps, window(1_000_000, 0).received_mbps) == (16.0, 8.0)
    assert window(1_000_000, 40_000).loses
    assert not window(1_000_000, 5_000).loses, "a satellite's 0.5 %"
    assert not window(1_500, 1_500).loses


def flow(sent_bytes: int, busy_s: float, seconds: float = 0.5) -> FlowWindow:
    return FlowWindow(seconds=seconds, sent_bytes=sent_bytes, busy_s=busy_s, retransmitted_bytes=0, received_bytes=0)


def test_a_round_that_begins_or_ends_within_a_window_is_not_a_slow_line() -> None:
    # 1 MB in 0.2 s of a window of 0.5 s: 40 Mbit/s, not 16.
    assert total_sent_mbps([flow(500_000, 0.2), flow(500_000, 0.1)]) == pytest.approx(40)
    assert total_sent_mbps([flow(500_000, 0.5), flow(500_000, 0.1)]) == pytest.approx(16)
    # A burst of some milliseconds is no measurement, nor are more seconds than there were.
    assert total_sent_mbps([flow(1_000_000, 0.001)]) == pytest.approx(16 / LEAST_BUSY_SHARE)
    assert total_sent_mbps([flow(1_000_000, 3.0)]) == pytest.approx(16)


# -- who gets which share ---------------------------------------------------------------------------------------------------


def make_plan(span_sizes: list[int], listeners: int = 0) -> Plan:
    contributors = tuple(PeerId(f"peer-{index}") for index in range(len(span_sizes)))
    edges = [0, *itertools.accumulate(span_sizes)]
    spans = tuple(
        Span(owner=peer, start=a, stop=b) for peer, (a, b) in zip(contributors, itertools.pairwise(edges), strict=True)
    )
    return Plan(
        run="run",
        epoch=3,
        term=1,
        base_hash=StateHash("0" * 64),
        contributors=contributors,
        listeners=tuple(PeerId(f"listener-{index}") for index in range(listeners)),
        spans=spans,
        count=edges[-1],
        parameter_count=edges[-1],
        part_values=1024,
        codec="int8",
        lossless_level=0,
        reason="",
        outer_learning_rate=0.7,
        outer_momentum=0.6,
        predicted_s=0.1,
        patience_s=3.0,
    )


WAYS = (lambda plan: plan, in_a_ring, *(partial(in_groups, size=size) for size in (1, 2, 3)))
plans = st.builds(
    lambda sizes, listeners, way: way(make_plan(sizes, listeners)),
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=8),
    st.integers(0, 3),
    st.sampled_from(WAYS),
)


def members(plan: Plan) -> tuple[PeerId, ...]:
    return (*plan.contributors, *plan.listeners)


def test_demand_of_two_and_a_listener() -> None:
    plan = make_plan([300, 700], listeners=1)
    one, other = plan.contributors
    (listener,) = plan.listeners
    # Its own result, and its contribution to the other's span.
    received_by = {one: 1000, other: 1000, listener: 1000}
    assert demand_of(plan, one) == Demand({other: 1000, listener: 300}, received_by)
    assert demand_of(plan, other) == Demand({one: 1000, listener: 700}, received_by)
    assert not any(demand_of(plan, listener).sent.values())


@given(plans)
@settings(max_examples=60, deadline=None)
def test_all_that_is_sent_to_a_peer_is_what_it_receives(plan: Plan) -> None:
    demands = {peer: demand_of(plan, peer) for peer in members(plan)}
    for peer in members(plan):
        sent = sum(demand.sent.get(peer, 0) for demand in demands.values())
        for demand in demands.values():
            assert demand.received_by[peer] == sent
    for listener in plan.listeners:
        assert sum(demands[listener].sent.values()) == 0
    assert all(peer not in demand.sent for peer, demand in demands.items())


def test_demand_of_a_hierarchy_crosses_between_groups_once_each_way() -> None:
    plan = in_groups(make_plan([100, 100, 100, 100]), 2)
    group_of = {plan.contributors[place]: number for number, group in enumerate(plan.groups) for place in group}
    across = sum(
        values
        for peer in plan.contributors
        for other, values in demand_of(plan, peer).sent.items()
        if group_of[peer] < group_of[other]
    )
    assert across == 400  # sums for the other group's spans, and results of the own ones: each value once


def test_a_stranger_to_the_plan_sends_nothing() -> None:
    assert not any(demand_of(make_plan([10, 20]), PeerId("stranger")).sent.values())


def test_what_a_closed_round_has_left_to_send_is_demanded_until_it_was_sent() -> None:
    # Given an owner whose round closed while a listener waits for its results,
    owner, listener = PeerId("owner"), PeerId("listener")
    demand = Demand({listener: 1000, owner: 10}, {listener: 1000, owner: 10})
    demands = Demands()
    demands.open("run", 3, demand)
    assert demands.close("run", 3)
    # then that is demanded still, towards those who wait,
    assert demands.now({listener}) == [Demand({listener: 1000}, demand.received_by)]
    demands.forget_rests(lambda peer: peer == listener)
    assert demands.now({listener}) != []
    # and no more when it was sent.
    demands.forget_rests(lambda _peer: False)
    assert demands.now({listener}) == []
    assert not demands.close("run", 3)


def test_an_open_round_stands_for_what_is_left_of_the_one_before() -> None:
    other = PeerId("other")
    before, after, elsewhere = (Demand({other: values}, {other: 1000}) for values in (1, 2, 3))
    demands = Demands()
    demands.open("run", 3, before)
    demands.open("elsewhere", 1, elsewhere)
    demands.close("run", 3)
    demands.open("run", 4, after)
    assert demands.now({other}) == [elsewhere, after]
    demands.close("run", 4)
    assert demands.now({other}) == [elsewhere, after]


lines_mbps = st.floats(-1, 4).map(lambda exponent: 10.0**exponent)


@given(plans=st.lists(plans, min_size=1, max_size=2), data=st.data())
@settings(max_examples=100, deadline=None)
def test_no_line_is_asked_for_more_than_it_has(plans: list[Plan], data: st.DataObject) -> None:
    peers = sorted({peer for plan in plans for peer in members(plan)})
    up, down = ({peer: data.draw(lines_mbps) for peer in peers} for _ in range(2))
    no_room = dict.fromkeys(peers, 0.0)
    demands = {peer: [demand_of(plan, peer) for plan in plans] for peer in peers}
    rates = {peer: pair_rates(demands[peer], up[peer], down, no_room) for peer in peers}
    floors = len(peers) * LEAST_MBPS
    for peer in peers:
        assert all(rate >= LEAST_MBPS for rate in rates[peer].values())
        assert sum(rate for rate in rates[peer].values() if rate > LEAST_MBPS) <= up[peer] * (1 + 1e-9)
        assert sum(rates[peer].values()) <= up[peer] * (1 + 1e-9) + floors
        wanted = {to for demand in demands[peer] for to, values in demand.sent.items() if values > 0}
        assert set(rates[peer]) == wanted
    if len(plans) == 1:  # with two, a member of one only does not know what the other moves
        for peer in peers:
            arriving = [rates[sender].get(peer, 0.0) for sender in peers]
            assert sum(rate for rate in arriving if rate > LEAST_MBPS) <= down[peer] * (1 + 1e-9)


def test_shares_of_a_line_follow_what_is_to_be_sent() -> None:
    plan = make_plan([100, 100, 200])
    me, even, large = plan.contributors
    plenty = {even: 1e6, large: 1e6}
    rates = pair_rates([demand_of(plan, me)], 50.0, plenty, dict.fromkeys(plenty, 0.0))
    assert rates == {even: pytest.approx(50 * 200 / 500), large: pytest.approx(50 * 300 / 500)}


def test_two_rounds_at_once_share_a_line_down() -> None:
    first, second = make_plan([100, 100, 200]), make_plan([500, 0, 100])
    peers = first.contributors
    down = dict.fromkeys(peers, 8.0)
    rates = [
        pair_rates([demand_of(plan, peer) for plan in (first, second)], 1e6, down, dict.fromkeys(peers, 0.0)) for peer in peers
    ]
    for peer in peers:
        assert sum(of_sender.get(peer, 0.0) for of_sender in rates) == pytest.approx(8.0)


def test_what_others_leave_of_a_line_may_be_used() -> None:
    plan = make_plan([100, 100, 100])
    me, one, other = plan.contributors
    down = {one: 10.0, other: 10.0}
    rates = pair_rates([demand_of(plan, me)], 100.0, down, {one: 9.0, other: 0.0})
    assert rates == {one: 9.0, other: pytest.approx(5.0)}
    # But never more than the share of the own line.
    rates = pair_rates([demand_of(plan, me)], 4.0, down, {one: 9.0, other: 0.0})
    assert rates == {one: pytest.approx(2.0), other: pytest.approx(2.0)}


def test_nothing_to_send_needs_no_rates() -> None:
    assert pair_rates([], 100.0, {}, {}) == {}
    plan = make_plan([100, 100], listeners=1)
    assert pair_rates([demand_of(plan, plan.listeners[0])], 100.0, {}, {}) == {}


def test_a_slow_line_still_gets_the_least() -> None:
    plan = make_plan([100, 100])
    me, other = plan.contributors
    assert pair_rates([demand_of(plan, me)], 100.0, {other: 0.01}, {other: 0.0}) == {other: LEAST_MBPS}


def test_lanes_are_few_when_near_and_as_many_as_the_path_holds_when_far() -> None:
    assert lanes_for(10_000.0, FAR_MS / 2) == NEAR_LANES
    assert lanes_for(1.0, 100.0) == FAR_LANES
    full_lanes = 7
    mbps = full_lanes * LANE_WINDOW_BYTES / (125 * 100)
    assert lanes_for(mbps * 1.001, 100.0) == FAR_LANES + full_lanes
    assert lanes_for(100_000.0, 300.0) == MOST_LANES


@given(st.floats(0, MOST_MBPS), st.floats(0, 1000), st.floats(1, 10))
def test_a_quicker_path_never_gets_fewer_lanes(mbps: float, rtt_ms: float, factor: float) -> None:
    assert NEAR_LANES <= lanes_for(mbps, rtt_ms) <= lanes_for(factor * mbps, rtt_ms) <= MOST_LANES


def test_what_a_narrow_way_leaves_of_the_line_is_for_the_others() -> None:
    plan = make_plan([100, 100, 100, 100])
    me, behind_cable, slow, free = plan.contributors
    down = {behind_cable: 1000.0, slow: 9.0, free: 1000.0}
    rates = pair_rates([demand_of(plan, me)], 90.0, down, dict.fromkeys(down, 0.0), lambda _sent: {behind_cable: 5.0})
    # Each would get 30 of the line up; the slow one takes a third of its 9 down.
    assert rates == pytest.approx({behind_cable: 5.0, slow: 3.0, free: 82.0})


@given(
    weights=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=8),
    most=st.lists(st.floats(0.01, 1e4), min_size=8, max_size=8),
    mbps=st.floats(0.01, 1e4),
)
@settings(max_examples=200, deadline=None)
def test_a_line_is_shared_out_whole_but_for_what_nobody_can_take(weights: list[int], most: list[float], mbps: float) -> None:
    peers = [PeerId(str(number)) for number in range(len(weights))]
    limits = dict(zip(peers, most, strict=False))
    shares = _share_out(mbps, dict(zip(peers, weights, strict=True)), limits)
    assert sum(shares.values()) == pytest.approx(min(mbps, sum(limits.values())))
    assert all(shares[peer] <= limits[peer] * 1.0001 for peer in peers)


def test_what_was_lost_was_offered_too() -> None:
    broken_down = FlowWindow(seconds=0.5, sent_bytes=10_000, busy_s=0.5, retransmitted_bytes=130_000, received_bytes=0)
    assert broken_down.offered_bytes == 130_000
    assert broken_down.loses


@pytest.mark.parametrize(
    ("round_trips_ms", "near"),
    [
        ((), False),
        ((0.0, 0.0), False),
        ((0.4,), True),
        ((35.0, 0.06, 0.05), True),  # a probe that waited for a busy processor, and what the kernel saw
        ((0.0, 90.1, 90.2), False),
        ((2.0,), False),
    ],
)
def test_the_least_round_trip_says_how_far_a_peer_is(round_trips_ms: tuple[float, ...], near: bool) -> None:
    assert is_near(round_trips_ms) is near


def test_the_end_of_a_round_is_not_taken_for_what_the_line_carries() -> None:
    capacity = Capacity()
    capacity.add(70.0, CLEAR_MS, loses=False)
    capacity.add(3.0, 76.0, loses=False)  # what was left to be moved; the queue of the window before is still told of
    assert capacity.mbps >= 70.0


@pytest.mark.parametrize("line_mbps", [LEAST_MBPS, 3.5, 100.0, MOST_MBPS])
def test_flows_that_fill_a_line_say_something_of_it_however_slow_it_is(line_mbps: float) -> None:
    peers, window_s = 16, 0.5
    assert line_mbps / peers * 125_000 * window_s > least_window_bytes(line_mbps, window_s)
