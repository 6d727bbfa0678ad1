"""core/cables.py: what lies between regions is found by those who share it."""

from __future__ import annotations

import pytest

from ciuic_p2p.core.cables import SURE_WINDOWS, Cables, CrossingFlow, crossings_of, sum_of_shares
from ciuic_p2p.core.messages import HIERARCHICAL, Plan, Span, Way
from ciuic_p2p.core.pacing import FULL_MS, GUESS_SHARE, FlowWindow
from ciuic_p2p.terms import PeerId, StateHash

WINDOW_S = 0.5
LINE_MBPS = 400.0
USED_MBPS = 70.0
EU0, EU1, US0, US1 = (PeerId(name) for name in ("eu0", "eu1", "us0", "us1"))


def region_of(peer: PeerId) -> str:
    return peer.rstrip("0123456789")


def crossing(mbps: float, queued_ms: float) -> CrossingFlow:
    moved = int(mbps * WINDOW_S / 8e-6)
    window = FlowWindow(seconds=WINDOW_S, sent_bytes=moved, busy_s=WINDOW_S, retransmitted_bytes=0, received_bytes=0)
    return CrossingFlow(window, queued_ms)


class SharedCable:
    """Senders of one region that all want more than there is, before one queue."""

    def __init__(self, mbps: float, senders: int) -> None:
        self.mbps = mbps
        self.senders = [Cables() for _ in range(senders)]
        self.queued_mbit = 0.0

    def pass_windows(self, windows: int) -> list[float]:
        """How long packets wait at the end of each window, in ms."""
        return [self._pass_window() for _ in range(windows)]

    def _pass_window(self) -> float:
        most = [cables.limits({EU0: 1, EU1: 1}, region_of) for cables in self.senders]
        wanted = [min(limits.get(EU0, 250.0), 250.0) + min(limits.get(EU1, 250.0), 250.0) for limits in most]
        offered_mbit = self.queued_mbit + sum(wanted) * WINDOW_S
        moved_mbit = min(offered_mbit, self.mbps * WINDOW_S)
        self.queued_mbit = min(offered_mbit - moved_mbit, 0.2 * self.mbps)
        queued_ms = 1000 * self.queued_mbit / self.mbps
        for cables, mbps in zip(self.senders, wanted, strict=True):
            carried = moved_mbit / WINDOW_S * mbps / sum(wanted)
            cables.judge("eu", [crossing(carried / 2, queued_ms), crossing(carried / 2, queued_ms + 5)], LINE_MBPS, carried)
        return queued_ms


@pytest.mark.parametrize("mbps", [25.0, 50.0, 200.0])
@pytest.mark.parametrize("senders", [1, 2, 5])
def test_those_who_share_a_cable_find_together_what_it_carries(mbps: float, senders: int):
    cable = SharedCable(mbps, senders)
    cable.pass_windows(40)

    queues_ms = cable.pass_windows(200)

    peers = [PeerId(f"us{i}") for i in range(senders)]
    found = sum_of_shares({p: cables.ways() for p, cables in zip(peers, cable.senders, strict=True)}, region_of)
    assert found == {("us", "eu"): pytest.approx(mbps, rel=0.15)}
    assert sum(queued > FULL_MS for queued in queues_ms) < len(queues_ms) / 2


def test_a_cable_that_has_room_again_is_no_limit_any_more():
    cable = SharedCable(50.0, 1)
    cable.pass_windows(40)
    cable.mbps = 10_000.0
    cable.pass_windows(200)
    assert cable.senders[0].ways() == ()
    assert cable.senders[0].limits({EU0: 1}, region_of) == {}


def test_a_short_disturbance_makes_no_cable():
    cables = Cables()
    for _ in range(5):
        for _ in range(SURE_WINDOWS - 1):
            cables.judge("eu", [crossing(50.0, 2 * FULL_MS)], LINE_MBPS, USED_MBPS)
        cables.judge("eu", [crossing(50.0, 0.0)], LINE_MBPS, USED_MBPS)
    assert cables.ways() == ()


def test_what_trickles_at_the_end_of_a_round_makes_no_cable():
    cables = Cables()
    for _ in range(20):
        trickle = FlowWindow(seconds=WINDOW_S, sent_bytes=70_000, busy_s=0.1, retransmitted_bytes=0, received_bytes=0)
        cables.judge("eu", [CrossingFlow(trickle, 200.0)], LINE_MBPS, USED_MBPS)
    assert cables.ways() == ()


def test_a_window_in_which_a_round_ends_cuts_by_what_was_moved_while_it_ran():
    # given a share that was found,
    cables = Cables()
    for _ in range(SURE_WINDOWS + 3):
        cables.judge("eu", [crossing(60.0, 300.0)], LINE_MBPS, USED_MBPS)
    (before,) = cables.ways()
    # when the cable is still full in windows of which the round takes a third,
    for _ in range(6):
        moved = int(before.mbps * WINDOW_S / 3 / 8e-6)
        ending = FlowWindow(seconds=WINDOW_S, sent_bytes=moved, busy_s=WINDOW_S / 3, retransmitted_bytes=0, received_bytes=0)
        cables.judge("eu", [CrossingFlow(ending, 100.0)], LINE_MBPS, USED_MBPS)
    # then it is cut to little less, not to a third.
    assert cables.ways()[0].mbps > 0.8 * before.mbps


def test_what_is_sent_slowly_or_fills_the_own_line_says_nothing_of_a_cable():
    for mbps, used_mbps in ((0.009 * LINE_MBPS, USED_MBPS), (50.0, 0.9 * LINE_MBPS)):
        cables = Cables()
        for _ in range(20):
            cables.judge("eu", [crossing(mbps, 200.0)], LINE_MBPS, used_mbps)
        assert cables.ways() == ()


def test_one_full_receiver_is_no_full_cable():
    cables = Cables()
    for _ in range(10):
        cables.judge("eu", [crossing(50.0, 300.0), crossing(50.0, 0.0)], LINE_MBPS, USED_MBPS)
    assert cables.ways() == ()


def test_only_what_crosses_the_cable_is_limited_in_proportion():
    cables = Cables()
    for _ in range(SURE_WINDOWS):
        cables.judge("eu", [crossing(60.0, 300.0)], LINE_MBPS, USED_MBPS)
    limits = cables.limits({EU0: 9000, EU1: 3000, US1: 50_000}, region_of)
    assert limits == pytest.approx({EU0: 0.75 * 60 * GUESS_SHARE, EU1: 0.25 * 60 * GUESS_SHARE})


def test_shares_of_one_region_add_up_and_nonsense_is_left_out():
    ways = {US0: [Way(region="eu", mbps=40.0)], US1: [Way(region="eu", mbps=50.0), Way(region="us", mbps=1.0)], EU0: []}
    assert sum_of_shares(ways, region_of) == {("us", "eu"): 90.0}
    assert sum_of_shares({**ways, US1: []}, region_of) == {("us", "eu"): 80.0}  # one of two has not found its share yet
    assert sum_of_shares({PeerId("7"): [Way(region="eu", mbps=40.0)]}, region_of) == {}
    assert sum_of_shares({US0: [Way(region="unknown", mbps=40.0)]}, region_of) == {}


@pytest.mark.parametrize("mbps", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_a_way_of_an_impossible_rate_is_refused(mbps: float):
    with pytest.raises(ValueError, match="impossible"):
        Way(region="eu", mbps=mbps)


def test_unlike_shares_of_one_cable_become_alike():
    # given two senders of which one found much more than the other,
    senders = {US0: Cables(), US1: Cables()}
    for peer, mbps in ((US0, 70.0), (US1, 20.0)):
        for _ in range(SURE_WINDOWS):
            senders[peer].judge("eu", [crossing(mbps, 300.0)], LINE_MBPS, USED_MBPS)
    crossing_values = {US0: 500, US1: 1000}

    # when they tell each other, again and again,
    for _ in range(8):
        told = {peer: cables.ways()[0].mbps for peer, cables in senders.items()}
        for peer, cables in senders.items():
            cables.settle("eu", crossing_values, told, peer)

    # then each has its part of all by what the round has it send.
    shares = {peer: cables.ways()[0].mbps for peer, cables in senders.items()}
    assert shares == pytest.approx({US0: 30 * GUESS_SHARE, US1: 60 * GUESS_SHARE}, rel=0.05)


def test_nobody_settles_before_all_have_found_something():
    cables = Cables()
    for _ in range(SURE_WINDOWS):
        cables.judge("eu", [crossing(60.0, 300.0)], LINE_MBPS, USED_MBPS)
    found = cables.ways()
    cables.settle("eu", {US0: 500, US1: 500}, {}, US0)
    assert cables.ways() == found
    cables.settle("eu", {US1: 500}, {US1: 10.0}, US0)  # it sends nothing there itself
    assert cables.ways() == found


def test_what_crosses_in_a_round():
    # given a hierarchy of two regions of two, every peer of which owns a quarter,
    contributors = (US0, EU0, US1, EU1)
    spans = tuple(
        Span(owner=owner, start=100 * place, stop=100 * (place + 1), carriers=carriers)
        for place, (owner, carriers) in enumerate(zip(contributors, [(0, 1), (0, 1), (2, 3), (2, 3)], strict=True))
    )
    plan = Plan(
        run="run",
        epoch=0,
        term=1,
        base_hash=StateHash("0" * 64),
        contributors=contributors,
        listeners=(),
        spans=spans,
        topology=HIERARCHICAL,
        groups=((0, 2), (1, 3)),
        count=400,
        parameter_count=400,
        part_values=1024,
        codec="int8",
        lossless_level=0,
        reason="",
        outer_learning_rate=0.7,
        outer_momentum=0.6,
        predicted_s=0.1,
        patience_s=3.0,
    )
    # then each sends its region's sums for half of theirs, and the results of what it owns, across.
    assert crossings_of(plan, "us", region_of) == {"eu": {US0: 200, US1: 200}}
    assert crossings_of(plan, "unknown", region_of) == {}
