"""Trainers for tests of daemons: processes of flat_trainer.py, and what their moves should average to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, count
from pathlib import Path
from typing import Any

from daemon_kit import PATIENCE_S, PeerProcess, wait_for

from ciuic_p2p.config import child_environment

RUN = "flat"
SCRIPT = Path(__file__).with_name("flat_trainer.py")
PROJECT = SCRIPT.parents[2]
ENDLESS = 1 << 40
_numbers = count()


@dataclass(frozen=True)
class Part:
    """What one peer brings into every mean."""

    move: float
    samples: int


PARTS = (Part(60.0, 1), Part(120.0, 2), Part(240.0, 3))
"""The weighted mean of every group of these is another whole number, which float32 holds and divides to exactly."""


@dataclass(frozen=True)
class Step:
    """What a trainer was told at the end of a round."""

    epoch: int
    state_hash: str
    counted: bool
    peers: tuple[str, ...]
    moves: frozenset[float]


class TrainerProcess:
    """One life of a trainer at one daemon; it trains once it was told how far."""

    def __init__(
        self, peer: PeerProcess, part: Part, values: int, run: str = RUN, codec: str = "float32", *, noise: bool = False
    ) -> None:
        """noise: it moves each value differently, so that what travels cannot be packed; then its steps tell no moves."""
        self.peer, self.part, self.run = peer, part, run
        options: dict[str, object] = {"home": peer.home, "run": run, "count": values, "codec": codec}
        options |= {"move": part.move, "samples": part.samples}
        argv = [sys.executable, str(SCRIPT), *(f"--{key}={value}" for key, value in options.items())]
        argv += ["--noise"] if noise else []
        self._said = peer.home.with_suffix(f".trainer{next(_numbers)}")
        environment = child_environment(PYTHONPATH=str(PROJECT))
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=said, env=environment)
        peer.at_end.append(self.kill)

    def train_until(self, epoch: int) -> None:
        """Returns at once."""
        self._order(str(epoch))

    def poison(self) -> None:
        """Its next contribution holds a value that is not a number."""
        self._order("poison")

    def facts(self, event: str) -> list[dict[str, Any]]:
        lines = self._said.read_bytes().split(b"\n")[:-1]
        return [fact for fact in map(json.loads, lines) if fact["event"] == event]

    @cached_property
    def attached(self) -> dict[str, Any]:
        """Waits until it is."""
        wait_for(lambda: self.facts("attached") or self.facts("ended"), f"{self.peer.name}'s trainer is attached")
        assert self.facts("attached"), self.facts("ended")
        return self.facts("attached")[0]

    @property
    def ended(self) -> dict[str, Any]:
        """Why it gave up; waits until it did."""
        wait_for(lambda: self.facts("ended"), f"{self.peer.name}'s trainer ends")
        return self.facts("ended")[0]

    @property
    def steps(self) -> list[Step]:
        return [
            Step(f["epoch"], f["state_hash"], f["counted"], tuple(f["peers"]), frozenset(f["moves"]))
            for f in self.facts("advanced")
        ]

    @property
    def epoch(self) -> int:
        """Of the anchor that it holds."""
        return max((step.epoch for step in self.steps), default=self.attached["epoch"])

    def step_to(self, epoch: int) -> Step:
        """The one that ended with this epoch."""
        return next(step for step in self.steps if step.epoch == epoch)

    def wait_for_epoch(self, epoch: int) -> None:
        wait_for(lambda: self.epoch >= epoch or self.facts("ended"), f"{self.peer.name}'s trainer reaches epoch {epoch}")
        assert self.epoch >= epoch, self.facts("ended")

    def leave(self) -> None:
        """When it holds what it was told to train for."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _order(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()


def begin_together(trainers: Sequence[TrainerProcess]) -> int:
    """From the run's first state to two means that all are in. Returns the epoch that all then hold."""
    wait_for(lambda: all(trainer.attached for trainer in trainers), "all hold the first state")
    seeder = next(trainer for trainer in trainers if trainer.attached["fresh"])
    seeder.train_until(1)  # its round was planned before the others had the state
    for trainer in trainers:
        wait_for(lambda trainer=trainer: trainer.peer.run(trainer.run)["epoch"] == 1, f"{trainer.peer.name} is there")
    for trainer in trainers:
        trainer.train_until(3)
    for trainer in trainers:
        trainer.wait_for_epoch(3)
        assert len(trainer.step_to(3).peers) == len(trainers)
    return 3


def mean_of(parts: Iterable[Part]) -> float:
    """The weighted mean of their moves."""
    chosen = tuple(parts)
    return sum(part.move * part.samples for part in chosen) / sum(part.samples for part in chosen)


def means_with(survivors: Iterable[Part], others: Sequence[Part]) -> set[float]:
    """Of every group that all survivors are in."""
    extra = chain.from_iterable(combinations(others, size) for size in range(len(others) + 1))
    return {mean_of((*survivors, *some)) for some in extra}


def assert_same_hashes(trainers: Sequence[TrainerProcess], epochs: Iterable[int]) -> None:
    """Each of them was told of each of these epochs, with one hash."""
    hashes = {epoch: [t.step_to(epoch).state_hash for t in trainers] for epoch in epochs}
    assert not {epoch: found for epoch, found in hashes.items() if len(set(found)) > 1}
