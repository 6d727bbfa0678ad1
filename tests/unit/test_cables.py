"""core/cables.py: what lies between regions is found by those who share it."""

from __future__ import annotations

import pytest

from ciuic_p2p.core.cables import SURE_WINDOWS, Cables, CrossingFlow, cables_of
from ciuic_p2p.core.messages import Way
from ciuic_p2p.core.pacing import FULL_MS, GUESS_SHARE, FlowWindow
from ciuic_p2p.terms import PeerId

WINDOW_S = 0.5
LINE_MBPS = 400.0
USED_MBPS = 70.0
EU0, EU1, US0, US1 = (PeerId(name) for name in ("eu0", "eu1", "us0", "us1"))


def region_of(peer: PeerId) -> str:
    return peer.rstrip("0123456789")


def alone(_: str) -> float:
    return 1.0


def crossing(mbps: float, queued_ms: float) -> CrossingFlow:
    moved = int(mbps * WINDOW_S / 8e-6)
    window = FlowWindow(seconds=WINDOW_S, sent_bytes=moved, busy_s=WINDOW_S, retransmitted_bytes=0, received_bytes=0)
    return CrossingFlow(window, queued_ms)


class SharedCable:
    """Senders of one region that all want more than there is, before one queue. They hear of each other a window late."""

    def __init__(self, mbps: float, senders: int) -> None:
        self.mbps = mbps
        self.senders = [Cables() for _ in range(senders)]
        self.moved_mbps = [0.0] * senders
        self.queued_mbit = 0.0

    def pass_windows(self, windows: int, sending: int | None = None) -> list[float]:
        """How long packets wait at the end of each window, in ms; only the first `sending` have anything to send."""
        return [self._pass_window(len(self.senders) if sending is None else sending) for _ in range(windows)]

    def said(self) -> list[float]:
        return [cables.capacities().get("eu", 0.0) for cables in self.senders]

    def _pass_window(self, sending: int) -> float:
        most = [cables.limits({EU0: 1, EU1: 1}, region_of, lambda _: 1 / sending) for cables in self.senders[:sending]]
        wanted = [min(limits.get(EU0, 250.0), 250.0) + min(limits.get(EU1, 250.0), 250.0) for limits in most]
        offered_mbit = self.queued_mbit + sum(wanted) * WINDOW_S
        moved_mbit = min(offered_mbit, self.mbps * WINDOW_S)
        self.queued_mbit = min(offered_mbit - moved_mbit, 0.2 * self.mbps)
        queued_ms = 1000 * self.queued_mbit / self.mbps
        told_mbps, said = self.moved_mbps, self.said()
        self.moved_mbps = [moved_mbit / WINDOW_S * mbps / sum(wanted) for mbps in wanted] + [0.0] * (len(said) - sending)
        for i, cables in enumerate(self.senders):
            if i < sending:
                carried = self.moved_mbps[i]
                flows = [crossing(carried / 2, queued_ms), crossing(carried / 2, queued_ms + 5)]
                cables.judge("eu", flows, LINE_MBPS, carried, sum(told_mbps) - told_mbps[i])
            words = [said[j] for j in range(len(said)) if j != i and told_mbps[j] and said[j]]
            cables.agree("eu", words, LINE_MBPS * sending, moves=i < sending)
        return queued_ms


@pytest.mark.parametrize("mbps", [25.0, 50.0, 200.0])
@pytest.mark.parametrize("senders", [1, 2, 5])
def test_those_who_share_a_cable_find_together_what_it_carries(mbps: float, senders: int):
    cable = SharedCable(mbps, senders)
    cable.pass_windows(40)

    queues_ms = cable.pass_windows(200)

    assert cable.said() == [pytest.approx(mbps, rel=0.15)] * senders
    assert sum(queued > FULL_MS for queued in queues_ms) < len(queues_ms) / 2


def test_what_one_finds_while_the_others_send_nothing_is_of_the_whole_cable():
    # given two senders that found a cable together,
    cable = SharedCable(50.0, 2)
    cable.pass_windows(40)

    # when one of them sends alone for a while, with all of the cable for itself,
    cable.pass_windows(20, sending=1)
    assert cable.said() == [pytest.approx(50.0, rel=0.15)] * 2

    # then both together ask for no more than before.
    assert max(cable.pass_windows(4)) < 2 * FULL_MS


def test_a_cable_that_has_room_again_is_no_limit_any_more():
    cable = SharedCable(50.0, 1)
    cable.pass_windows(40)
    cable.mbps = 10_000.0
    cable.pass_windows(200)
    assert cable.said() == [0.0]
    assert cable.senders[0].limits({EU0: 1}, region_of, alone) == {}


def test_a_short_disturbance_makes_no_cable():
    cables = Cables()
    for _ in range(5):
        for _ in range(SURE_WINDOWS - 1):
            cables.judge("eu", [crossing(50.0, 2 * FULL_MS)], LINE_MBPS, USED_MBPS)
        cables.judge("eu", [crossing(50.0, 0.0)], LINE_MBPS, USED_MBPS)
    assert cables.capacities() == {}


def test_what_trickles_at_the_end_of_a_round_makes_no_cable():
    cables = Cables()
    for _ in range(20):
        trickle = FlowWindow(seconds=WINDOW_S, sent_bytes=70_000, busy_s=0.1, retransmitted_bytes=0, received_bytes=0)
        cables.judge("eu", [CrossingFlow(trickle, 200.0)], LINE_MBPS, USED_MBPS)
    assert cables.capacities() == {}


def test_a_window_in_which_a_round_ends_cuts_by_what_was_moved_while_it_ran():
    # given a share that was found,
    cables = Cables()
    for _ in range(SURE_WINDOWS + 3):
        cables.judge("eu", [crossing(60.0, 300.0)], LINE_MBPS, USED_MBPS)
    before = cables.capacities()["eu"]
    # when the cable is still full in windows of which the round takes a third,
    for _ in range(6):
        moved = int(before * WINDOW_S / 3 / 8e-6)
        ending = FlowWindow(seconds=WINDOW_S, sent_bytes=moved, busy_s=WINDOW_S / 3, retransmitted_bytes=0, received_bytes=0)
        cables.judge("eu", [CrossingFlow(ending, 100.0)], LINE_MBPS, USED_MBPS)
    # then it is cut to little less, not to a third.
    assert cables.capacities()["eu"] > 0.8 * before


def test_what_is_sent_slowly_or_fills_the_own_line_says_nothing_of_a_cable():
    for mbps, used_mbps in ((0.009 * LINE_MBPS, USED_MBPS), (50.0, 0.9 * LINE_MBPS)):
        cables = Cables()
        for _ in range(20):
            cables.judge("eu", [crossing(mbps, 200.0)], LINE_MBPS, used_mbps)
        assert cables.capacities() == {}


def test_one_full_receiver_is_no_full_cable():
    cables = Cables()
    for _ in range(10):
        cables.judge("eu", [crossing(50.0, 300.0), crossing(50.0, 0.0)], LINE_MBPS, USED_MBPS)
    assert cables.capacities() == {}


def test_only_what_crosses_the_cable_is_limited_in_proportion():
    cables = Cables()
    for _ in range(SURE_WINDOWS):
        cables.judge("eu", [crossing(60.0, 300.0)], LINE_MBPS, USED_MBPS)
    limits = cables.limits({EU0: 9000, EU1: 3000, US1: 50_000}, region_of, lambda _: 0.5)
    assert limits == pytest.approx({EU0: 0.75 * 30 * GUESS_SHARE, EU1: 0.25 * 30 * GUESS_SHARE})


def way(region: str, mbps: float) -> Way:
    return Way(region=region, mbps=mbps, moved_mbps=1.0, waits=True)


def test_a_cable_carries_what_those_at_its_beginning_say_and_nonsense_is_left_out():
    ways = {US0: [way("eu", 40.0)], US1: [way("eu", 50.0), way("us", 1.0)], EU0: []}
    assert cables_of(ways, region_of) == {("us", "eu"): 45.0}
    assert cables_of({**ways, US1: [way("eu", 0.0)]}, region_of) == {("us", "eu"): 40.0}  # one of two knows of no limit
    assert cables_of({PeerId("7"): [way("eu", 40.0)]}, region_of) == {}
    assert cables_of({US0: [way("unknown", 40.0)]}, region_of) == {}


def found(mbps: float) -> Cables:
    cables = Cables()
    for _ in range(SURE_WINDOWS):
        cables.judge("eu", [crossing(mbps, 300.0)], LINE_MBPS, USED_MBPS)
    return cables


def test_unlike_words_of_one_cable_become_alike():
    one, other = found(70.0), found(20.0)
    for _ in range(8):
        told = one.capacities()["eu"], other.capacities()["eu"]
        one.agree("eu", [told[1]], LINE_MBPS, moves=True)
        other.agree("eu", [told[0]], LINE_MBPS, moves=True)
    assert one.capacities() == pytest.approx(other.capacities())
    assert one.capacities()["eu"] == pytest.approx(45 * GUESS_SHARE)


def test_who_moved_nothing_believes_those_who_did():
    cables = found(70.0)
    cables.agree("eu", [20.0, 30.0], LINE_MBPS, moves=False)
    assert cables.capacities() == {"eu": 25.0}
    newcomer = Cables()
    newcomer.agree("eu", [20.0], LINE_MBPS, moves=True)
    assert newcomer.capacities() == {"eu": 20.0}
    newcomer.agree("as", [LINE_MBPS + 1], LINE_MBPS, moves=True)  # its own line is the limit
    assert newcomer.capacities() == {"eu": 20.0}


def test_nobody_learns_from_nobody():
    cables = found(60.0)
    before = cables.capacities()
    cables.agree("eu", [], LINE_MBPS, moves=True)
    cables.agree("as", [], LINE_MBPS, moves=True)
    assert cables.capacities() == before
