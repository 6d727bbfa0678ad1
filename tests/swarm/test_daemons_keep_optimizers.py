"""Trainers and daemons are killed: who joins again has the optimizer's state of the epoch that was saved."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

from daemon_kit import PeerProcess, daemons, wait_for
from object_kit import client
from optimizer_trainer import RUN

from ciuic_p2p.config import child_environment

SCRIPT = Path(__file__).with_name("optimizer_trainer.py")
_numbers = count()


class Life:
    """Of a trainer, from its start to kill -9."""

    def __init__(self, peer: PeerProcess) -> None:
        number = next(_numbers)
        self._said, self._warned = (peer.home.with_suffix(f".life{number}.{what}") for what in ("said", "warned"))
        environment = child_environment(PYTHONPATH=str(SCRIPT.parents[2]))
        with self._said.open("wb") as said, self._warned.open("wb") as warned:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(peer.home)], stdout=said, stderr=warned, env=environment
            )
        peer.at_end.append(self.kill)

    def states(self, what: str) -> dict[int, dict[str, str]]:
        """Of its optimizer, by epoch."""
        facts: list[dict[str, Any]] = list(map(json.loads, self._said.read_bytes().split(b"\n")[:-1]))
        return {fact["epoch"]: fact["state"] for fact in facts if fact["what"] == what}

    def joined(self) -> tuple[int, dict[str, str]]:
        """At which epoch, and the state of its optimizer then."""
        wait_for(lambda: self.states("joined") or self.process.poll() is not None, "the trainer joins")
        ((epoch, state),) = self.states("joined").items()
        return epoch, state

    def wait_until(self, epoch: int) -> None:
        wait_for(lambda: epoch in self.states("advanced"), f"epoch {epoch}")

    def warnings(self) -> str:
        return self._warned.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_adam_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        peer = made.started("us")
        _ = peer.ready
        first = Life(peer)
        assert first.joined() == (0, {})
        first.wait_until(2)
        saved = client(peer).save_checkpoint(RUN)["epoch"]
        first.wait_until(saved + 2)
        first.kill()
        state = first.states("advanced")[saved]
        assert len(state) == 4 * 3

        second = Life(peer)  # the daemon has gone on holding the last epoch
        epoch, found = second.joined()
        assert epoch > saved
        assert found == state
        later = client(peer).save_checkpoint(RUN)["epoch"]
        second.wait_until(later + 1)
        second.kill()
        peer.kill()

        peer.start()
        _ = peer.ready
        third = Life(peer)  # the daemon has gone on from its snapshot
        assert third.joined() == (later, second.states("advanced")[later])
        assert "optimizer.ignored" not in third.warnings() + second.warnings()
