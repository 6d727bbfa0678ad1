"""Averaging over a wide-area network: ours beside gloo, hivemind and what the links allow at best.

Real daemons in a lab on this machine: a network namespace for each peer, the kernel's own TCP, delays, losses and rates from a
topology. gloo and hivemind run in the same namespaces, in turn with ours. Figures named wan3 are taken in `--topology`, the
others in a network of their own. Rounds are timed as in `benchmarks.allreduce`; `limit_s` is what `benchmarks.limits` says.
heartbeat_extra_s is how much longer than the path's round trip the slowest ping took that was sent during a round.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from functools import partial

from benchmarks.arenas import wide_area
from benchmarks.contests import Contest, Flags, flags_parser, read_flags
from benchmarks.limits import limit_s, limit_with_delays_s
from benchmarks.report import Measurement, progress, run_benchmark
from ciuic_p2p.errors import ConfigError
from ciuic_p2p.lab.topology import Host, Topology, find_topology

MEGABYTES = 50.0
HOME_MEGABYTES = 10.0
LONG_FAT_MEGABYTES = 100.0
SLOW_MEGABYTES = 15.0
SLOW_RTT_MS = 100.0
SLOW_LINES = Topology(
    hosts=tuple(Host(name=f"{region}0", region=region, up_mbps=10, down_mbps=10) for region in ("us", "eu")),
    rtt_ms={"us-eu": SLOW_RTT_MS},
)
LIMIT_S = 900.0
WARM_UP_S = 15.0


def ocean(contest: Contest, topology: Topology) -> dict[str, Measurement]:
    """Figures of the network that the user chose."""
    return {
        "wan3_limit": contest.times_limit("float32", MEGABYTES, partial(limit_s, topology), 1.2),
        "wan3_gloo": contest.times_faster("float32", "gloo", MEGABYTES, 2.8),
        "wan3_hivemind": contest.times_faster("float32", "hivemind", MEGABYTES, 3.5),
        "wan3_int4_gloo": contest.times_faster("int4", "gloo", MEGABYTES, 15.0),
        "wan3_int4_limit": contest.times_limit("int4", MEGABYTES, partial(limit_with_delays_s, topology), 1.4),
    }


def home_links(contest: Contest, topology: Topology) -> dict[str, Measurement]:
    """Slow and unequal up-links, one of them lossy."""
    limit = partial(limit_with_delays_s, topology)
    return {"home_int4_limit": contest.times_limit("int4", HOME_MEGABYTES, limit, 1.4)}


def long_fat(contest: Contest, topology: Topology) -> dict[str, Measurement]:
    """Two peers far apart on a fast link."""
    return {"long_fat_share": contest.share_of_limit("float32", LONG_FAT_MEGABYTES, partial(limit_s, topology), 0.8)}


def slow_lines(contest: Contest, _topology: Topology) -> dict[str, Measurement]:
    """Two peers whose lines a round fills for 12 seconds and more."""
    return {"heartbeat_extra_s": contest.slowest_ping("float32", SLOW_MEGABYTES, SLOW_RTT_MS / 1000, 1.5)}


def measurements(topology: Topology, flags: Flags, stack: ExitStack) -> dict[str, Measurement]:
    """Figure's name → what takes it. No lab is up before a figure needs it, and each then stays until `stack` is left."""
    networks = (
        (ocean, topology),
        (home_links, find_topology("home-links")),
        (long_fat, find_topology("long-fat")),
        (slow_lines, SLOW_LINES),
    )
    found: dict[str, Measurement] = {}
    for figures_of, network in networks:
        found |= figures_of(Contest(stack.enter_context(wide_area(network)), flags), network)
    return found


def parser() -> argparse.ArgumentParser:
    flags = flags_parser(LIMIT_S, WARM_UP_S)
    flags.add_argument("--topology", default="three-regions", help="a JSON file, or the name of one that is shipped")
    return flags


def main() -> int:
    flags, options = read_flags(parser())
    try:
        topology = find_topology(options.topology)
    except ConfigError as error:
        progress(f"wan could not run: {error}")
        return 1
    with ExitStack() as stack:
        return run_benchmark("wan", measurements(topology, flags, stack), own_flags=parser())


if __name__ == "__main__":
    sys.exit(main())
