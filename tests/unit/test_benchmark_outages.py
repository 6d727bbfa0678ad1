"""The networks that the benchmarks of outages and slow lines compute their limits for."""

from __future__ import annotations

import pytest

from benchmarks.drops import with_slow_line
from benchmarks.faults import without
from benchmarks.limits import limit_s
from ciuic_p2p.lab.topology import find_topology

SIZE_BYTES = 50_000_000


def test_a_slow_line_makes_the_limit_what_its_peer_must_send_and_get():
    topology = find_topology("three-regions")
    slow = with_slow_line(topology, 2)
    assert [host.name for host in slow.hosts] == [host.name for host in topology.hosts]
    assert [host.up_mbps for host in slow.hosts] == [100, 100, 10, 100, 100, 100]
    assert limit_s(slow, SIZE_BYTES) == pytest.approx(40.0)
    assert limit_s(topology, SIZE_BYTES) == pytest.approx(20 / 3)


def test_those_who_stay_average_without_the_lost_peer():
    topology = find_topology("three-regions")
    rest = without(topology, 5)
    assert [host.name for host in rest.hosts] == ["us0", "us1", "eu0", "eu1", "as0"]
    assert limit_s(rest, SIZE_BYTES) < limit_s(topology, SIZE_BYTES)
