"""Three daemons train; one is killed in the middle of a round. The two others end that round, and every later one, alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemon_kit import PeerProcess, daemons, wait_for
from trainer_kit import PARTS, RUN, TrainerProcess, assert_same_hashes, mean_of, means_with, train_together

from ciuic_p2p.core.succession import order_of_succession

VALUES = 2_000_000
CONTRIBUTION_BYTES = 4 * VALUES * 2 // 3
"""That each of three contributors sends to the owners of the two thirds that are not its own; as much again are its results."""

SLOW = {"CIUIC_LANE_MBPS": "40", "CIUIC_PROBE_PERIOD_S": "0.5"}
"""So that a round lasts over a second, its middle cannot be missed, and a death is noticed in less than two."""


@pytest.mark.parametrize(
    ("place", "sent_share"),
    [
        pytest.param(1, 0.25, id="contributor"),
        pytest.param(1, 1.25, id="owner"),
        pytest.param(0, 0.25, id="leader"),
    ],
)
def test_the_others_end_the_round_without_the_killed(tmp_path: Path, place: int, sent_share: float) -> None:
    with daemons(tmp_path, **SLOW) as made:
        # given three peers in one mean, and who leads the next round
        peers = made.swarm("us", "eu", "as")
        trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=True)]
        epoch = train_together(trainers)
        order = order_of_succession(RUN, epoch, [peer.peer_id for peer in peers])
        victim = next(t for t in trainers if t.peer.peer_id == order[place])
        survivors = [t for t in trainers if t is not victim]

        # when one is killed that has sent this share of its contribution, or all of it and a part of its results
        sent_before = sent_bytes(victim.peer)
        for trainer in trainers:
            trainer.train_until(epoch + 3)
        wait_for(
            lambda: sent_bytes(victim.peer) - sent_before > sent_share * CONTRIBUTION_BYTES, "it is in the middle of the round"
        )
        victim.peer.kill()

        # then the others end this round, without skipping it, and the next ones alike
        for trainer in survivors:
            trainer.wait_for_epoch(epoch + 3)
        assert_same_hashes(survivors, range(epoch + 1, epoch + 4))
        assert [s.epoch for t in survivors for s in t.steps if s.epoch > epoch] == 2 * [epoch + 1, epoch + 2, epoch + 3]

        # and each value is the exact mean of a group that both are in, each later one of them alone
        alone = mean_of(t.part for t in survivors)
        for trainer in survivors:
            assert trainer.step_to(epoch + 1).moves <= means_with([t.part for t in survivors], [victim.part])
            assert trainer.step_to(epoch + 1).moves >= {alone}, "the round was over before the kill"
            assert trainer.step_to(epoch + 3).moves == {alone}

        # and the repair is on record
        row = survivors[0].peer.rounds(RUN)[epoch]
        assert victim.peer.name in row["lost"]
        assert row["repaired"] > 0


def sent_bytes(peer: PeerProcess) -> int:
    return int(peer.view("status")["bytes_sent"])
