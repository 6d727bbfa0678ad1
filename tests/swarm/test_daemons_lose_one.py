"""Three real daemons, one killed with SIGKILL in the middle of a round: as contributor, as owner of a span, as leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from ciuic_p2p.core.succession import order_of_succession
from ciuic_p2p.terms import PeerId
from tests.swarm.daemon_kit import FlatTrainer, PeerProcess, daemons, hashes_agree, wait_for

CONSTANTS = {"us": 3.0, "eu": 6.0, "as": 12.0}
VALUES = 1_500_000
LANE_MBPS = 40.0
"""A round moves two thirds of 6 MB each way over four lanes: a quarter of a second."""


def leader_of(epoch: int, peers: list[PeerProcess]) -> PeerProcess:
    by_id = {PeerId(peer.peer_id): peer for peer in peers}
    return by_id[order_of_succession("flat", epoch, by_id)[0]]


def exact_means(survivors: set[str]) -> set[float]:
    """The values that a part may move by: the mean of the survivors, with or without the one that was killed."""
    without = sum(CONSTANTS[name] for name in survivors) / len(survivors)
    return {without, sum(CONSTANTS.values()) / len(CONSTANTS)}


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "contributor and owner"])
def test_a_peer_killed_in_mid_round_costs_the_others_seconds(tmp_path: Path, leads: bool):
    with daemons(tmp_path, *CONSTANTS, lane_mbps=LANE_MBPS) as peers:
        trainers = {peer.name: FlatTrainer(peer, CONSTANTS[peer.name], VALUES) for peer in peers}
        # given: all three take part in every part of a round
        full = sum(CONSTANTS.values()) / 3
        wait_for(lambda: all(t.steps and t.steps[-1].moves == {full} for t in trainers.values()), "all three average")

        # when: the leader of the next round (or another one) dies while the contributions are under way
        epoch = max(trainer.epoch() for trainer in trainers.values())
        leader = leader_of(epoch, peers)
        victim = leader if leads else next(peer for peer in peers if peer is not leader)
        wait_for(lambda: all(t.is_ready.is_set() and t.epoch() == epoch for t in trainers.values()), "all are in the round", 20)
        victim.kill()

        # then: the others finish this round and go on, with equal hashes and exact means
        others = [trainer for name, trainer in trainers.items() if name != victim.name]
        for trainer in others:
            trainer.reach(epoch + 4)
        assert hashes_agree(*trainers.values()) >= 4
        allowed = exact_means({name for name in CONSTANTS if name != victim.name})
        for trainer in others:
            disturbed = [step for step in trainer.steps if step.epoch > epoch]
            assert [step.epoch for step in disturbed] == list(range(epoch + 1, epoch + 1 + len(disturbed))), (
                "an epoch is missing"
            )
            assert all(step.counted for step in disturbed)
            assert all(step.moves <= allowed for step in disturbed), disturbed
            assert disturbed[-1].moves == {min(allowed - {full})} or disturbed[-1].moves == allowed - {full}
        rounds = next(peer for peer in peers if peer is not victim).view("rounds")
        assert any(victim.name in row["lost"] for row in rounds if row["epoch"] >= epoch)
        for trainer in others:
            trainer.end()
