"""The limits that averaging over a network is held against, by hand for networks where a hand can tell."""

from __future__ import annotations

import pytest

from benchmarks.limits import limit_s, limit_with_delays_s, longest_delay_s
from ciuic_p2p.lab.topology import Host, Topology, read_topology, shipped_topology
from ciuic_p2p.tensors.codecs.registry import codec_by_name


def network(*mbps: tuple[float, float], **more) -> Topology:
    hosts = [Host(name=f"h{i}", region=f"r{i}", up_mbps=up, down_mbps=down) for i, (up, down) in enumerate(mbps)]
    return Topology(hosts=tuple(hosts), **more)


def test_three_regions_need_6_7_s_for_50_mb_and_0_86_s_for_them_as_int4() -> None:
    topology = read_topology(shipped_topology("three-regions"))
    int4_bytes = codec_by_name("int4").encoded_bytes(12_500_000)
    assert limit_s(topology, 50e6) == pytest.approx(6.667, abs=0.001)
    assert limit_s(topology, int4_bytes) == pytest.approx(0.86, abs=0.005)
    assert limit_with_delays_s(topology, int4_bytes) == pytest.approx(0.86 + 0.21, abs=0.005)


def test_two_peers_send_the_tensor_once_each() -> None:
    assert limit_s(read_topology(shipped_topology("long-fat")), 100e6) == pytest.approx(0.8)


def test_the_slower_direction_of_a_link_counts() -> None:
    assert limit_s(network((10, 1000), (1000, 20)), 1e6) == pytest.approx(0.8)


def test_a_slow_host_sends_its_own_tensor_and_the_others_reduce_it() -> None:
    assert limit_s(network((10, 10), (1000, 1000), (1000, 1000)), 1e6) == pytest.approx(0.8)


def test_hosts_without_a_rate_are_no_limit() -> None:
    assert limit_s(network((0, 0), (0, 0), (0, 0)), 1e9) < 1e-3
    assert limit_s(network((8, 0), (0, 0)), 1e6) == pytest.approx(1.0)


def test_a_tensor_crosses_the_narrowest_cut_once_each_way() -> None:
    assert limit_s(read_topology(shipped_topology("ocean-limited")), 50e6) == pytest.approx(4.0)


def test_two_regions_without_a_cable_between_them_are_not_cut_apart() -> None:
    topology = network((0, 0), (0, 0), (0, 0), cable_mbps={"r0-r1": 1, "r2-r0": 1})
    assert limit_s(topology, 1e6) == pytest.approx(4.0)  # r0 against the others, which have the air between them


def test_the_longest_delay_is_half_the_longest_round_trip() -> None:
    assert longest_delay_s(network((0, 0), (0, 0), (0, 0), rtt_ms={"r0-r1": 80, "r1-r2": 120})) == 0.06
