"""Three daemons train; one is killed in the middle of a round. The two others end that round, and every later one, alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemon_kit import PeerProcess, daemons, wait_for
from trainer_kit import PARTS, RUN, TrainerProcess, assert_same_hashes, mean_of, means_with, begin_together

from ciuic_p2p.core.succession import order_of_succession

VALUES = 1_000_000
CONTRIBUTION_BYTES = 4 * VALUES * 2 // 3
"""That each of three contributors sends to the owners of the two thirds that are not its own; as much again are its results."""


class Scene:
    """Three peers that hold the state of one epoch; whoever stands at `place` in its order of succession will be killed."""

    def __init__(self, peers: list[PeerProcess], place: int) -> None:
        self.trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=True)]
        self.epoch = begin_together(self.trainers)
        self.last = self.epoch + 3
        order = order_of_succession(RUN, self.epoch, [peer.peer_id for peer in peers])
        self.victim = next(t for t in self.trainers if t.peer.peer_id == order[place])
        self.survivors = [t for t in self.trainers if t is not self.victim]
        self._sent_before = self._sent_bytes()

    def train(self, trainers: list[TrainerProcess]) -> None:
        for trainer in trainers:
            trainer.train_until(self.last)

    def wait_until_sent(self, share: float) -> None:
        """By the one that will be killed; share: of its contribution, and above 1 of its results."""
        most = share * CONTRIBUTION_BYTES
        wait_for(lambda: self._sent_bytes() - self._sent_before > most, "it is in the middle of the round")

    def check_the_end(self) -> None:
        """The survivors ended this round, without skipping it, and the next ones, alike and exactly."""
        for trainer in self.survivors:
            trainer.wait_for_epoch(self.last)
            assert [s.epoch for s in trainer.steps if s.epoch > self.epoch] == [self.epoch + 1, self.epoch + 2, self.last]
        assert_same_hashes(self.survivors, range(self.epoch + 1, self.last + 1))
        parts = [trainer.part for trainer in self.survivors]
        for trainer in self.survivors:
            moves = trainer.step_to(self.epoch + 1).moves
            assert moves <= means_with(parts, [self.victim.part]), "each value is the mean of a group that both are in"
            assert mean_of(parts) in moves, "the round was over before the kill"
            assert trainer.step_to(self.last).moves == {mean_of(parts)}
            assert trainer.step_to(self.last).counted
        row = self.survivors[0].peer.rounds(RUN)[self.epoch]
        assert row["lost"] == [self.victim.peer.name]
        assert row["repaired"] > 0

    def _sent_bytes(self) -> int:
        return int(self.victim.peer.view("status")["bytes_sent"])


@pytest.mark.parametrize("place", [pytest.param(1, id="contributor"), pytest.param(0, id="leader")])
def test_a_peer_is_killed_while_it_sends_its_contribution(tmp_path: Path, place: int) -> None:
    with daemons(tmp_path, CIUIC_LANE_MBPS="30", CIUIC_PROBE_PERIOD_S="0.5") as made:
        scene = Scene(made.swarm("us", "eu", "as"), place)
        first, last = scene.survivors
        scene.train([scene.victim, first])  # the round cannot end without the other one
        scene.wait_until_sent(0.25)
        scene.victim.peer.kill()
        scene.train([first, last])
        scene.check_the_end()


def test_a_peer_is_killed_while_it_sends_the_results_of_its_span(tmp_path: Path) -> None:
    with daemons(tmp_path, CIUIC_LANE_MBPS="10", CIUIC_PROBE_PERIOD_S="0.5") as made:
        scene = Scene(made.swarm("us", "eu", "as"), 1)
        scene.train(scene.trainers)
        scene.wait_until_sent(1.25)
        scene.victim.peer.kill()
        scene.check_the_end()
