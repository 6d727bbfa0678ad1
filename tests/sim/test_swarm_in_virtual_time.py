"""The run machines in virtual time: seeded deaths, freezes, torn sessions. What must hold is written in core/rounds.py."""

from __future__ import annotations

import pytest

from ciuic_p2p.core.messages import Plan
from ciuic_p2p.core.topology import Link, Place
from ciuic_p2p.testing.histories import LeaderState, disturbed, leaderless, live_through, require_recovery
from ciuic_p2p.testing.invariants import require_invariants, require_same_states
from ciuic_p2p.testing.sim import RandomLatency, SimPeer, SimSwarm, Ways
from ciuic_p2p.testing.ways import in_a_ring, in_any_way, in_groups


def in_pairs(plan: Plan) -> Plan:
    return in_groups(plan, 2)


def test_three_peers_that_start_together_become_one_run():
    swarm = SimSwarm(1)
    for name in ("a", "b", "c"):
        swarm.add(name)

    swarm.run_until(30)

    peers = require_invariants(swarm)
    assert min(p.state.epoch for p in peers) >= 15
    last = peers[0].state.history[-1]
    assert all({name for name, _, _ in part} == {"a", "b", "c"} for part in last)


@pytest.mark.parametrize("ways", [in_pairs, in_a_ring], ids=["pairs", "ring"])
def test_whatever_the_ways_everyone_is_in_every_part(ways: Ways):
    swarm = SimSwarm(1, ways=ways)
    for name in "abcde":
        swarm.add(name)

    swarm.run_until(30)

    peers = require_invariants(swarm)
    assert min(p.state.epoch for p in peers) >= 15
    for step in peers[0].state.history[-5:]:
        assert all({name for name, _, _ in part} == set("abcde") for part in step)


def test_a_peer_alone_trains_on_alone():
    swarm = SimSwarm(1)
    peer = swarm.add("a")
    swarm.run_until(10)
    assert peer.state.epoch >= 7


def test_a_newcomer_has_weight_0_in_its_first_round_and_then_takes_part():
    swarm = SimSwarm(3)
    for name in ("a", "b"):
        swarm.add(name)
    swarm.at(10, lambda: swarm.add("c"))
    swarm.run_until(12.9)
    entered = swarm.peers["c"].state

    swarm.run_until(30)

    peers = require_invariants(swarm)
    assert entered is not None
    assert {p.name for p in peers} == {"a", "b", "c"}
    assert all(p.state.epoch >= 15 for p in peers)
    assert any({n for n, _, _ in part} == {"a", "b", "c"} for part in peers[0].state.history[-2])


@pytest.mark.parametrize("ways", [None, in_pairs, in_a_ring], ids=["butterfly", "pairs", "ring"])
@pytest.mark.parametrize("when", [5.0 + 0.05 * i for i in range(24)])
def test_a_death_at_any_moment_costs_seconds_not_the_round(when: float, ways: Ways | None):
    for victim in "abc" if ways is None else "abcd":
        swarm = SimSwarm(7, ways=ways)
        for name in ("a", "b", "c") if ways is None else ("a", "b", "c", "d"):
            swarm.add(name)
        swarm.run_until(when)
        epoch = min(p.state.epoch for p in swarm.living())
        swarm.kill(victim)

        swarm.run_until(when + 6)

        peers = require_invariants(swarm)
        assert min(p.state.epoch for p in peers) >= epoch + 3
        assert all(p.left_rounds == 0 for p in peers)


def test_a_frozen_peer_is_left_behind_and_comes_back():
    swarm = SimSwarm(11)
    for name in ("a", "b", "c"):
        swarm.add(name)
    swarm.at(5.5, lambda: swarm.freeze("b", 8))
    swarm.run_until(13)
    epochs = [swarm.peers[n].state.epoch for n in ("a", "c")]

    swarm.run_until(40)

    peers = require_invariants(swarm)
    assert min(epochs) >= 6
    assert {p.name for p in peers} == {"a", "b", "c"}
    assert max(p.state.epoch for p in peers) - min(p.state.epoch for p in peers) <= 1
    assert {n for n, _, _ in peers[0].state.history[-2][0]} == {"a", "b", "c"}


def test_a_slow_peer_is_excused_and_its_work_enters_a_later_round():
    swarm = SimSwarm(5)
    for name in ("a", "b"):
        swarm.add(name)
    swarm.add("slow", step_s=9.0)

    swarm.run_until(80)

    peers = require_invariants(swarm)
    epochs = peers[0].state.epoch
    with_slow = sum(1 for step in peers[0].state.history if any(n == "slow" for n, _, _ in step[0]))
    assert epochs >= 12
    assert with_slow >= 4


def test_a_trainer_that_dies_is_not_waited_for():
    swarm = SimSwarm(6)
    for name in ("a", "b", "c"):
        swarm.add(name)
    swarm.run_until(6.2)
    before = swarm.peers["a"].state.epoch
    swarm.detach("b")
    swarm.run_until(15)
    peers = require_invariants(swarm)
    assert swarm.peers["b"].state.epoch >= before + 5, "the daemon keeps its replica without a trainer"
    assert {n for n, _, _ in peers[0].state.history[-1][0]} <= {"a", "c"}


def test_a_round_in_which_nobody_contributes_changes_nothing():
    swarm = SimSwarm(6)
    for name in ("a", "b"):
        swarm.add(name)
    swarm.run_until(6.2)
    for name in ("a", "b"):
        swarm.detach(name)
    swarm.run_until(6.5)
    before = [p.state.state_hash() for p in swarm.living()]

    swarm.run_until(60)

    assert [p.state.state_hash() for p in require_invariants(swarm)] == before


@pytest.mark.parametrize("end", ["detach", "kill"])
@pytest.mark.parametrize("when", [10.2 + 0.15 * i for i in range(24)])
def test_a_listener_goes_on_alone_when_all_it_listened_to_stop(when: float, end: str):
    swarm = SimSwarm(9)
    for name in ("a", "b"):
        swarm.add(name)
    swarm.at(10, lambda: swarm.add("c"))
    swarm.run_until(when)
    for name in ("a", "b"):
        getattr(swarm, end)(name)

    swarm.run_until(when + 60)

    peers = require_invariants(swarm)
    assert swarm.peers["c"].state.epoch >= 20
    assert max(p.state.epoch for p in peers) - min(p.state.epoch for p in peers) <= 1


WAYS = pytest.mark.parametrize("ways", [None, in_any_way], ids=["butterfly", "any-way"])


@WAYS
@pytest.mark.parametrize("block", range(10))
def test_500_seeded_histories_keep_the_invariants(block: int, ways: Ways | None):
    for seed in range(block * 25, block * 25 + 25):
        try:
            require_recovery(disturbed(seed, peers=4 if ways is None else 5, seconds=25, disturbances=5, ways=ways))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@WAYS
@pytest.mark.parametrize("state", LeaderState)
def test_a_leaders_death_in_any_state_of_its_round_is_lived_through(state: LeaderState, ways: Ways | None):
    found = 0
    for seed in range(6):
        swarm, is_found = leaderless(seed, state, ways=ways)
        require_recovery(swarm)
        found += is_found
    assert found >= 3, f"{state.name} was reached {found} times"


def test_100_peers_with_deaths_and_freezes():
    swarm = disturbed(1, peers=100, seconds=12, disturbances=30, count=60_000)
    swarm.run_until(30)
    peers = require_invariants(swarm)
    epochs = [p.state.epoch for p in peers]
    assert len(peers) >= 95
    assert max(epochs) - min(epochs) <= 1
    assert min(epochs) >= 5


def test_every_round_says_by_which_link_its_codec_was_chosen():
    # given two peers that have measured nothing yet
    swarm = SimSwarm(5, codec="auto")
    first, second = swarm.add("a"), swarm.add("b")
    swarm.run_until(5)
    unmeasured = plan_of(first)
    assert (unmeasured.codec, unmeasured.lossless_level) == ("int4", 0)
    assert unmeasured.reason.startswith("auto: int4 until all links are measured; ")

    # when both know of the link between them, which then gets faster than any codec, and slow again
    chosen = []
    for seconds, mbps in ((10, 18.0), (15, 60_000.0), (20, 38_000.0), (25, 18.0)):
        for peer in (first, second):
            peer.machine.links = {(first.name, second.name): Link(90.0, 1.0, mbps)}
            peer.machine.places = {first.name: Place("us1", "us"), second.name: Place("eu1", "eu")}
        swarm.run_until(seconds)
        require_invariants(swarm)
        plan, other = plan_of(first), plan_of(second)  # one of them may be an epoch ahead
        assert (plan.codec, plan.lossless_level) == (other.codec, other.lossless_level)
        assert plan.reason.partition("; ")[0] == other.reason.partition("; ")[0]  # the rest is each leader's experience
        assert f"at {mbps:.0f} Mbit/s from us1 to eu1 " in plan.reason
        chosen.append((plan.codec, plan.lossless_level))

    # then each plan carries what its link asks for, and near a border what it was
    assert chosen == [("int4", 3), ("float16", 0), ("float16", 0), ("int4", 3)]


def test_the_codec_of_the_leader_counts_whatever_the_others_ask_for():
    swarm = SimSwarm(5)
    peers = [swarm.add("a", codec="source"), swarm.add("b", codec="int8")]
    for peer in peers:
        peer.machine.links = {(peers[0].name, peers[1].name): Link(90.0, 1.0, 20.0)}

    codecs: dict[str, set[str]] = {"a": set(), "b": set()}
    for tenth in range(30, 300):
        swarm.run_until(tenth / 10)
        for plan in map(plan_of, peers):
            codecs[plan.contributors[0]].add(plan.codec)

    require_invariants(swarm)
    assert codecs == {"a": {"onebit"}, "b": {"int8"}}


def plan_of(peer: SimPeer) -> Plan:
    """Of the newest round that it knows."""
    return peer.machine.rounds[max(peer.machine.rounds)].plan


def test_a_run_follows_its_cables_and_learns_how_wrong_the_model_is():
    swarm = SimSwarm(3, count=400_000)
    regions = {"us1": "us", "us2": "us", "eu1": "eu", "eu2": "eu"}
    peers = [swarm.add(name) for name in regions]
    measured = {"lines_mbps": dict.fromkeys(regions, 100.0), "places": {p: Place(p, r) for p, r in regions.items()}}
    narrow = {("us", "eu"): 5.0, ("eu", "us"): 5.0}

    def topologies(cables_mbps: dict[tuple[str, str], float], until_s: float) -> list[str]:
        for peer in peers:
            peer.machine.lines_mbps, peer.machine.places = measured["lines_mbps"], measured["places"]
            peer.machine.cables_mbps = cables_mbps
        found = []
        while swarm.now < until_s:
            swarm.run_until(swarm.now + 0.25)
            found.append(peers[0].machine.current_round())
        return [current.plan.topology for current in found if current is not None]

    assert topologies({}, 10)[-1] == "butterfly"
    assert topologies(narrow, 20)[-1] == "hierarchical"
    require_invariants(swarm)
    for step in peers[0].state.history[-5:]:
        assert all({name for name, _, _ in part} == set(regions) for part in step)
    current = peers[0].machine.current_round()
    # Virtual lines carry everything at once: rounds take no longer than their messages.
    assert current.plan.correction < 1
    ratios = peers[0].machine.correction.ratios
    assert {topology for topology, _ in ratios} == {"butterfly", "hierarchical"}
    assert max(ratio for topology, ratio in ratios if topology == "hierarchical") < 1
    # Over wide cables there is nothing to save by a way that is twice as long.
    assert topologies(dict.fromkeys(narrow, 1000.0), 30)[-1] == "butterfly"


@pytest.mark.parametrize("seed", range(20))
def test_halves_that_lose_each_other_train_on_and_become_one_run_again(seed: int):
    # given a swarm of which two peers cannot reach the other three for a while
    swarm = SimSwarm(seed, ways=in_any_way)
    for name in "abcde":
        swarm.add(name)
    swarm.run_until(10)
    swarm.part("ab", 30)
    swarm.run_until(39)

    # then both go on meanwhile, each with a state of its own
    halves = [[swarm.peers[name] for name in names] for names in ("ab", "cde")]
    fork = [min(peer.state.epoch for peer in half) for half in halves]
    assert all(epoch >= 25 for epoch in fork)
    for half in halves:
        assert {n for n, _, _ in half[0].state.history[-1][0]} == {peer.name for peer in half}
    smaller, larger = sorted(halves, key=lambda half: half[0].state.samples)
    ahead = larger[0].state.history[: fork[halves.index(larger)] - 1]

    # when they meet again, then the state with more samples goes on, for all,
    swarm.run_until(60)
    peers = require_invariants(swarm)
    assert len(peers) == 5
    assert max(p.state.epoch for p in peers) - min(p.state.epoch for p in peers) <= 1
    assert all(peer.state.history[: len(ahead)] == ahead for peer in peers)
    assert {n for n, _, _ in peers[0].state.history[-2][0]} == set("abcde")
    # and the others say how much they gave up.
    for peer in smaller:
        theirs = {c for step in peer.state.history for result in step for c in result}
        assert peer.given_up_samples > 0
        assert {n for n, _, _ in theirs} == set("abcde")
    assert all(peer.given_up_samples == 0 for peer in larger)


def test_a_peer_that_was_only_behind_gives_up_one_round_at_most():
    swarm = SimSwarm(3)
    for name in "abc":
        swarm.add(name)
    swarm.at(10, lambda: swarm.freeze("c", 20))
    swarm.run_until(60)
    require_invariants(swarm)
    assert [swarm.peers[name].given_up_samples for name in "ab"] == [0, 0]
    assert swarm.peers["c"].given_up_samples < 50, "more than the one round that it ended alone when it woke"


@pytest.mark.parametrize("seed", [39, 148, 149, 155, 194])
def test_a_plan_that_comes_when_its_epoch_has_ended_does_not_begin_it_again(seed: int):
    """A peer alone and one that is about to catch up each plan the same epoch: slow messages let the lone one end it first."""
    swarm = SimSwarm(seed)
    swarm.between = RandomLatency(swarm.agenda, swarm.rng, (1.0, 3.2))
    swarm.add("a", step_s=0.01 if seed % 2 else 1.0)
    swarm.at(0.5 + seed * 0.037 % 3, lambda: swarm.add("b", step_s=0.01))

    longest_s = longest_standstill_s(swarm, 60.0)

    require_same_states(swarm.living())
    assert [p.left_rounds for p in swarm.living()] == [0, 0]
    assert longest_s <= 15


def test_a_part_of_the_lost_that_all_hold_does_not_keep_the_leader_from_reminding():
    """p002 dies when all have its part's result and one contribution to another part was lost on its way."""
    live_through(38)


@pytest.mark.parametrize("seed", [4513, 5489])
def test_one_that_freezes_twice_shortly_is_not_given_up_for_both_together(seed: int):
    """The simulated peers were, and never met it again."""
    live_through(seed)


def longest_standstill_s(swarm: SimSwarm, until_s: float) -> float:
    """In which some peer that had a state stayed at its epoch."""
    longest_s, since_s = 0.0, {}
    while swarm.now < until_s:
        swarm.run_until(swarm.now + 0.25)
        for peer in swarm.living():
            if peer.state is not None:
                began_s = since_s.setdefault((peer.name, peer.state.epoch), swarm.now)
                longest_s = max(longest_s, swarm.now - began_s)
    return longest_s


def test_a_plan_made_while_the_state_was_on_its_way_is_dropped() -> None:
    """A peer planned an epoch alone while it fetched others' state of the same epoch; with that state nobody could end it."""
    live_through(9937)
