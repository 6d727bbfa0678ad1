"""The least time in which a network can average a tensor that all its hosts hold. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from ciuic_p2p.core.planning.butterfly import share_by_bandwidth
from ciuic_p2p.lab.topology import BYTES_PER_S_PER_MBPS, Topology

UNLIMITED_MBPS = 1e9
"""Stands for the rate of a host that has none; the router carries no more than that either."""


def limit_s(topology: Topology, size_bytes: float) -> float:
    """The slower of what the hosts' own links allow and what the cables do; delays not counted.

    size_bytes: of the whole tensor, as it is sent.
    """
    return max(_access_limit_s(topology, size_bytes), _cable_limit_s(topology, size_bytes))


def longest_delay_s(topology: Topology) -> float:
    """One way, between the two hosts that are furthest apart."""
    return max((topology.delay_s(a, b) for a, b in combinations(topology.hosts, 2)), default=0.0)


def limit_with_delays_s(topology: Topology, size_bytes: float) -> float:
    """The same, and a one-way delay for the contributions and another for the means: small tensors cannot hide them."""
    return limit_s(topology, size_bytes) + 2 * longest_delay_s(topology)


def slowest_mbps(topology: Topology) -> float:
    """Of all access links, up or down; infinite where none has a rate."""
    return min((rate for host in topology.hosts for rate in (host.up_mbps, host.down_mbps) if rate), default=math.inf)


def _access_limit_s(topology: Topology, size_bytes: float) -> float:
    """A peer sends as much as it receives, so the slower of its two directions counts."""
    rates_bps = [
        min(host.up_mbps or UNLIMITED_MBPS, host.down_mbps or UNLIMITED_MBPS) * 8 * BYTES_PER_S_PER_MBPS
        for host in topology.hosts
    ]
    return share_by_bandwidth(size_bytes, rates_bps)[1]


def _cable_limit_s(topology: Topology, size_bytes: float) -> float:
    """Whatever the method: between any two halves of the regions the whole tensor must pass once each way."""
    rates = [_mbps_across(topology, half) for half in _halves(sorted({host.region for host in topology.hosts}))]
    return max((size_bytes / BYTES_PER_S_PER_MBPS / rate for rate in rates), default=0.0)


def _halves(regions: list[str]) -> Iterator[frozenset[str]]:
    """Every way to part them in two, as the part that has the first of them."""
    for more in range(len(regions) - 1):
        for others in combinations(regions[1:], more):
            yield frozenset((regions[0], *others))


def _mbps_across(topology: Topology, half: frozenset[str]) -> float:
    """Of all cables between one half of the regions and the other; infinite when two regions have no cable, but the air."""
    others = {host.region for host in topology.hosts} - half
    return sum(_cable_mbps(topology, a, b) for a in half for b in others)


def _cable_mbps(topology: Topology, a: str, b: str) -> float:
    return topology.cable_rate_mbps(a, b) or math.inf
