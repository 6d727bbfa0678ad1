"""Seeded histories of a simulated swarm: what befalls it, and how it is judged. One seed, one history, always the same.

`disturbed` draws deaths, freezes and torn sessions at random; `leaderless` lets the leader die in a state of the round that is
named. Then all is quiet, and the invariants must hold.
"""

from __future__ import annotations

import enum
import random

from ciuic_p2p.core.rounds import Round
from ciuic_p2p.terms import PeerId
from ciuic_p2p.testing.invariants import require_invariants, require_progress
from ciuic_p2p.testing.sim import SimPeer, SimSwarm, Ways
from ciuic_p2p.testing.ways import in_any_way

SAMPLES = 700
"""Of the dataset that all read: some rounds use it once."""
SEEDS_A_DATASET = 4
"""In one of so many histories trainers read it by leases."""
QUIET_S = 45.0
"""In which a swarm of a few peers comes to rest, and then some."""
EPOCHS_IN_QUIET = 3
"""That it has to end in that time, at least."""


def disturbed(
    seed: int,
    *,
    peers: int,
    seconds: float,
    disturbances: int,
    count: int = 6000,
    ways: Ways | None = None,
) -> SimSwarm:
    """Random deaths (some come back, with or without their state), freezes and torn sessions; then quiet."""
    swarm = SimSwarm(seed, count=count, ways=ways, dataset=_dataset_of(seed))
    rng = random.Random(seed * 7919 + 1)  # noqa: S311  a simulation wants a seed, not secrecy
    names = [PeerId(f"p{i:03}") for i in range(peers)]
    for name in names:
        swarm.add(name, step_s=rng.uniform(0.5, 1.5))
    for _ in range(disturbances):
        at = rng.uniform(2.0, seconds)
        name, other = rng.sample(names, 2)
        kind = rng.choice(["kill", "freeze", "tear", "tear"])

        def act(kind: str = kind, name: PeerId = name, other: PeerId = other, again: float = rng.uniform(1, 10)) -> None:
            if not swarm.peers[name].alive or swarm.peers[name].frozen or len(swarm.living()) < 3:
                return
            if kind == "kill":
                keep = swarm.rng.random() < 0.5
                swarm.kill(name)
                swarm.at(swarm.now + again, lambda: _revive(swarm, name, with_state=keep))
            elif kind == "freeze":
                swarm.freeze(name, again)
            elif swarm.peers[other].alive and not swarm.peers[other].frozen:
                swarm.tear(name, other)

        swarm.at(at, act)
    swarm.run_until(seconds)
    return swarm


def _dataset_of(seed: int) -> int:
    return 0 if seed % SEEDS_A_DATASET else SAMPLES


def _revive(swarm: SimSwarm, name: PeerId, *, with_state: bool) -> None:
    if not swarm.peers[name].alive:
        swarm.restart(name, with_state=with_state)


# -- a leader's death --------------------------------------------------------------------------------------------------


class LeaderState(enum.Enum):
    """Where a leader's round can stand."""

    PLANNED = "its plan is out, and nobody is ready"
    CONTRIBUTING = "some are ready"
    COLLECTING = "all are ready, no result is here"
    PUBLISHING = "some results are here"
    FINISHED = "it has all results, others have not"
    FENCED = "it asked for reports after a loss"
    REPAIRED = "it gave parts of the lost to others"


AFTER_A_LOSS = (LeaderState.FENCED, LeaderState.REPAIRED)
SEARCH_S = 30.0
"""In which a leader gets into any of these states, where it ever does."""


def leader_state(current: Round) -> LeaderState:
    """Of the leader's own machine."""
    if current.finished:
        return LeaderState.FINISHED
    if current.repaired:
        return LeaderState.REPAIRED
    if current.term > current.plan.term:
        return LeaderState.FENCED
    if not current.samples:
        return LeaderState.PLANNED
    if any(peer not in current.samples for peer in current.members()):
        return LeaderState.CONTRIBUTING
    return LeaderState.PUBLISHING if current.resolved else LeaderState.COLLECTING


def leaderless(seed: int, state: LeaderState, *, peers: int = 5, ways: Ways | None = None) -> tuple[SimSwarm, bool]:
    """A leader dies as soon as its round stands there, and later comes back, with or without its state.

    For states after a loss another member dies first. The second value: whether the state was found.
    """
    rng = random.Random(seed * 6151 + 3)  # noqa: S311  a simulation wants a seed, not secrecy
    swarm = SimSwarm(seed, ways=ways, dataset=_dataset_of(seed))
    for number in range(peers):
        swarm.add(f"p{number:03}", step_s=rng.uniform(0.5, 1.5))
    swarm.run_until(rng.uniform(5.0, 9.0))
    if state in AFTER_A_LOSS:
        first = rng.choice((LeaderState.CONTRIBUTING, LeaderState.COLLECTING, LeaderState.PUBLISHING))
        leader = _wait_for(swarm, first)
        if leader is not None:
            _kill_for_a_while(swarm, rng.choice([p for p in swarm.living() if p is not leader]), rng)
    leader = _wait_for(swarm, state)
    if leader is not None:
        _kill_for_a_while(swarm, leader, rng)
    return swarm, leader is not None


def _wait_for(swarm: SimSwarm, state: LeaderState) -> SimPeer | None:
    """The leader whose round has got there, at the very moment."""
    until_s = swarm.now + SEARCH_S
    while swarm.now < until_s:
        swarm.agenda.do_next()
        for peer in swarm.living():
            if any(
                r.leader == peer.name and leader_state(r) is state for r in peer.machine.rounds.values() if _is_open(swarm, r)
            ):
                return peer
    return None


def _is_open(swarm: SimSwarm, current: Round) -> bool:
    """Whether any living peer has not finished that round."""
    rounds = [peer.machine.rounds.get(current.plan.epoch) for peer in swarm.living()]
    return any(one is not None and one.plan.term == current.plan.term and not one.finished for one in rounds)


def _kill_for_a_while(swarm: SimSwarm, peer: SimPeer, rng: random.Random) -> None:
    keep, again_s = rng.random() < 0.5, rng.uniform(1.0, 10.0)
    swarm.kill(peer.name)
    swarm.at(swarm.now + again_s, lambda: _revive(swarm, peer.name, with_state=keep))


# -- judged ------------------------------------------------------------------------------------------------------------


def require_recovery(swarm: SimSwarm) -> None:
    """Raises AssertionError unless the swarm comes to rest, goes on, and has kept every invariant."""
    before = max((peer.state.epoch for peer in swarm.living() if peer.state is not None), default=0)
    swarm.run_until(swarm.now + QUIET_S)
    require_invariants(swarm)
    require_progress(swarm, before + EPOCHS_IN_QUIET)


def live_through(seed: int) -> str:
    """One history, of a kind that follows from the seed: every third time a leader's death, of each state in turn; every other
    one of a swarm whose plans go any way, in groups and in rings too.

    Returns what kind it was; raises AssertionError when anything does not hold.
    """
    ways, name = (in_any_way, "any_way") if seed // 3 % 2 else (None, "butterfly")
    if seed % 3:
        require_recovery(disturbed(seed, peers=5, seconds=25, disturbances=5, ways=ways))
        return f"disturbed_{name}"
    state = list(LeaderState)[seed // 6 % len(LeaderState)]
    swarm, is_found = leaderless(seed, state, ways=ways)
    require_recovery(swarm)
    return f"leader_{state.name.lower()}_{name}" if is_found else f"no_leader_{state.name.lower()}_{name}"
