"""Real daemons for tests: processes of `ciuic-peer start` on loopback, asked over their sockets. Knows no trainer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from ciuic_p2p.config import child_environment
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import AskView, View

PATIENCE_S = 60.0
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
START = (sys.executable, "-m", "ciuic_p2p", "start")


def wait_for(holds: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
    """For what a process shows but does not announce. Returns what `holds` returned."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        found = holds()
        if found:
            return found
        time.sleep(0.03)
    raise AssertionError(f"never came true: {what}")


class PeerProcess:
    """One daemon. Started again on the same home after its end, it is the same peer."""

    def __init__(self, folder: Path, name: str, **environment: str) -> None:
        self.name = name
        self.home = folder / name
        self._environment = child_environment(**environment)
        self._ready: dict[str, Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.within: tuple[str, ...] = ()
        """What its command line is preceded by, to run it elsewhere on this machine."""
        self.at_end: list[Callable[[], None]] = []
        """What else is to be ended with it, such as its trainers."""

    def start(self, *flags: str, listen: str = LOOPBACK) -> None:
        """Returns at once; `ready` waits."""
        self._ready = None
        argv = [
            *self.within,
            *START,
            "--json",
            "--home",
            str(self.home),
            "--name",
            self.name,
            "--region",
            self.name,
            "--listen",
            listen,
        ]
        self._said, self._complained = self._output("said").open("wb"), self._output("complained").open("ab")
        with self._said, self._complained:
            self.process = subprocess.Popen(
                [*argv, *flags], stdout=self._said, stderr=self._complained, env=self._environment, start_new_session=True
            )

    @property
    def ready(self) -> dict[str, Any]:
        """The line that it prints when it is up."""
        if self._ready is None:
            wait_for(lambda: self._output("said").read_bytes().endswith(b"\n") or self.is_over(), f"{self.name} is up")
            assert not self.is_over(), self._output("complained").read_text()
            self._ready = json.loads(self._output("said").read_bytes())
        return self._ready

    @property
    def peer_id(self) -> str:
        return str(self.ready["peer_id"])

    @property
    def join(self) -> str:
        """How others join by this peer."""
        return str(self.ready["join"])

    def is_over(self) -> bool:
        return self._started().poll() is not None

    def view(self, what: str, **options: Any) -> Any:
        """What the command line shows. Raises NoDaemon, DaemonGone."""
        with open_channel(self.home) as channel:
            return channel.ask(AskView(what=what, options=options), View).value

    def alive(self) -> set[str]:
        """Names of the peers that it finds alive, itself included."""
        return {row["name"] for row in self.view("peers") if row["alive"]}

    def sees(self, *names: str) -> bool:
        """Whether these others are alive in its view, and nobody else."""
        return self.alive() == {self.name, *names}

    def run(self, name: str) -> dict[str, Any]:
        """Its row of status; empty while it does not know the run."""
        return next((row for row in self.view("status")["runs"] if row["run"] == name), {})

    def rounds(self, run: str) -> dict[int, dict[str, Any]]:
        """Its finished rounds, by epoch."""
        return {row["epoch"]: row for row in self.view("rounds") if row["run"] == run}

    def logged(self, *events: str) -> list[dict[str, Any]]:
        """The entries of its log under these events."""
        lines = (self.home / "daemon.log").read_bytes().split(b"\n")[:-1]
        return [entry for entry in map(json.loads, lines) if entry["event"] in events]

    def p2pd_pid(self) -> int | None:
        """Its libp2p child process; None while there is none."""
        children = psutil.Process(self._started().pid).children()
        return next((child.pid for child in children if _is_p2pd(child)), None)

    def signal(self, number: int) -> None:
        self._started().send_signal(number)

    def kill(self) -> None:
        """kill -9; p2pd, which would notice only later, goes with it as when a machine loses power."""
        process = self._started()
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        process.kill()
        process.wait()

    def terminate(self) -> int:
        """SIGTERM. Returns the exit status."""
        process = self._started()
        process.terminate()
        return process.wait(PATIENCE_S)

    def end(self) -> None:
        """For the end of a test, whatever state it is in."""
        for end in self.at_end:
            end()
        if self.process is not None and not self.is_over():
            self.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, f"{self.name} was not started"
        return self.process

    def _output(self, what: str) -> Path:
        return self.home.with_suffix(f".{what}")


def _is_p2pd(process: psutil.Process) -> bool:
    try:
        return process.name() == "p2pd" and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Daemons:
    """Makes daemons in one folder and ends whatever was started."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self.made: list[PeerProcess] = []

    def new(self, name: str, **environment: str) -> PeerProcess:
        """Not started yet."""
        peer = PeerProcess(self._folder, name, **(self._environment | environment))
        self.made.append(peer)
        return peer

    def started(self, name: str, *flags: str, **environment: str) -> PeerProcess:
        """On its way up."""
        peer = self.new(name, **environment)
        peer.start(*flags)
        return peer

    def swarm(self, *names: str) -> list[PeerProcess]:
        """All joined to the first, each seeing all others."""
        first, *others = names
        bootstrap = self.started(first)
        peers = [bootstrap, *(self.started(name, "--join", bootstrap.join) for name in others)]
        wait_until_met(peers)
        return peers


def wait_until_met(peers: Sequence[PeerProcess]) -> None:
    """Each sees all others, and nobody else."""
    for peer in peers:
        _ = peer.ready
        others = [other.name for other in peers if other is not peer]
        wait_for(lambda peer=peer, others=others: peer.sees(*others), f"{peer.name} sees {others}")


@contextmanager
def daemons(folder: Path, **environment: str) -> Iterator[Daemons]:
    made = Daemons(folder, environment)
    try:
        yield made
    finally:
        for peer in made.made:
            peer.end()
