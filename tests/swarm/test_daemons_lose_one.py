"""Three daemons train; one is killed in the middle of a round. The two others end that round, and every later one, alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from daemon_kit import PeerProcess, daemons, wait_for
from trainer_kit import PARTS, RUN, TrainerProcess, assert_same_hashes, begin_together, mean_of, means_with

VALUES = 1_000_000
VALUE_BYTES = 4


def slow(lane_mbps: int) -> dict[str, str]:
    """Lanes on which a round lasts so long that its middle cannot be missed; a death is noticed in two seconds."""
    return {"CIUIC_LANE_MBPS": str(lane_mbps), "CIUIC_PROBE_PERIOD_S": "0.5", "CIUIC_LOG_LEVEL": "debug"}


class Scene:
    """Three peers that hold the state of one epoch, and the plan of its round, to which nobody has contributed yet."""

    def __init__(self, peers: list[PeerProcess]) -> None:
        self.trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=True)]
        self.epoch = begin_together(self.trainers)
        self.last = self.epoch + 3
        plan = wait_for(self._plan, "the round is planned")
        self.spans: dict[str, int] = plan["spans"]
        self.leader, *self.followers = plan["contributors"]
        assert len(self.followers) == 2

    def cast(self, victim: str) -> None:
        """The peer of this id will be killed."""
        self.victim = next(t for t in self.trainers if t.peer.peer_id == victim)
        self.survivors = [t for t in self.trainers if t is not self.victim]
        self._sent_before = self._sent_bytes()

    def train(self, trainers: list[TrainerProcess]) -> None:
        for trainer in trainers:
            trainer.train_until(self.last)

    def wait_until_sent(self, *, contribution: float, results: float) -> None:
        """By the one that will be killed, these shares of what it sends to the two others."""
        span = self.spans.get(self.victim.peer.peer_id, 0)
        most = VALUE_BYTES * (contribution * (VALUES - span) + results * 2 * span)
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
        had_span = self.spans.get(self.victim.peer.peer_id, 0) > 0
        assert (row["repaired"] > 0) == had_span

    def _plan(self) -> dict[str, Any] | None:
        opened = self.trainers[0].peer.logged("round.opened")
        return next((entry for entry in opened if entry["epoch"] == self.epoch), None)

    def _sent_bytes(self) -> int:
        return int(self.victim.peer.view("status")["bytes_sent"])


@pytest.mark.parametrize("leads", [pytest.param(False, id="contributor"), pytest.param(True, id="leader")])
def test_a_peer_is_killed_while_it_sends_its_contribution(tmp_path: Path, leads: bool) -> None:
    with daemons(tmp_path, **slow(lane_mbps=30)) as made:
        scene = Scene(made.swarm("us", "eu", "as"))
        scene.cast(scene.leader if leads else scene.followers[0])
        first, last = scene.survivors
        scene.train([scene.victim, first])  # the round cannot end without the other one
        scene.wait_until_sent(contribution=0.25, results=0)
        scene.victim.peer.kill()
        scene.train([first, last])
        scene.check_the_end()


def test_an_owner_is_killed_while_it_sends_its_results(tmp_path: Path) -> None:
    with daemons(tmp_path, **slow(lane_mbps=10)) as made:
        scene = Scene(made.swarm("us", "eu", "as"))
        owner = max(scene.followers, key=lambda peer: scene.spans[peer])
        assert scene.spans[owner] > 0
        scene.cast(owner)
        scene.train(scene.trainers)
        scene.wait_until_sent(contribution=1, results=0.25)
        scene.victim.peer.kill()
        scene.check_the_end()
