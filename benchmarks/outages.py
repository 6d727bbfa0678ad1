"""Rounds of real daemons in a lab in which one of them stands still or is cut off, and how long they take the others.

A round is timed as in `benchmarks.laps`, of those who stay. Compares nothing.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.arenas import MOST_PARTIAL_LAPS, PAUSE_S
from benchmarks.children import Child, module_argv
from benchmarks.contestants.drivers import STARTING_S, cue_until_whole
from benchmarks.laps import Lap, lap_of_round, slowest_s
from benchmarks.report import progress
from benchmarks.swarms import Peer, Place, ask, swarm
from ciuic_p2p.errors import LocalError
from ciuic_p2p.lab.lab import Lab, RunningLab
from ciuic_p2p.lab.topology import Topology

RUN = "benchmark"
FROZEN, CUT = "frozen", "cut off"
POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """What takes a peer away, and what brings it back."""

    name: str
    begin: Callable[[], None]
    end: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A round that one peer did not live to see the end of."""

    seconds: float
    """From the moment when the last one of the others was ready to the moment when the last one had the mean."""
    detected_s: float
    """From the outage until the last of the others gave the peer up."""
    lost_share: float
    """Of the tensor: what the lost peer was to sum up."""


class Rounds:
    """Daemons in a lab, a trainer at each, and a run in which all are."""

    def __init__(self, lab: RunningLab, topology: Topology, peers: Sequence[Peer], trainers: Sequence[Child]) -> None:
        self.lab, self.topology = lab, topology
        self._peers, self._trainers = peers, trainers

    def outage(self, kind: str, victim: int) -> Outage:
        """Of the peer with this number: its daemon is stopped, or no packet reaches or leaves it."""
        peer = self._peers[victim]
        if kind == FROZEN:
            return Outage(
                name=kind,
                begin=lambda: os.kill(peer.daemon.pid, signal.SIGSTOP),
                end=lambda: os.kill(peer.daemon.pid, signal.SIGCONT),
            )
        return Outage(
            name=kind,
            begin=lambda: self.lab.set(self.topology.cut_off(peer.place.name)),
            end=lambda: self.lab.set(self.topology),
        )

    def whole(self, limit_s: float) -> Lap:
        """A round in which all take part. Raises LocalError when there is none in time."""
        deadline_s = time.monotonic() + limit_s
        for _ in range(MOST_PARTIAL_LAPS):
            lap = self.once(deadline_s - time.monotonic())
            if lap is not None:
                return lap
        raise LocalError(f"not all took part in {MOST_PARTIAL_LAPS} rounds one after the other")

    def once(self, limit_s: float) -> Lap | None:
        """A round; None when not all took part. Raises LocalError when there is none in time."""
        time.sleep(PAUSE_S)  # what the round before left to do is done
        told, partial = cue_until_whole(self._trainers, self._all_are_equal, limit_s)
        lap = None if partial else lap_of_round(self._rounds(self._peers), RUN, told[0]["state_hash"], len(self._peers))
        progress("not all took part" if lap is None else f"{lap.seconds:.3f} s, predicted {lap.parts['predicted_s']:.3f} s")
        return lap

    def interrupted(self, outage: Outage, victim: int, after_s: float, limit_s: float) -> Interrupted | None:
        """A round in which the outage begins so long after all were ready; it ends when the others have the mean.

        None when they had it before, or when the lost peer was one of those that they did not wait for.
        """
        others = [peer for number, peer in enumerate(self._peers) if number != victim]
        deadline_s = time.monotonic() + limit_s
        self.until_equal(limit_s)
        time.sleep(PAUSE_S)
        for trainer in self._trainers:
            trainer.tell()
        time.sleep(after_s)
        began_s = time.time()
        outage.begin()
        try:
            told = [t.hear(deadline_s - time.monotonic()) for n, t in enumerate(self._trainers) if n != victim]
        finally:
            outage.end()
        self._trainers[victim].hear(deadline_s - time.monotonic())  # its contribution was not counted, or taken later
        if len({fact["state_hash"] for fact in told}) != 1:
            raise LocalError(f"the others hold different states after {outage.name}")
        rows = [row for view in self._rounds(others) for row in view if row["epoch"] == told[0]["epoch"] - 1]
        if len(rows) != len(others) or not all(row["lost"] for row in rows):
            return None
        return Interrupted(
            seconds=slowest_s([r["began_at"] for r in rows], [r["began_at"] + r["seconds"] for r in rows]),
            detected_s=self._detected_s(others, self._peers[victim], began_s),
            lost_share=self._share(others[0], self._peers[victim], told[0]["epoch"] - 1),
        )

    def until_equal(self, limit_s: float) -> None:
        """Waits for the one that was away. Raises LocalError."""
        deadline_s = time.monotonic() + limit_s
        while not self._all_are_equal():
            if time.monotonic() > deadline_s:
                raise LocalError("a peer that was away did not find back in time")
            time.sleep(POLL_S)

    def _all_are_equal(self) -> bool:
        standings = {
            (run["epoch"], run["state_hash"])
            for peer in self._peers
            for run in ask(peer, "status")["runs"]
            if run["run"] == RUN
        }
        return len(standings) == 1 and all(self._sees_all(peer) for peer in self._peers)

    def _sees_all(self, peer: Peer) -> bool:
        return sum(row["alive"] for row in ask(peer, "peers")) == len(self._peers)

    def _rounds(self, peers: Sequence[Peer]) -> list[list[dict[str, Any]]]:
        return [[row for row in ask(peer, "rounds") if row["run"] == RUN] for peer in peers]

    def _detected_s(self, others: Sequence[Peer], victim: Peer, began_s: float) -> float:
        """Of those that gave it up themselves; who was told by a fence meanwhile may not have."""
        found = []
        for peer in others:
            gone = [when for when, entry in log_of(peer, "peer.gone") if entry["name"] == victim.place.name and when >= began_s]
            found += [gone[0] - began_s] if gone else []
        return statistics.median(found) if found else float("nan")

    def _share(self, peer: Peer, victim: Peer, epoch: int) -> float:
        spans = next(entry["spans"] for _, entry in log_of(peer, "round.opened") if entry["epoch"] == epoch)
        return spans.get(victim.facts["peer_id"], 0) / sum(spans.values())


@contextmanager
def rounds_in(topology: Topology, count: int, codec: str) -> Iterator[Rounds]:
    """All daemons and trainers are up, with `count` float32 values a peer."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(topology))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ciuic-outages-")))
        peers = stack.enter_context(swarm([Place(name, address, lab) for name, address in lab.addresses.items()], folder))
        trainers = []
        for number, peer in enumerate(peers):
            options = {"home": peer.home, "run": RUN, "count": count, "codec": codec, "number": number}
            argv = peer.place.command(module_argv("benchmarks.stand_in", **options))
            trainers.append(Child(f"the trainer of {peer.place.name}", argv))
            stack.callback(trainers[-1].kill)
        for trainer in trainers:
            trainer.hear(STARTING_S)
        yield Rounds(lab, topology, peers, trainers)


def log_of(peer: Peer, event: str) -> list[tuple[float, dict[str, Any]]]:
    """(wall clock, entry) of a daemon's log, oldest first."""
    with (peer.home / "daemon.log").open() as lines:
        entries = [json.loads(line) for line in lines if f'"event": "{event}"' in line and line.endswith("\n")]
    return [(datetime.fromisoformat(entry["timestamp"]).timestamp(), entry) for entry in entries]
