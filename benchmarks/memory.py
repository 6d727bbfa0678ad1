"""What a round costs a daemon in memory: the most that it had to itself during rounds, beyond what it had without a trainer.

Two real daemons on loopback average float32; the exchange belongs to the trainer and is not counted. A while after they came
together, for a newcomer's state is kept for it. Goal: anchor, outer momentum, contribution and one span of half the tensor,
plus fixed buffers.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.contestants.drivers import ours
from benchmarks.report import Figure, Measurement, progress, run_benchmark
from benchmarks.swarms import Peer, Place, swarm
from ciuic_p2p.daemon.versions import PIN_S
from ciuic_p2p.errors import LocalError

ROUNDS = 3
LIMIT_S = 240.0
EVERY_S = 0.02
FIXED_MB = 96.0
"""Lanes' buffers, tiles, parts on their way: the same for every model."""
TENSORS = 3.5
"""Anchor, momentum, contribution, half a span."""


def own_mb(peer: Peer) -> float:
    """Resident memory that is no file's and no other process'."""
    for line in Path(f"/proc/{peer.daemon.pid}/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1000
    raise LocalError("this kernel does not tell a process' own memory")


@contextmanager
def watched(peer: Peer, peaks: list[float]) -> Iterator[None]:
    """Appends the most that the daemon held meanwhile."""
    done, most_mb = threading.Event(), own_mb(peer)

    def watch() -> None:
        nonlocal most_mb
        while not done.wait(EVERY_S):
            most_mb = max(most_mb, own_mb(peer))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        peaks.append(most_mb)


def measure(millions: int) -> Figure:
    tensor_mb, peaks = 4.0 * millions, list[float]()
    places = [Place(f"local{number}", "127.0.0.1") for number in range(2)]
    with tempfile.TemporaryDirectory(prefix="ciuic-memory-") as folder, swarm(places, Path(folder)) as peers:
        before_mb = own_mb(peers[1])
        with ours(peers, millions * 1_000_000, "float32") as race:
            race(LIMIT_S)
            time.sleep(PIN_S + 1)
            race(LIMIT_S)  # from now on no earlier state is kept
            while len(peaks) < ROUNDS:
                with watched(peers[1], peaks):
                    whole = race(LIMIT_S)
                progress(f"{peaks[-1] - before_mb:.0f} MB in a round" + ("" if whole else ", in which not all took part"))
    bound_mb = TENSORS * tensor_mb + FIXED_MB
    return Figure(
        samples=[(peak - before_mb) / bound_mb for peak in peaks],
        goal=1.0,
        higher_is_better=False,
        parts={"before_mb": before_mb, "most_mb": max(peaks) - before_mb, "tensor_mb": tensor_mb, "bound_mb": bound_mb},
    )


MEASUREMENTS: dict[str, Measurement] = {
    "round_memory_25m": partial(measure, 25),
    "round_memory_250m": partial(measure, 250),
}


if __name__ == "__main__":
    sys.exit(run_benchmark("memory", MEASUREMENTS))
