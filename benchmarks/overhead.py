"""What a daemon costs while nothing is trained: one of two joined peers on this machine, its libp2p child included.

Real daemons that were told nothing special. They settle for a minute, in which they find and time each other; then three
times 20 s are measured.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from benchmarks.report import Figure, Measurement, progress, run_benchmark
from benchmarks.swarms import Peer, Place, ask, swarm
from ciuic_p2p.errors import LocalError

SETTLING_S = 62.0
"""The daemon gives its loop's longest delay by the minute: the minute in which it started must be over."""
PERIOD_S = 20.0
PERIODS = 3

MOST_CPU_PERCENT = 3.0
MOST_LAG_MS = 50.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One period of one peer at rest."""

    daemon_cpu_percent: float
    p2pd_cpu_percent: float
    daemon_mb: float
    """Resident; PyTorch and hivemind, which are loaded, are most of it."""
    p2pd_mb: float
    loop_lag_ms: float
    """The longest since the minute began."""


@cache
def readings() -> tuple[Reading, ...]:
    """Of the peer that joined. Raises LocalError when the two did not find each other."""
    places = [Place(name, "127.0.0.1") for name in ("first", "second")]
    with tempfile.TemporaryDirectory(prefix="ciuic-overhead-") as folder, swarm(places, Path(folder)) as peers:
        progress(f"two peers settle for {SETTLING_S:.0f} s")
        time.sleep(SETTLING_S)
        if not all(peer["alive"] for peer in ask(peers[1], "peers")) or len(ask(peers[1], "peers")) != len(peers):
            raise LocalError("the peers did not find each other", "look at what their daemons say")
        return tuple(read(peers[1]) for _ in range(PERIODS))


def read(peer: Peer) -> Reading:
    daemon = psutil.Process(peer.daemon.pid)
    children = daemon.children(recursive=True)
    before = cpu_seconds([daemon]), cpu_seconds(children)
    began_s = time.monotonic()
    time.sleep(PERIOD_S)
    seconds = time.monotonic() - began_s
    after = cpu_seconds([daemon]), cpu_seconds(children)
    return Reading(
        daemon_cpu_percent=100 * (after[0] - before[0]) / seconds,
        p2pd_cpu_percent=100 * (after[1] - before[1]) / seconds,
        daemon_mb=daemon.memory_info().rss / 1e6,
        p2pd_mb=sum(child.memory_info().rss for child in children) / 1e6,
        loop_lag_ms=ask(peer, "status")["loop_lag_ms"],
    )


def cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(process.cpu_times().user + process.cpu_times().system for process in processes)


def figure(of: Callable[[Reading], float], goal: float | None, **parts: Callable[[Reading], float]) -> Measurement:
    def take() -> Figure:
        behind = {name: sum(map(part, readings())) / PERIODS for name, part in parts.items()}
        return Figure(samples=[of(reading) for reading in readings()], goal=goal, higher_is_better=False, parts=behind)

    return take


MEASUREMENTS: dict[str, Measurement] = {
    "idle_memory_mb": figure(
        lambda r: r.daemon_mb + r.p2pd_mb, None, daemon_mb=lambda r: r.daemon_mb, p2pd_mb=lambda r: r.p2pd_mb
    ),
    "idle_cpu_percent": figure(
        lambda r: r.daemon_cpu_percent + r.p2pd_cpu_percent,
        MOST_CPU_PERCENT,
        daemon_percent=lambda r: r.daemon_cpu_percent,
        p2pd_percent=lambda r: r.p2pd_cpu_percent,
    ),
    "loop_lag_ms": figure(lambda r: r.loop_lag_ms, MOST_LAG_MS),
}


if __name__ == "__main__":
    sys.exit(run_benchmark("overhead", MEASUREMENTS))
