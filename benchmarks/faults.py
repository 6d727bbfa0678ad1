"""What faults do to a run: seeded histories of the run machines in virtual time, and peers that vanish from real rounds.

Each of the `histories`, which are held to the invariants of core/rounds.py, is one swarm of four peers: deaths (some come back,
with or without their state), freezes and torn sessions at random, or a leader that dies in a chosen state of its round. A seed
that fails fails again: `live_through(seed)`.

`freeze_extra` and `cut_extra` are taken with six daemons in a lab. In the middle of a round in which each contributes and sums
up a span one of them is stopped (SIGSTOP), or no packet reaches or leaves it. They are what that costs the others, in normal
rounds: (their round - re-sending - a normal round) ÷ a normal round. Re-sending counts as the least time in which the network
could average once more, among the others, what the lost peer was to sum up. The time until the peer is given up is in it, and
in `parts`: it does not depend on how long a round is, so that short rounds cost more of themselves.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import statistics
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

from benchmarks.contests import VALUES_PER_MB
from benchmarks.limits import limit_with_delays_s
from benchmarks.outages import CUT, FROZEN, Interrupted, Outage, Rounds, rounds_in
from benchmarks.report import LEAST_SAMPLES, Figure, Measurement, progress, run_benchmark
from ciuic_p2p.errors import LocalError
from ciuic_p2p.lab.topology import Topology, find_topology
from ciuic_p2p.tensors.codecs.registry import codec_by_name
from ciuic_p2p.testing.histories import live_through

RUNS = 10_000
BLOCK = 50
"""Seeds that one process is given at a time."""
MEGABYTES = 50.0
LIMIT_S = 120.0
"""For one round in the lab, or for a peer to find back."""
MOST_TRIES = 3
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


def outage_extra(kind: str, topology: Topology, megabytes: float, codec: str) -> Figure:
    """kind: of outage. Each is preceded by a round in which all take part."""
    count = int(megabytes * VALUES_PER_MB)
    encoded_bytes = codec_by_name(codec).encoded_bytes(count)
    normal_s, interrupted, resent_s = [], [], []
    with rounds_in(topology, count, codec) as rounds:
        rounds.whole(LIMIT_S)
        for victim in range(len(topology.hosts) - LEAST_SAMPLES, len(topology.hosts)):
            normal_s.append(rounds.whole(LIMIT_S).seconds)
            interrupted.append(interrupt(rounds, rounds.outage(kind, victim), victim, min(normal_s) / 2))
            resent_s.append(limit_with_delays_s(without(topology, victim), encoded_bytes * interrupted[-1].lost_share))
    normal = statistics.median(normal_s)
    return Figure(
        samples=[(one.seconds - least_s - normal) / normal for one, least_s in zip(interrupted, resent_s, strict=True)],
        goal=1.0,
        higher_is_better=False,
        parts={
            "normal_s": normal,
            "interrupted_s": statistics.median(one.seconds for one in interrupted),
            "detected_s": statistics.median(one.detected_s for one in interrupted),
            "resent_s": statistics.median(resent_s),
        },
    )


def interrupt(rounds: Rounds, outage: Outage, victim: int, after_s: float) -> Interrupted:
    """Tries again when the round was over too soon. Raises LocalError when it always is."""
    for _ in range(MOST_TRIES):
        one = rounds.interrupted(outage, victim, after_s, LIMIT_S)
        rounds.until_equal(LIMIT_S)
        if one is not None:
            progress(f"{outage.name}: {one.seconds:.2f} s, given up after {one.detected_s:.2f} s")
            return one
        progress(f"{outage.name} too late")
        after_s *= 0.7
    raise LocalError(f"a round was over before a peer was {outage.name}", "give --megabytes more")


def without(topology: Topology, victim: int) -> Topology:
    """Of the others alone."""
    gone = topology.hosts[victim]
    return replace(topology, hosts=tuple(host for host in topology.hosts if host is not gone))


def measurements(options: argparse.Namespace) -> dict[str, Measurement]:
    """Figure's name → what takes it."""
    topology = find_topology("three-regions")
    return {
        "histories": partial(histories, options.runs, options.first_seed, options.processes),
        "freeze_extra": partial(outage_extra, FROZEN, topology, options.megabytes, options.codec),
        "cut_extra": partial(outage_extra, CUT, topology, options.megabytes, options.codec),
    }


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(add_help=False)
    flags.add_argument("--runs", type=int, default=RUNS, help="histories")
    flags.add_argument("--first-seed", type=int, default=0, help="the others follow it")
    flags.add_argument("--megabytes", type=float, default=MEGABYTES, help="of the tensor that is averaged in the lab")
    flags.add_argument("--codec", default="float32", help="under which it travels")
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
