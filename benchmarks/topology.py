"""Groups that follow the measured network: how well the simulator foretells the lab, how rounds grow, what planning costs.

`simulator_error` averages with real daemons in three labs, one after the other, and simulates the same rounds; what it compares
are medians of a few rounds, for a single one is also what else the machine did. `scale_1000` is
simulated alone. Rounds are timed as in `benchmarks.allreduce`.

`adapt_rounds` and `adapt_limit` are of three-regions.json with real daemons: in the middle of a round the line of one of them
drops from 100 to 10 Mbit/s, both ways. Rounds are counted from the next one, until the first that takes at most 1.5 times what
the network allows at best with the slow line.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial

from benchmarks.arenas import wide_area
from benchmarks.contests import VALUES_PER_MB, Contest, Flags, flags_parser, read_flags
from benchmarks.drops import Adaptation, adaptations
from benchmarks.oceans import ocean
from benchmarks.report import LEAST_SAMPLES, Figure, Measurement, progress, run_benchmark
from ciuic_p2p.lab.topology import find_topology
from ciuic_p2p.simulator.planning import Leader, Model
from ciuic_p2p.simulator.simulation import Simulation, simulate
from ciuic_p2p.simulator.world import Lines, even_world, world_of

LIMIT_S = 600.0
WARM_UP_S = 60.0

PAYLOAD_SHARE = 1448 / 1500
"""Of a packet of the lab's: the rest is the headers of TCP and IP, which its lines and cables carry as well."""

FILLED_SHARE = 0.78
"""Of lines and cables, what pacing fills on the average of a round: it searches, keeps queues empty, begins anew after a pause.
That is not simulated: it is one constant, fitted to rounds on three-regions and home-links; ocean-limited had no part in it."""

SETTLING_LAPS = 5
"""Before those that count: by then lines and cables are found, and the plan made by them."""

GROUPED_LAPS = 3

REGIONS = 8
MODEL_BYTES = 2e9
CODEC = "int4"
EPOCHS = 3

ADAPT_MEGABYTES = 12.5


@dataclass(frozen=True, slots=True)
class Case:
    """One average that is simulated and measured."""

    topology: str
    codec: str
    megabytes: float


CASES = (
    Case("three-regions", "float32", 50.0),
    Case("ocean-limited", "float32", 50.0),
    Case("home-links", "int4", 10.0),
)


# -- simulated and measured --------------------------------------------------------------------------------------------


def simulator_error(flags: Flags, cases: Sequence[Case] = CASES) -> Figure:
    """(simulated - measured) ÷ measured seconds of a round, without its sign: the largest of all cases, group by group."""
    errors, parts = [], {}
    for case in cases:
        simulated_s, measured_s = simulated_round_s(case, flags), measured_rounds_s(case, flags)
        errors.append([abs(simulated_s - seconds) / seconds for seconds in medians_of(measured_s, GROUPED_LAPS)])
        name = case.topology.replace("-", "_")
        parts[f"{name}_simulated_s"], parts[f"{name}_measured_s"] = simulated_s, statistics.median(measured_s)
    return Figure(
        samples=[max(group) for group in zip(*errors, strict=True)], goal=flags.goal(0.2), higher_is_better=False, parts=parts
    )


def simulated_round_s(case: Case, flags: Flags) -> float:
    world = world_of(find_topology(case.topology), payload_share=PAYLOAD_SHARE * FILLED_SHARE)
    model = Model.of_size(4 * flags.count(case.megabytes), case.codec)
    return simulate(world, model, EPOCHS).round_s


def measured_rounds_s(case: Case, flags: Flags) -> list[float]:
    """By real daemons in a lab of its own, of each lap."""
    progress(f"{case.topology}: {case.codec}")
    terms = replace(flags.terms, laps=SETTLING_LAPS + GROUPED_LAPS * flags.terms.laps)
    with wide_area(find_topology(case.topology)) as arena:
        laps = arena.compare([case.codec], flags.count(case.megabytes), terms)[case.codec]
    return [lap.seconds for lap in laps[SETTLING_LAPS:]]


def medians_of(samples: Sequence[float], size: int) -> list[float]:
    """Of each `size` samples that follow one another."""
    return [statistics.median(samples[start : start + size]) for start in range(0, len(samples), size)]


# -- at scale ----------------------------------------------------------------------------------------------------------


def scale_1000() -> Figure:
    """Seconds of an epoch at 1,000 peers ÷ at 10, the same lines and as many regions; from one plan to the next."""
    few, many = simulated(10), simulated(1000)
    return Figure(
        samples=[epoch.epoch_s / few.epoch_s for epoch in many.epochs],
        goal=2.5,
        higher_is_better=False,
        parts={
            "epoch_10_s": few.epoch_s,
            "epoch_1000_s": many.epoch_s,
            "round_10_s": few.round_s,
            "round_1000_s": many.round_s,
            "predicted_1000_s": many.predicted_s,
        },
    )


def simulated(peers: int) -> Simulation:
    progress(f"{peers} peers")
    model = Model.of_size(MODEL_BYTES, CODEC)
    world = even_world(peers, REGIONS, Lines())
    return simulate(world, model, EPOCHS, said=lambda epoch: progress(f"epoch {epoch.epoch}: {epoch.epoch_s:.1f} s"))


def plan_1000_s() -> Figure:
    """What the leader of a round needs to plan it, on one core, everything else being known to it."""
    parts = {f"plan_{peers}_s": statistics.median(planning_s(peers)) for peers in (10, 100)}
    return Figure(samples=planning_s(1000), goal=1.0, higher_is_better=False, parts=parts)


def planning_s(peers: int) -> list[float]:
    """Of several plans, after a first one."""
    lines = Lines(cable_mbps=1000.0)
    leader = Leader(even_world(peers, REGIONS, lines), Model.of_size(MODEL_BYTES, CODEC))
    seconds = []
    for epoch in range(LEAST_SAMPLES + 1):
        began_s = time.perf_counter()
        leader.plan(epoch)
        seconds.append(time.perf_counter() - began_s)
    return seconds[1:]


# -- a line that becomes slow --------------------------------------------------------------------------------------------


def adapts(flags: Flags) -> dict[str, Measurement]:
    """Both figures are of the same rounds."""

    @cache
    def found() -> tuple[list[Adaptation], Mapping[str, float]]:
        return adaptations(find_topology("three-regions"), flags.count(ADAPT_MEGABYTES) / VALUES_PER_MB, "float32")

    def adapt_rounds() -> Figure:
        several, parts = found()
        return Figure(samples=[one.rounds for one in several], goal=flags.goal(2.0), higher_is_better=False, parts=parts)

    def adapt_limit() -> Figure:
        several, parts = found()
        goal = flags.goal(1.5)
        return Figure(samples=[one.times_limit for one in several], goal=goal, higher_is_better=False, parts=parts)

    return {"adapt_rounds": adapt_rounds, "adapt_limit": adapt_limit}


def oceans(flags: Flags, stack: ExitStack) -> dict[str, Measurement]:
    """In a lab of narrow cables, which comes up with the first of them and stays until `stack` is left."""
    network = find_topology("ocean-limited")
    return ocean(Contest(stack.enter_context(wide_area(network)), flags), network)


def measurements(flags: Flags, cases: Sequence[Case], stack: ExitStack) -> dict[str, Measurement]:
    """Figure's name → what takes it."""
    return {
        **oceans(flags, stack),
        **adapts(flags),
        "simulator_error": partial(simulator_error, flags, cases),
        "scale_1000": scale_1000,
        "plan_1000_s": plan_1000_s,
    }


def parser() -> argparse.ArgumentParser:
    flags = flags_parser(LIMIT_S, WARM_UP_S)
    names = [case.topology for case in CASES]
    flags.add_argument("--case", action="append", choices=names, help="simulate and measure on this network only")
    return flags


def main() -> int:
    flags, options = read_flags(parser())
    cases = [case for case in CASES if options.case is None or case.topology in options.case]
    with ExitStack() as stack:
        return run_benchmark("topology", measurements(flags, cases, stack), own_flags=parser())


if __name__ == "__main__":
    sys.exit(main())
