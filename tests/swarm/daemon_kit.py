"""Real daemons for tests: processes of `ciuic-peer start` on loopback, asked over their sockets, and trainers in threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ciuic_p2p.errors import DaemonGone, SwarmError
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import AskView, Ready, StrategySettings, View
from ciuic_p2p.tensors.layout import Entry, Layout
from ciuic_p2p.train.attachment import Attachment

PATIENCE_S = 60.0


def wait_for(holds: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
    """For what a daemon shows but does not announce. Returns what `holds` returned."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"never came true: {what}")


class PeerProcess:
    """One daemon."""

    def __init__(self, name: str, home: Path, *flags: str, join: str | None = None, lane_mbps: float | None = None) -> None:
        """lane_mbps: makes rounds take a while, so that a test can step into one."""
        self.name, self.home = name, home
        argv = [sys.executable, "-m", "ciuic_p2p", "start", "--json", "--home", str(home), "--name", name, "--region", name]
        argv += ["--listen", "/ip4/127.0.0.1/tcp/0", *flags, *(["--join", join] if join else [])]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CIUIC_")}
        if lane_mbps is not None:
            environment["CIUIC_LANE_MBPS"] = str(lane_mbps)
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self._facts: dict[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The ready line; waits for it."""
        if self._facts is None:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, f"{self.name} did not start: {self.process.communicate()[1]}"
            self._facts = json.loads(line)
        return self._facts

    @property
    def peer_id(self) -> str:
        return str(self.facts["peer_id"])

    def view(self, what: str) -> Any:
        with open_channel(self.home) as channel:
            return channel.ask(AskView(what=what), View).value

    def alive_names(self) -> set[str]:
        return {row["name"] for row in self.view("peers") if row["alive"]}

    def sees(self, *names: str) -> bool:
        return self.alive_names() == set(names)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        return self.process.wait(20)


@dataclass(frozen=True)
class Step:
    """What a trainer was told at the end of a round: `moves` are the distinct changes of the anchor's values."""

    epoch: int
    state_hash: str
    counted: bool
    moves: frozenset[float]


class FlatTrainer:
    """A trainer in a thread: its pseudo-gradient is the same constant everywhere, so every mean can be told by its value."""

    def __init__(
        self, peer: PeerProcess, constant: float, count: int, *, step_s: float = 0.05, layout_name: str = "flat"
    ) -> None:
        layout = Layout((Entry(name=layout_name, shape=(count,), dtype="float32", role="parameter"),))
        settings = StrategySettings(name="DiLoCo", inner_steps=1, codec="float32", outer_learning_rate=1.0, outer_momentum=0.0)
        self.attachment = Attachment(peer.home, "flat", layout, settings)
        self.constant = constant
        self.steps: list[Step] = []
        self.first_epoch: int | None = None
        self.fresh: bool | None = None
        self.error: SwarmError | None = None
        self.poison = threading.Event()
        """Set by a test: the next contribution is not finite."""
        self.is_ready = threading.Event()
        self._ending = threading.Event()
        self._step_s = step_s
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """After the round under way."""
        self._ending.set()
        self._thread.join(PATIENCE_S)

    def epoch(self) -> int:
        return self.steps[-1].epoch if self.steps else -1

    def reach(self, epoch: int) -> None:
        wait_for(lambda: self.error or self.epoch() >= epoch, f"epoch {epoch}, got to {self.epoch()}")
        assert self.error is None, self.error

    def _train(self) -> None:
        try:
            attached = self.attachment.attach()
            self.first_epoch, self.fresh = attached.epoch, attached.fresh
            while not self._ending.is_set():
                self._phase()
            self.attachment.leave()
        except (SwarmError, DaemonGone) as error:
            self.error = error

    def _phase(self) -> None:
        values = self.attachment.exchange.values
        before = values.copy()
        time.sleep(self._step_s)  # the inner steps
        values -= np.float32(self.constant)
        if self.poison.is_set():
            values[len(values) // 2] = np.nan
            self.poison.clear()
        self.is_ready.set()
        told = self.attachment.advance(Ready(samples=1, steps=1, loss=None))
        self.is_ready.clear()
        moves = frozenset(np.unique(before - values).tolist())
        self.steps.append(Step(told.epoch, told.state_hash, told.counted, moves))


def hashes_agree(*trainers: FlatTrainer) -> int:
    """Every epoch that several trainers were told of ended with one hash. Returns how many epochs were compared."""
    by_epoch: dict[int, set[str]] = {}
    told: dict[int, int] = {}
    for trainer in trainers:
        for step in trainer.steps:
            by_epoch.setdefault(step.epoch, set()).add(step.state_hash)
            told[step.epoch] = told.get(step.epoch, 0) + 1
    assert all(len(found) == 1 for found in by_epoch.values()), by_epoch
    return sum(1 for count in told.values() if count > 1)


@contextmanager
def daemons(folder: Path, *names: str, lane_mbps: float | None = None) -> Iterator[list[PeerProcess]]:
    """One daemon for each name, all joined to the first, each seeing all others."""
    with ExitStack() as stack:
        peers: list[PeerProcess] = []
        for name in names:
            join = peers[0].facts["join"] if peers else None
            peers.append(PeerProcess(name, folder / name, join=join, lane_mbps=lane_mbps))
            stack.callback(end, peers[-1])
        for peer in peers:
            wait_for(lambda peer=peer: peer.facts and peer.sees(*names), f"{peer.name} sees all")
        yield peers


def end(peer: PeerProcess) -> None:
    if peer.process.poll() is None:
        peer.signal(signal.SIGCONT)
        peer.kill()
