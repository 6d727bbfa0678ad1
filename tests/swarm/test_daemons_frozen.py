"""A daemon stops for a while, or its libp2p process dies: rounds go on without it, or at once, and it finds back."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from daemon_kit import PeerProcess, daemons, wait_for, wait_until_met
from trainer_kit import ENDLESS, PARTS, TrainerProcess, assert_same_hashes, begin_together

VALUES = 100_000
FROZEN_S = 8.0


def train_endlessly(peers: list[PeerProcess]) -> list[TrainerProcess]:
    """Returns once all are in one mean."""
    trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=False)]
    begin_together(trainers)
    for trainer in trainers:
        trainer.train_until(ENDLESS)
    return trainers


def end_together(trainers: list[TrainerProcess]) -> int:
    """Lets them train some epochs more. Returns the last one, in whose mean all are."""
    last = max(trainer.epoch for trainer in trainers) + 5
    for trainer in trainers:
        trainer.train_until(last)
    for trainer in trainers:
        trainer.wait_for_epoch(last)
        assert len(trainer.step_to(last).peers) == len(trainers)
    assert_same_hashes(trainers, [last])
    return last


def test_the_others_go_on_while_a_daemon_is_frozen_and_it_catches_up(tmp_path: Path) -> None:
    with daemons(tmp_path, CIUIC_PROBE_PERIOD_S="0.5") as made:
        peers = made.swarm("us", "eu", "as")
        trainers = train_endlessly(peers)
        frozen, *others = trainers

        # when the daemon that the others joined by stands still
        peers[0].signal(signal.SIGSTOP)
        stopped_s = time.monotonic()

        # then the others give it up and train on without it
        for trainer, other in zip(others, ("as", "eu"), strict=True):
            wait_for(lambda trainer=trainer, other=other: trainer.peer.sees(other), f"{trainer.peer.name} sees only {other}")
        reached = max(trainer.epoch for trainer in others)
        for trainer in others:
            trainer.wait_for_epoch(reached + 2)
            assert sorted(trainer.step_to(reached + 2).peers) == ["as", "eu"]
            assert_no_epoch_is_missing(trainer)
        wait_for(lambda: time.monotonic() - stopped_s > FROZEN_S, "it was frozen for long enough")

        # and once it goes on, it takes over what they did, whatever round it still had in its hands, and is counted again
        peers[0].signal(signal.SIGCONT)
        wait_for(lambda: frozen.epoch > reached + 2 and len(frozen.steps[-1].peers) == 3, "it is in a mean of all three")
        back = frozen.epoch
        assert frozen.step_to(back).counted
        last = end_together(trainers)
        assert_same_hashes(trainers, range(back, last + 1))
        assert_same_hashes(others, range(4, last + 1))


def assert_no_epoch_is_missing(trainer: TrainerProcess) -> None:
    epochs = [step.epoch for step in trainer.steps if step.epoch > 1]
    assert epochs == list(range(epochs[0], epochs[-1] + 1))


def test_rounds_go_on_while_the_libp2p_process_is_killed_and_comes_back(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        peers = made.swarm("us", "eu")
        trainers = train_endlessly(peers)
        pid = peers[0].p2pd_pid()
        assert pid is not None

        # when the libp2p process of the daemon that the other joined by is killed
        os.kill(pid, signal.SIGKILL)
        reached = max(trainer.epoch for trainer in trainers)

        # then sessions and rounds know nothing of it
        for trainer in trainers:
            trainer.wait_for_epoch(reached + 3)
            assert all(len(step.peers) == 2 and step.counted for step in trainer.steps if step.epoch > reached)
        assert peers[0].view("status")["peer_id"] == peers[0].peer_id

        # and it is started again, so that others still join by the same string
        wait_for(lambda: peers[0].logged("p2p.child_restarted"), "it is on record that the process was started again")
        assert peers[0].p2pd_pid() not in (None, pid)
        third = made.started("as", "--join", peers[0].join)
        wait_until_met([*peers, third])
        last = end_together(trainers)
        assert_same_hashes(trainers, range(3, last + 1))
