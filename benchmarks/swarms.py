"""Real daemons with stand-in trainers, on loopback or in a lab, that average when told. Measures nothing itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import progress
from ciuic_p2p.lab.lab import RunningLab


class Place:
    """Where a peer runs: a host of the lab, or this machine."""

    def __init__(self, name: str, address: str, lab: RunningLab | None) -> None:
        self.name, self.address, self._lab = name, address, lab

    def command(self, argv: list[str]) -> list[str]:
        return argv if self._lab is None else self._lab.command(self.name, argv)


class Peer:
    """One daemon and one stand-in."""

    def __init__(self, place: Place, home: Path, join: str | None) -> None:
        self.place, self.home = place, home
        region = place.name.rstrip("0123456789")
        flags = [
            "--home",
            str(home),
            "--name",
            place.name,
            "--region",
            region,
            "--log-level",
            "debug",
            "--listen",
            f"/ip4/{place.address}/tcp/0",
        ]
        argv = [sys.executable, "-m", "ciuic_p2p", "start", "--json", *flags, *(["--join", join] if join else [])]
        home.parent.mkdir(parents=True, exist_ok=True)
        self.daemon = subprocess.Popen(place.command(argv), stdout=subprocess.PIPE, text=True)
        self.facts = self._read(self.daemon)
        self.trainer: subprocess.Popen[str] | None = None

    def attach(self, count: int, codec: str, seed: int) -> None:
        options = ["--home", str(self.home), "--count", str(count), "--codec", codec, "--seed", str(seed)]
        self.trainer = subprocess.Popen(
            self.place.command([sys.executable, "-m", "benchmarks.stand_in", *options]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self) -> None:
        assert self.trainer is not None
        assert self.trainer.stdin is not None
        self.trainer.stdin.write("\n")
        self.trainer.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.trainer is not None
        return self._read(self.trainer)

    def detach(self) -> None:
        if self.trainer is not None:
            self.trainer.kill()
            self.trainer.wait()
            self.trainer = None

    def stop(self) -> None:
        self.detach()
        self.daemon.terminate()
        self.daemon.wait()

    def _read(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.place.name} ended early")
        return json.loads(line)


@contextmanager
def swarm(places: list[Place], folder: Path) -> Iterator[list[Peer]]:
    """All daemons, joined to the first."""
    with ExitStack() as stack:
        peers: list[Peer] = []
        for place in places:
            join = peers[0].facts["join"] if peers else None
            peers.append(Peer(place, folder / place.name, join))
            stack.callback(peers[-1].stop)
        yield peers


def average(peers: list[Peer], count: int, codec: str, rounds: int) -> list[float]:
    """Seconds of the slowest peer in each of `rounds` rounds that all took part in; those in which peers meet are left out."""
    for seed, peer in enumerate(peers):
        peer.attach(count, codec, seed)
    for peer in peers:
        peer.hear()
    seconds: list[float] = []
    for number in range(rounds + 20):
        for peer in peers:
            peer.tell()
        told = [peer.hear() for peer in peers]
        slowest_s = max(fact["seconds"] for fact in told)
        whole = all(fact["peers"] == len(peers) and fact["counted"] for fact in told)
        progress(f"round {number}: {slowest_s:.3f} s, {'all' if whole else 'not all'} took part")
        if whole:
            assert len({fact["state_hash"] for fact in told}) == 1, "replicas differ"
            seconds.append(slowest_s)
        if len(seconds) > rounds:
            break
    for peer in peers:
        peer.detach()
    return seconds[1:]
