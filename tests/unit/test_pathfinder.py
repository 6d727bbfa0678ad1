"""When lanes leave a direct path and come back, and what people are told: with measurements and a clock of the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from ciuic_p2p.core.paths import DIRECT, RELAY, Leg, via
from ciuic_p2p.core.topology import Link
from ciuic_p2p.daemon.neighbours import Neighbours, Transfer
from ciuic_p2p.daemon.pathfinder import DETOUR_S, LEAST_TIMED_BYTES, REST_S, SETTLING_S, Pathfinder
from ciuic_p2p.net.sessions import Sessions
from ciuic_p2p.terms import PeerId

US, EU, ASIA, AFRICA = (PeerId(name) for name in ("id-us", "id-eu", "id-as", "id-af"))
MUCH = Transfer(timed_bytes=10 * LEAST_TIMED_BYTES, burst_bytes=LEAST_TIMED_BYTES)
BURST = LEAST_TIMED_BYTES


@dataclass
class Surroundings:
    """Of US, who has direct sessions with all and dials the lanes to EU."""

    mbps: dict[tuple[PeerId, PeerId], float]
    path: str = DIRECT
    transfer: Transfer = MUCH
    steered: list[PeerId | None] = field(default_factory=list)
    steerable: set[PeerId] = field(default_factory=lambda: {EU})
    limit_mbps: float | None = 1.0
    """What the direct path could carry."""

    def __post_init__(self) -> None:
        sessions, neighbours = cast(Sessions, PlayedSessions(self)), cast(Neighbours, PlayedNeighbours(self))
        self.finder = Pathfinder(US, sessions, neighbours, name_of, lambda _peer: self.limit_mbps)


def name_of(peer: PeerId) -> str:
    return peer.removeprefix("id-")


@dataclass
class PlayedSessions:
    around: Surroundings

    def connected(self) -> frozenset[PeerId]:
        return frozenset({EU, ASIA, AFRICA})

    def may_steer(self, peer: PeerId) -> bool:
        return peer in self.around.steerable

    def is_direct(self, _peer: PeerId) -> bool:
        return True

    def steer(self, peer: PeerId, forwarder: PeerId | None) -> None:
        assert peer == EU
        self.around.steered.append(forwarder)
        self.around.path = DIRECT if forwarder is None else via(forwarder)


@dataclass
class PlayedNeighbours:
    around: Surroundings

    def links(self) -> dict[tuple[PeerId, PeerId], Link]:
        return {pair: Link(100.0, 1.0, mbps) for pair, mbps in self.around.mbps.items()}

    def legs(self) -> dict[tuple[PeerId, PeerId], Leg]:
        direct = {pair: mbps for pair, mbps in self.around.mbps.items() if self.around.path == DIRECT or set(pair) != {US, EU}}
        return {pair: Leg(rtt_ms=100.0, goodput_mbps=mbps) for pair, mbps in direct.items()}

    def path(self, _source: PeerId, _target: PeerId) -> str:
        return self.around.path

    def transfer(self, _peer: PeerId) -> Transfer:
        return self.around.transfer


def around_us(direct_mbps: float, legs_mbps: float = 80.0, **more: Transfer) -> Surroundings:
    pairs = [(US, ASIA), (ASIA, US), (EU, ASIA), (ASIA, EU)]
    return Surroundings({**dict.fromkeys([(US, EU), (EU, US)], direct_mbps), **dict.fromkeys(pairs, legs_mbps)}, **more)


def test_lanes_leave_a_slow_direct_path_once() -> None:
    around = around_us(5.0)
    for now in (0.0, 2.0, 4.0):
        around.finder.tick(now)
    assert around.steered == [ASIA]
    shown = around.finder.show(around.path, EU)
    assert shown.path == "via as"
    assert "directly (5.0 Mbit/s)" in shown.why
    assert "this way (80.0 Mbit/s, counted as 1/2)" in shown.why


def test_one_slow_direction_is_enough() -> None:
    around = around_us(70.0)
    around.mbps[EU, US] = 3.0
    around.finder.tick(0.0)
    assert around.steered == [ASIA]


def test_lanes_stay_on_a_path_that_is_good_or_that_nobody_has_timed_well() -> None:
    little = Transfer(timed_bytes=LEAST_TIMED_BYTES - 1, burst_bytes=BURST)
    small = Transfer(timed_bytes=LEAST_TIMED_BYTES, burst_bytes=2_000)
    for around in (around_us(60.0), around_us(0.0), around_us(5.0, transfer=little), around_us(5.0, transfer=small)):
        around.finder.tick(0.0)
        assert around.steered == []


def test_who_does_not_dial_the_lanes_leaves_the_choice_to_the_other() -> None:
    around = around_us(5.0)
    around.steerable.clear()
    around.finder.tick(0.0)
    assert around.steered == []
    assert "other peer found it quicker" in around.finder.show(via(ASIA), EU).why


def test_a_detour_that_brings_less_is_left_and_not_taken_again_soon() -> None:
    around = around_us(5.0)
    around.finder.tick(0.0)
    around.mbps[EU, US] = 4.0
    around.finder.tick(SETTLING_S)  # what is reported may still be of the direct path
    assert around.steered == [ASIA]
    around.finder.tick(SETTLING_S + 1)
    assert around.steered == [ASIA, None]
    left_at = SETTLING_S + 1
    around.mbps[EU, US] = 5.0
    around.finder.tick(left_at + REST_S - 1)
    assert around.steered == [ASIA, None]
    around.finder.tick(left_at + REST_S)
    assert around.steered == [ASIA, None, ASIA]


def test_a_detour_that_failed_by_itself_is_not_taken_again_soon() -> None:
    around = around_us(5.0)
    around.finder.tick(0.0)
    around.path = DIRECT  # the third peer refused, or went
    around.finder.tick(2.0)
    around.finder.tick(2.0 + REST_S - 1)
    assert around.steered == [ASIA]
    around.finder.tick(2.0 + REST_S)
    assert around.steered == [ASIA, ASIA]
    around.path = DIRECT
    around.finder.tick(100.0)
    around.finder.tick(100.0 + 2 * REST_S - 1)  # twice as long now
    assert around.steered == [ASIA, ASIA]


def test_the_direct_path_is_looked_at_again_less_and_less_often() -> None:
    around = around_us(5.0)
    around.finder.tick(0.0)
    around.finder.tick(DETOUR_S - 1)
    assert around.steered == [ASIA]
    around.finder.tick(DETOUR_S)
    assert around.steered == [ASIA, None]

    # when it is as bad as before, then the next detour lasts twice as long
    around.finder.tick(DETOUR_S + 1)
    assert around.steered == [ASIA, None, ASIA]
    around.finder.tick(DETOUR_S + 1 + 2 * DETOUR_S - 1)
    assert around.steered == [ASIA, None, ASIA]
    around.finder.tick(DETOUR_S + 1 + 2 * DETOUR_S)
    assert around.steered == [ASIA, None, ASIA, None]

    # and when it has become good, it is kept
    around.mbps |= {(US, EU): 50.0, (EU, US): 50.0}
    around.finder.tick(10 * DETOUR_S)
    assert around.steered == [ASIA, None, ASIA, None]


def test_the_quickest_third_peer_is_asked_first_and_those_of_which_nothing_is_known_last() -> None:
    around = Surroundings({(US, ASIA): 10.0, (ASIA, EU): 10.0, (US, AFRICA): 90.0, (AFRICA, EU): 40.0})
    unknown = PeerId("id-new")
    assert around.finder.order(EU, [unknown, ASIA, AFRICA]) == [AFRICA, ASIA, unknown]
    assert around.finder.order(EU, [ASIA]) == [ASIA]
    assert around.finder.order(EU, []) == []


def test_every_path_has_a_reason() -> None:
    around = around_us(50.0)
    assert [around.finder.show(path).path for path in (DIRECT, RELAY, via(ASIA))] == ["direct", "relay", "via as"]
    assert all(around.finder.show(path).why for path in (DIRECT, RELAY, via(ASIA)))


def test_a_path_over_which_a_round_has_little_to_send_is_no_slow_path() -> None:
    around = around_us(5.0)
    around.limit_mbps = None
    around.finder.tick(1000.0)
    assert around.steered == []


def test_a_path_that_could_carry_more_than_came_over_it_is_judged_by_that() -> None:
    around = around_us(5.0)
    around.limit_mbps = 60.0
    around.finder.tick(1000.0)
    assert around.steered == []
