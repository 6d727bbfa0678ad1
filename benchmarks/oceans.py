"""Figures over narrow cables between regions: the planner's topology beside a flat one, gloo, and what the cables allow.

The rows that begin with `source` are those of the source documents' table, which compares a plain TCP all-reduce with
compressed links and with the best topology: effective throughput, so seconds for the same tensor. gloo stands for plain TCP.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contests import Contest
from benchmarks.limits import limit_s
from benchmarks.report import Measurement
from ciuic_p2p.lab.topology import Topology

MEGABYTES = 50.0


def ocean(contest: Contest, topology: Topology) -> dict[str, Measurement]:
    """Of 50 MB of float32 a peer. A codec's name with "@butterfly": ours, but always flat."""
    limit = partial(limit_s, topology)
    return {
        "ocean_limit": contest.times_limit("float32", MEGABYTES, limit, 1.3),
        "ocean_gloo": contest.times_faster("float32", "gloo", MEGABYTES, 4.0),
        "ocean_flat": contest.times_faster("float32", "float32@butterfly", MEGABYTES, 1.5),
        "source_compressed": contest.times_faster("int4@butterfly", "gloo", MEGABYTES, 2.33),
        "source_topology": contest.times_faster("int4", "gloo", MEGABYTES, 2.92),
        "source_link_share": contest.share_of_limit("float32", MEGABYTES, limit, 0.82),
    }
