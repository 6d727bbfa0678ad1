"""A daemon that stands still for a while, as a laptop that sleeps does: the others go on, and it comes back to them.

What it wakes up with may be the end of a round that the others have repeated without it. That state is given up for theirs.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from daemon_kit import PeerProcess, daemons, wait_for, wait_until_met
from trainer_kit import PARTS, TrainerProcess, assert_same_hashes, mean_of, train_together

FROZEN_S = 12.0
"""Longer than the patience of the others with a peer whose session is open: eight periods of a second."""


def test_the_others_go_on_and_the_frozen_one_catches_up(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given three peers in one mean
        peers = made.swarm("us", "eu", "as")
        trainers = [TrainerProcess(peer, part, 1000) for peer, part in zip(peers, PARTS, strict=True)]
        *others, frozen = trainers
        epoch = train_together(trainers)

        # when one stands still and all train on
        thaw_after(FROZEN_S, frozen.peer)
        for trainer in trainers:
            trainer.train_until(epoch + 500)

        # then the others find it gone and train on without it
        for trainer, other in zip(others, ("eu", "us"), strict=True):
            wait_for(lambda trainer=trainer, other=other: trainer.peer.sees(other), f"{trainer.peer.name} sees only {other}")
        alone = mean_of(trainer.part for trainer in others)
        for trainer in others:
            wait_for(lambda trainer=trainer: trainer.steps[-1].moves == {alone}, "a mean without the frozen one")
        without = max(trainer.epoch for trainer in others)

        # and once it moves again it is found, catches up, and is in one mean with them
        wait_until_met(peers)
        wait_for(lambda: frozen.epoch > without and frozen.steps[-1].counted, "it takes part again")
        last = max(trainer.epoch for trainer in trainers) + 2
        for trainer in trainers:
            trainer.train_until(last)
        for trainer in trainers:
            trainer.wait_for_epoch(last)
        assert_same_hashes(others, range(epoch + 1, last + 1))
        assert_same_hashes(trainers, [step.epoch for step in frozen.steps if step.epoch > without])
        assert frozen.step_to(last).moves == {mean_of(PARTS)}


def thaw_after(seconds: float, peer: PeerProcess) -> None:
    """Stands still at once; the time passes while the test looks at the others."""
    peer.signal(signal.SIGSTOP)
    threading.Timer(seconds, peer.signal, [signal.SIGCONT]).start()
