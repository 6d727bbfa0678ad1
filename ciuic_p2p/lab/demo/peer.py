"""One peer of the demonstration: its daemon, its trainer, and what both reported over all their lives. Decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ciuic_p2p.config import child_environment
from ciuic_p2p.errors import LocalError, SwarmError
from ciuic_p2p.lab.demo.processes import Child
from ciuic_p2p.lab.demo.scenario import Scenario, training_script
from ciuic_p2p.lab.demo.stage import Stage
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import AskView, View

LEAVING_S = 6.0
"""A daemon leaves within 5 s."""

ANSWERING_S = 5.0
"""A view takes milliseconds; a daemon that is busy for longer is asked again."""


@dataclass(slots=True)
class Tally:
    """What a peer did, its lives before a kill included."""

    epoch: int = 0
    counted_epoch: int = 0
    """The last one whose round this peer's own contribution was in."""
    hashes: dict[int, str] = field(default_factory=dict)
    """Epoch → state hash, as its trainer loaded it."""
    accuracy: float | None = None
    parameters: int = 0
    _of_daemon: list[int] = field(default_factory=list)
    _of_trainer: list[int] = field(default_factory=list)

    @property
    def bytes_sent(self) -> int:
        """On the daemon's sockets, control and probes included."""
        return sum(self._of_daemon)

    @property
    def samples(self) -> int:
        """Trained on."""
        return sum(self._of_trainer)

    def begin_daemon(self) -> None:
        """Its counters begin at 0 again."""
        self._of_daemon.append(0)

    def begin_trainer(self) -> None:
        """The same for the trainer's."""
        self._of_trainer.append(0)

    def take_status(self, status: dict[str, Any]) -> None:
        """What the daemon says."""
        self._of_daemon[-1] = max(self._of_daemon[-1], status["bytes_sent"])

    def take_round(self, line: dict[str, Any]) -> None:
        """A line of the trainer."""
        self.epoch = max(self.epoch, line["epoch"])
        self.hashes[line["epoch"]] = line["state_hash"]
        if line["counted"]:
            self.counted_epoch = self.epoch
        self.parameters = line.get("parameters", self.parameters)
        self._of_trainer[-1] = line["samples"]
        if line.get("accuracy") is not None:
            self.accuracy = line["accuracy"]


class DemoPeer:
    """Starts, kills and asks one peer."""

    def __init__(self, name: str, scenario: Scenario, stage: Stage, folder: Path) -> None:
        self.name = name
        self.tally = Tally()
        self.daemon: Child | None = None
        self.trainer: Child | None = None
        self.ready: dict[str, Any] | None = None
        """The daemon's ready line; None until it came."""
        self._scenario = scenario
        self._stage = stage
        self._folder = folder
        self._home = folder / name

    def start_daemon(self, join: str | None) -> None:
        """Returns at once; `ready` tells when it is up."""
        argv = [sys.executable, "-m", "ciuic_p2p", "start", "--json", "--home", str(self._home), "--name", self.name]
        argv += ["--region", self._scenario.region_of(self.name)]
        argv += ["--listen", self._stage.listen(self.name)]
        argv += ["--join", join] if join else []
        self._home.mkdir(mode=0o700, exist_ok=True)
        self.ready = None
        self.tally.begin_daemon()
        self.daemon = self._start("daemon", argv)

    def start_trainer(self) -> None:
        """Returns at once; it attaches by itself."""
        scenario = self._scenario
        argv = [sys.executable, str(training_script()), "--epochs", str(scenario.epochs), "--json"]
        argv += ["--inner-steps", str(scenario.inner_steps), "--batch-size", str(scenario.batch_size)]
        self.tally.begin_trainer()
        self.trainer = self._start("trainer", argv)

    def kill(self) -> None:
        """kill -9 of daemon and trainer."""
        for child in (self.trainer, self.daemon):
            if child is not None:
                child.kill()
        self.trainer = self.daemon = self.ready = None

    def end(self) -> None:
        """Ends what runs, the daemon with its goodbye."""
        if self.trainer is not None:
            self.trainer.kill()
        if self.daemon is not None:
            self.daemon.end(LEAVING_S)
        self.trainer = self.daemon = None

    def observe(self) -> list[dict[str, Any]]:
        """Takes in what both said since; returns the trainer's new rounds. Raises LocalError when one ended in failure."""
        self._refuse_failure()
        if self.daemon is not None and self.ready is None:
            self.ready = next((line for line in self.daemon.read_objects() if "join" in line), None)
        rounds = [line for line in self.trainer.read_objects() if "epoch" in line] if self.trainer else []
        for line in rounds:
            self.tally.take_round(line)
        return rounds

    def view(self, what: str) -> Any:
        """What the daemon answers; None while it does not."""
        try:
            with open_channel(self._home) as channel:
                channel.send(AskView(what=what))
                answer = channel.receive(ANSWERING_S)
        except SwarmError:
            return None
        if not isinstance(answer, View):
            return None
        if what == "status":
            self.tally.take_status(answer.value)
        return answer.value

    def sees(self, names: tuple[str, ...]) -> bool:
        """Whether its daemon finds all of them alive."""
        alive = {peer["name"] for peer in self.view("peers") or () if peer["alive"]}
        return alive.issuperset(names)

    def state(self) -> tuple[int, str] | None:
        """Epoch and state hash of the run in its daemon; None while it holds no state."""
        runs = (self.view("status") or {}).get("runs") or [{}]
        return (runs[0]["epoch"], runs[0]["state_hash"]) if runs[0].get("state_hash") else None

    @property
    def finished(self) -> bool:
        """Whether its trainer has done all epochs."""
        return self.trainer is not None and self.trainer.exit_code == 0

    def _start(self, what: str, argv: list[str]) -> Child:
        # one thread for each trainer: there are more of them than cores
        own = {"CIUIC_HOME": str(self._home), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment = child_environment(**own, **self._stage.settings())
        log = self._folder / f"{self.name}.{what}.log"
        return Child(f"{self.name}'s {what}", self._stage.command(self.name, argv), log, environment)

    def _refuse_failure(self) -> None:
        ended: tuple[tuple[Child | None, Callable[[int], bool]], ...] = (
            (self.daemon, lambda _: True),
            (self.trainer, lambda code: code != 0),
        )
        for child, is_failure in ended:
            if child is not None and (code := child.exit_code) is not None and is_failure(code):
                raise LocalError(f"{child.title} ended with {code}: {child.last_words()}", f"its log is {child.log}")
