"""What faults do to a run: seeded histories of the run machines in virtual time, held to the invariants of core/rounds.py.

Each history is one swarm of four peers: deaths (some come back, with or without their state), freezes and torn sessions at
random, or a leader that dies in a chosen state of its round. A seed that fails fails again: `live_through(seed)`.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from benchmarks.report import LEAST_SAMPLES, Figure, Measurement, progress, run_benchmark
from ciuic_p2p.testing.histories import live_through

RUNS = 10_000
BLOCK = 50
"""Seeds that one process is given at a time."""
Found = tuple[int, str, str]
"""(seed, kind of history, what does not hold)"""


def live_through_all(seeds: Iterable[int]) -> list[Found]:
    """In this process. What does not hold is empty where all does."""
    found = []
    for seed in seeds:
        try:
            found.append((seed, live_through(seed), ""))
        except Exception as error:  # whatever a machine raises is a finding, with the seed that shows it
            found.append((seed, "failed", f"{type(error).__name__}: {error}"))
    return found


def histories(runs: int, first_seed: int, processes: int) -> Figure:
    """How many do not keep an invariant. The same seeds give the same number, so one run is every sample."""
    blocks = [range(seed, min(seed + BLOCK, first_seed + runs)) for seed in range(first_seed, first_seed + runs, BLOCK)]
    kinds: collections.Counter[str] = collections.Counter()
    with ProcessPoolExecutor(processes) as pool:
        for number, found in enumerate(pool.map(live_through_all, blocks), start=1):
            for seed, kind, broken in found:
                kinds[kind] += 1
                if broken:
                    progress(f"seed {seed}: {broken}")
            if number % 10 == 0 or number == len(blocks):
                progress(f"{kinds.total()} of {runs} histories, {kinds['failed']} failed")
    failed = float(kinds.pop("failed", 0))
    return Figure(
        samples=[failed] * LEAST_SAMPLES,
        goal=0.0,
        higher_is_better=False,
        parts={"runs": float(runs), **{kind: float(count) for kind, count in sorted(kinds.items())}},
    )


def measurements(options: argparse.Namespace) -> dict[str, Measurement]:
    """Figure's name → what takes it."""
    return {"histories": partial(histories, options.runs, options.first_seed, options.processes)}


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(add_help=False)
    flags.add_argument("--runs", type=int, default=RUNS, help="histories")
    flags.add_argument("--first-seed", type=int, default=0, help="the others follow it")
    flags.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that live through them side by side")
    return flags


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options, _ = parser().parse_known_args()
    if options.runs < 1 or options.processes < 1:
        progress("faults could not run: nothing to do; give --runs and --processes of 1 or more")
        return 1
    return run_benchmark("faults", measurements(options), own_flags=parser())


if __name__ == "__main__":
    sys.exit(main())
