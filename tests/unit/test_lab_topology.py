"""Topologies are read with one clear line for what is wrong, and written as the router reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ciuic_p2p.errors import ConfigError
from ciuic_p2p.lab.netem import egress_commands
from ciuic_p2p.lab.topology import Host, Topology, read_topology, shipped_topology


def test_a_pair_of_hosts_goes_before_its_pair_of_regions() -> None:
    hosts = tuple(Host(name=name, region=name[:2]) for name in ("us0", "us1", "eu0"))
    topology = Topology(hosts=hosts, rtt_ms={"us-eu": 90, "us1-eu0": 50})
    assert topology.delay_s(hosts[0], hosts[2]) == topology.delay_s(hosts[2], hosts[0]) == 0.045
    assert topology.delay_s(hosts[1], hosts[2]) == 0.025
    assert topology.delay_s(hosts[0], hosts[1]) == 0


def test_the_router_is_told_rates_in_bytes_and_a_cable_each_way() -> None:
    hosts = (Host(name="a", region="us", up_mbps=8), Host(name="b", region="eu", down_mbps=16))
    topology = Topology(hosts=hosts, rtt_ms={"us-eu": 100}, loss={"us-eu": 0.5}, cable_mbps={"eu-us": 1})
    lines = topology.router_config().splitlines()
    assert lines[:3] == ["2 0.2", "1000000 0", "0 2000000"]
    there, back = lines[4].split(), lines[5].split()
    assert there[:3] == back[:3] == ["0.05", "0.0", "0.5"]
    assert {there[3], back[3]} == {"0", "1"}
    assert lines[-1] == "2 125000 125000"


def test_a_cut_lasts_until_it_is_healed_and_spares_the_others() -> None:
    topology = read_topology(shipped_topology("three-regions")).cut_off("as0")
    assert topology.loss["as0-us0"] == 1.0
    assert topology.loss["us-eu"] == 0.0001


@pytest.mark.parametrize("name", ["three-regions", "ocean-limited", "home-links", "long-fat", "demo"])
def test_the_shipped_topologies_are_legal(name: str) -> None:
    assert len(read_topology(shipped_topology(name)).hosts) >= 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not a topology"),
        ("[]", "is not a topology"),
        ('{"nodes": {}}', "is not a topology: 'hosts'"),
        ('{"hosts": {}}', "a lab of 0 hosts"),
        ('{"hosts": {"a": {"speed": 1}}}', "speed"),
        ('{"hosts": {"a": {}, "b": {}}, "rtt_ms": {"a-c": 1}}', "a-c is no pair"),
        ('{"hosts": {"a": {}, "b": {}}, "loss": {"a-b": 2}}', "not between 0 and 1"),
        ('{"hosts": {"a": {}}, "delay": 1}', "delay"),
    ],
)
def test_a_wrong_topology_is_one_line_with_a_remedy(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "lab.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as raised:
        read_topology(path)
    assert raised.value.remedy


def test_a_missing_topology_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        read_topology(tmp_path / "absent.json")


def test_netem_is_told_the_path_to_each_other_host() -> None:
    hosts = (Host(name="a", region="us", up_mbps=100), Host(name="b", region="eu"), Host(name="c", region="as"))
    topology = Topology(hosts=hosts, rtt_ms={"us-eu": 90, "us-as": 160}, loss={"us-as": 0.01}, jitter_ms={"us-as": 3})
    addresses = {"a": "10.77.0.1", "b": "10.77.0.2", "c": "10.77.0.3"}
    commands = [" ".join(command) for command in egress_commands(hosts[0], topology, addresses)]
    assert any("root handle 1: htb" in command for command in commands)
    assert any("parent 1:11 handle 11: netem delay 45ms 0ms loss 0%" in command for command in commands)
    assert any("parent 1:12 handle 12: netem delay 80ms 3ms loss 1%" in command for command in commands)
    assert any("dst 10.77.0.3/32 flowid 1:12" in command for command in commands)
    assert not any("10.77.0.1/32" in command for command in commands)
