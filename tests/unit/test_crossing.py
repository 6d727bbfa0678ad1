"""core/crossing.py: whose part of a cable is how large, by what the peers of a region tell each other."""

from __future__ import annotations

import pytest

from ciuic_p2p.core.cables import SURE_WINDOWS, CrossingFlow
from ciuic_p2p.core.crossing import Crossing, crossings_of, share_of_cable
from ciuic_p2p.core.messages import HIERARCHICAL, MOST_WAYS, Plan, Span, Way
from ciuic_p2p.core.pacing import GUESS_SHARE, FlowWindow
from ciuic_p2p.terms import PeerId, StateHash

LINE_MBPS = 400.0
EU0, EU1, US0, US1, US2 = (PeerId(name) for name in ("eu0", "eu1", "us0", "us1", "us2"))


def region_of(peer: PeerId) -> str:
    return peer.rstrip("0123456789")


def a_round() -> Plan:
    """Of two regions of two, every peer of which owns a quarter."""
    contributors = (US0, EU0, US1, EU1)
    spans = tuple(
        Span(owner=owner, start=100 * place, stop=100 * (place + 1), carriers=carriers)
        for place, (owner, carriers) in enumerate(zip(contributors, [(0, 1), (0, 1), (2, 3), (2, 3)], strict=True))
    )
    return Plan(
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


def full(mbps: float) -> list[CrossingFlow]:
    moved = int(mbps * 0.5 / 8e-6)
    window = FlowWindow(seconds=0.5, sent_bytes=moved, busy_s=0.5, retransmitted_bytes=0, received_bytes=0)
    return [CrossingFlow(window, 300.0)]


def way(region: str, mbps: float, moved_mbps: float, *, waits: bool) -> Way:
    return Way(region=region, mbps=mbps, moved_mbps=moved_mbps, waits=waits)


def test_what_crosses_in_a_round():
    # each sends its region's sums for half of theirs, and the results of what it owns, across.
    assert crossings_of(a_round(), "us", region_of) == {"eu": {US0: 200, US1: 200}}
    assert crossings_of(a_round(), "unknown", region_of) == {}


def test_each_takes_its_part_by_what_the_round_has_it_send():
    crossing_values = {US0: 300, US1: 100}
    assert share_of_cable(crossing_values, [US1], US0) == 0.75
    assert share_of_cable(crossing_values, [], US0) == 1.0  # the other has sent all
    assert share_of_cable(crossing_values, [US0, US1], US2) == pytest.approx(200 / 600)  # a donor of a state
    assert share_of_cable({}, [US1], US0) == 0.5


@pytest.mark.parametrize("mbps", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_way_of_an_impossible_rate_is_refused(mbps: float):
    with pytest.raises(ValueError, match="impossible"):
        Way(region="eu", mbps=mbps, moved_mbps=0.0, waits=False)
    with pytest.raises(ValueError, match="impossible"):
        Way(region="eu", mbps=0.0, moved_mbps=mbps, waits=False)


def test_the_others_of_a_round_have_their_part_until_they_say_that_they_sent_it():
    # given a peer that has said, before the round, that it sends nothing,
    crossing = Crossing(US0, region_of)
    crossing.told(US1, (way("eu", 0.0, 0.0, waits=False),))
    assert crossing.share_of("eu") == 1.0

    crossing.round_opened(a_round())
    assert crossing.share_of("eu") == 0.5
    crossing.told(EU0, ())  # another region's word changes nothing
    assert crossing.share_of("eu") == 0.5

    crossing.told(US1, (way("eu", 0.0, 25.0, waits=True),))
    assert crossing.share_of("eu") == 0.5
    crossing.told(US1, (way("eu", 0.0, 25.0, waits=False),))
    assert crossing.share_of("eu") == 1.0
    crossing.told(US1, (way("eu", 0.0, 0.0, waits=True),))
    assert crossing.share_of("eu") == 0.5
    crossing.forget(US1)
    assert crossing.share_of("eu") == 1.0


def test_what_the_others_move_is_of_the_cable_too():
    crossing = Crossing(US0, region_of)
    crossing.round_opened(a_round())
    crossing.told(US1, (way("eu", 0.0, 30.0, waits=True),))
    for _ in range(SURE_WINDOWS):
        crossing.judge({"eu": full(20.0)}, LINE_MBPS, 20.0)
    assert crossing.capacities() == {"eu": pytest.approx(GUESS_SHARE * 50.0)}
    assert crossing.limits({EU0: 3, EU1: 1}, region_of) == pytest.approx({EU0: 0.375 * 60.0, EU1: 0.125 * 60.0})
    (said,) = crossing.ways()
    assert (said.region, said.mbps, said.moved_mbps) == ("eu", pytest.approx(60.0), pytest.approx(20.0))
    assert crossing.cables_mbps() == {("us", "eu"): pytest.approx(60.0)}


def test_a_neighbours_cable_is_believed_and_a_strangers_is_not():
    crossing = Crossing(US0, region_of)
    crossing.told(US1, (way("eu", 50.0, 50.0, waits=True), way("us", 1.0, 1.0, waits=True)))
    crossing.told(EU0, (way("us", 40.0, 40.0, waits=True), way("as", 7.0, 7.0, waits=True)))
    crossing.judge({}, LINE_MBPS, 0.0)
    assert crossing.capacities() == {"eu": 50.0}
    assert crossing.comes_over_a_cable(EU0)
    assert not crossing.comes_over_a_cable(US1)
    assert not crossing.comes_over_a_cable(US2)


def test_only_a_change_of_what_waits_is_news():
    crossing = Crossing(US0, region_of)
    assert crossing.now_waits(["eu", "us", "unknown", "eu"])
    assert crossing.ways() == (way("eu", 0.0, 0.0, waits=True),)
    assert not crossing.now_waits(["eu"])
    assert crossing.now_waits([])


def test_peers_without_a_region_share_no_cable():
    crossing = Crossing(PeerId("7"), lambda _: "unknown")
    crossing.told(US1, (way("eu", 50.0, 50.0, waits=True),))
    for _ in range(SURE_WINDOWS):
        crossing.judge({"unknown": full(20.0)}, LINE_MBPS, 20.0)
    assert crossing.capacities() == {}
    assert crossing.neighbours() == []


def test_made_up_regions_fill_neither_memory_nor_messages() -> None:
    # given a neighbour that tells of other regions in every window
    crossing = Crossing(EU0, region_of)
    for window in range(8):
        crossing.told(EU1, tuple(way(f"r{window}-{number}", 100.0, 100.0, waits=False) for number in range(200)))
        crossing.judge({"us": full(80.0)}, LINE_MBPS, 80.0)
    # then what this peer tells fits a message, and what it sends itself is in it
    told = crossing.ways()
    assert len(told) <= MOST_WAYS // 2
    assert "us" in {each.region for each in told}


def test_a_way_to_what_is_no_region_is_refused() -> None:
    with pytest.raises(ValueError, match="no region"):
        way("r" * 33, 1.0, 1.0, waits=False)
