"""Trainers of shard_trainer.py at real daemons, and the count of what their contributions were trained on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon_kit import PATIENCE_S, PeerProcess, wait_for

from ciuic_p2p.config import child_environment
from ciuic_p2p.data.order import Order
from ciuic_p2p.data.slots import Slots

RUN = "shard"
SCRIPT = Path(__file__).with_name("shard_trainer.py")


@dataclass(frozen=True)
class Window:
    """The samples of one contribution."""

    samples: tuple[int, ...]
    epoch: int | None
    """That its round led to; None when the trainer was killed before it was told."""
    counted: bool


class ShardTrainer:
    """One life of a trainer."""

    def __init__(
        self,
        peer: PeerProcess,
        step_s: float,
        *,
        samples: int = 0,
        url: str = "",
        stream: bool = False,
        batch: int = 4,
        inner_steps: int = 5,
        workers: int = 0,
    ) -> None:
        """samples: of a dataset in memory. url: of files of records instead, which say their `number`; stream: by a
        pipeline without end, their `text` is a number."""
        self.peer = peer
        options = {"home": peer.home, "samples": samples, "batch": batch, "inner-steps": inner_steps}
        options |= {"step-s": step_s, "workers": workers, "url": url}
        self._said = peer.home.with_suffix(f".shard{len(peer.at_end)}")
        argv = [sys.executable, str(SCRIPT), *(f"--{key}={value}" for key, value in options.items())]
        argv += ["--stream"] if stream else []
        self._complained = self._said.with_suffix(".complained")
        environment = child_environment(PYTHONPATH=str(SCRIPT.parents[2]))
        with self._said.open("wb") as said, self._complained.open("wb") as complained:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=said, stderr=complained, env=environment)
        peer.at_end.append(self.kill)

    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._said.read_bytes().split(b"\n")[:-1]]

    def windows(self) -> list[Window]:
        found, sent = [], None
        for fact in self.facts():
            match fact["event"]:
                case "sent":
                    sent = tuple(fact["samples"])
                case "settled" if sent is not None:
                    found.append(Window(sent, fact["epoch"], fact["counted"]))
                    sent = None
                case "given_up":
                    sent = None
        return found if sent is None else [*found, Window(sent, None, counted=False)]

    def complaint(self) -> str:
        """Why it ended by itself; waits until it did."""
        assert self.process.wait(PATIENCE_S) == 1
        return self._complained.read_text()

    def leave(self) -> None:
        """After its next contribution; returns at once."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> None:
        assert self.process.wait(PATIENCE_S) == 0, self._complained.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def data_of(peer: PeerProcess) -> dict[str, Any]:
    """How far all peers are in the dataset, as this one shows it."""
    return next(iter(peer.run(RUN).get("data", [])), {})


def wait_for_pass(peer: PeerProcess, passes: int) -> None:
    wait_for(lambda: data_of(peer).get("passes", -1) >= passes, f"{peer.name} sees {passes} passes used")


def leave_all(trainers: Sequence[ShardTrainer]) -> None:
    """Afterwards all daemons hold the state that the last contribution went into."""
    for trainer in trainers:
        trainer.leave()
    for trainer in trainers:
        trainer.wait()
    peers = [trainer.peer for trainer in trainers]
    newest = max(window.epoch or 0 for trainer in trainers for window in trainer.windows())
    wait_for(lambda: len({peer.run(RUN)["state_hash"] for peer in peers}) == 1, "all hold one state")
    wait_for(lambda: all(peer.run(RUN)["epoch"] >= newest for peer in peers), "nobody lags behind")


def used_by_ledger(data: dict[str, Any]) -> Counter[int]:
    """How often each sample is used, by the positions that are a part of the run's state."""
    count = data["samples"]
    found = Counter(dict.fromkeys(range(count), data["passes"]))
    found.update(Order(count, 0).samples_of(Slots.of(map(tuple, data["used"]))))
    return +found


def used_by_trainers(trainers: Iterable[ShardTrainer], up_to_epoch: float = float("inf")) -> Counter[int]:
    """How often each sample was trained on for a contribution that counts."""
    counted = (w for trainer in trainers for w in trainer.windows() if w.counted and w.epoch and w.epoch <= up_to_epoch)
    return Counter(sample for window in counted for sample in window.samples)
