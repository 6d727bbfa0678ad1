"""What must hold of a simulated swarm whatever happened to it: the invariants of core/rounds.py, over symbolic values.

Each check raises AssertionError that says what does not hold.
"""

from __future__ import annotations

from ciuic_p2p.data.positions import Positions
from ciuic_p2p.data.slots import NO_SLOTS
from ciuic_p2p.testing.sim import DATASET, Contribution, SimPeer, SimState, SimSwarm

RECENT_S = 15.0
"""Who fell so shortly before a round's end may or may not be in it."""


def require_invariants(swarm: SimSwarm) -> list[SimPeer]:
    """After a swarm had time to come to rest. Returns the living."""
    peers = swarm.living()
    require_whole_lineages(swarm, peers)
    require_single_use_of_samples(swarm, peers)
    require_same_states(peers)
    return peers


def require_progress(swarm: SimSwarm, least_epoch: int) -> None:
    """All the living are in one epoch, or in two that follow each other, and have got as far as that."""
    epochs = [_state_of(peer).epoch for peer in swarm.living()]
    assert max(epochs) - min(epochs) <= 1, f"the living have drifted apart: epochs {epochs}"
    assert min(epochs) >= least_epoch, f"stuck at epochs {epochs}, wanted {least_epoch}"


def require_whole_lineages(swarm: SimSwarm, peers: list[SimPeer]) -> None:
    """No contribution counted twice, in one part or in two epochs; each survivor's in every part.

    Epochs are neither skipped nor repeated by construction: a state is the list of its epochs' results.
    """
    for peer in peers:
        state = _state_of(peer)
        _require_single_use(state)
        for epoch, (action, finished_s) in peer.finished.items():
            fell = {name for when, name in swarm.disturbed if finished_s - RECENT_S < when <= finished_s}
            survivors = {(name, samples) for name, samples in action.contributors if samples > 0 and name not in fell}
            for result in state.history[epoch]:
                counted = {(name, samples) for name, _, samples in result}
                assert survivors <= counted, "a survivor's contribution is missing in a part"


def require_single_use_of_samples(swarm: SimSwarm, peers: list[SimPeer]) -> None:
    """A sample is in one contribution of a pass at most; the state says which are used, and only the living hold the rest.

    Of one who was lost, and whose contribution is in some parts of a result, the report decides.
    """
    living = {peer.name for peer in swarm.living()}
    for peer in peers:
        state = _state_of(peer)
        used = NO_SLOTS
        for reported in state.reported:
            for contribution in reported:
                for each in swarm.reports[contribution]:
                    assert not (each.slots & used).count, f"{contribution} was trained on what others had used"
                    used |= each.slots
        ledger = state.ledgers.find(DATASET)
        if ledger is not None:
            assert {holder for holder, _ in ledger.held} <= living, "one that is gone holds samples"
            assert Positions(count=swarm.dataset).using(used) == ledger.positions, "the state forgot, or made up, what is used"
        else:
            assert not used.count


def require_same_states(peers: list[SimPeer]) -> None:
    """Who stands at the same epoch holds the same bytes; and what one has behind it, others have too."""
    states: dict[int, SimState] = {}
    for peer in peers:
        state = _state_of(peer)
        same = states.setdefault(state.epoch, state)
        assert same.state_hash() == state.state_hash(), f"replicas differ at epoch {state.epoch}"
    furthest = max(states.values(), key=lambda state: state.epoch, default=None)
    for state in states.values():
        assert furthest is not None
        assert furthest.history[: state.epoch] == state.history, f"the results up to epoch {state.epoch} differ"


def _require_single_use(state: SimState) -> None:
    counted_before: set[Contribution] = set()
    for step in state.history:
        counted_now = {contribution for result in step for contribution in result}
        assert not counted_now & counted_before, "a contribution entered two epochs"
        counted_before |= counted_now
        for result in step:
            names = [name for name, _, _ in result]
            assert len(names) == len(set(names)), "a peer counted twice in one part"


def _state_of(peer: SimPeer) -> SimState:
    assert peer.state is not None, f"{peer.name} never got a state"
    return peer.state
