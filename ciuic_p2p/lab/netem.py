"""Carries a lab's packets by the kernel's own netem and htb, where there is no C compiler for the router.

Each host is joined to a bridge in a namespace of its own. A host's egress has one class for each other host: netem gives it
the path's delay, jitter and loss, htb shares the up-link among them; the bridge's port to a host holds its down-link's rate.
There are no cables. A change of topology loses the packets under way. Knows no lab's folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ciuic_p2p.errors import ConfigError
from ciuic_p2p.lab.system import run_ip, run_tc
from ciuic_p2p.lab.topology import Host, Topology

DEVICE = "eth0"
PACKET_BYTES = 1500
UNLIMITED_MBPS = 100_000.0
FIRST_PATH_CLASS = 0x10


def connect_by_netem(switch: str, spaces: Mapping[str, str], addresses: Mapping[str, str], topology: Topology) -> None:
    """Makes the namespaces, by host, and the bridge in the namespace `switch`."""
    run_ip("netns", "add", switch)
    run_ip("-n", switch, "link", "add", "bridge", "type", "bridge")
    run_ip("-n", switch, "link", "set", "bridge", "up")
    for number, (name, space) in enumerate(spaces.items()):
        port = _port(number)
        run_ip("netns", "add", space)
        run_ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", space)
        run_ip("-n", switch, "link", "set", port, "master", "bridge", "up")
        run_ip("-n", space, "addr", "add", f"{addresses[name]}/24", "dev", DEVICE)
        run_ip("-n", space, "link", "set", DEVICE, "mtu", str(PACKET_BYTES), "gso_max_size", str(topology.gso_bytes), "up")
        run_ip("-n", space, "link", "set", "lo", "up")
    shape_by_netem(switch, spaces, addresses, topology)


def shape_by_netem(switch: str, spaces: Mapping[str, str], addresses: Mapping[str, str], topology: Topology) -> None:
    """Gives every path its delay and loss, and every link its rate."""
    if topology.cable_mbps:
        raise ConfigError("cables need the lab's router", "install a C compiler, or leave out cable_mbps")
    for number, host in enumerate(topology.hosts):
        for space, device, commands in (
            (spaces[host.name], DEVICE, egress_commands(host, topology, addresses)),
            (switch, _port(number), rate_commands(_port(number), host.down_mbps, topology.queue_ms)),
        ):
            if "htb" in run_tc("-n", space, "qdisc", "show", "dev", device):
                run_tc("-n", space, "qdisc", "del", "dev", device, "root")
            for command in commands:
                run_tc("-n", space, *command)


def egress_commands(host: Host, topology: Topology, addresses: Mapping[str, str]) -> list[list[str]]:
    """Arguments of `tc` for what leaves a host. Whatever goes to no host, such as ARP, is neither delayed nor lost."""
    rate_mbps = host.up_mbps or UNLIMITED_MBPS
    commands = rate_commands(DEVICE, host.up_mbps, topology.queue_ms)
    for number, other in enumerate(topology.hosts):
        if other.name == host.name:
            continue
        minor = f"{FIRST_PATH_CLASS + number:x}"
        delay_s, jitter_ms = topology.delay_s(host, other), topology.jitter_ms_of(host, other)
        waiting = rate_mbps * 125_000 * (delay_s + topology.queue_ms / 1000) / PACKET_BYTES
        netem = ["delay", f"{delay_s * 1000:g}ms", f"{jitter_ms:g}ms", "loss", f"{topology.loss_of(host, other) * 100:g}%"]
        on = ["dev", DEVICE, "parent"]
        share = ["rate", "1mbit", "ceil", f"{rate_mbps:g}mbit"]
        where = ["match", "ip", "dst", f"{addresses[other.name]}/32", "flowid", f"1:{minor}"]
        commands += [
            ["class", "add", *on, "1:1", "classid", f"1:{minor}", "htb", *share],
            [
                "qdisc",
                "add",
                *on,
                f"1:{minor}",
                "handle",
                f"{minor}:",
                "netem",
                *netem,
                "limit",
                f"{min(1e6, max(100, waiting)):.0f}",
            ],
            ["filter", "add", *on, "1:", "protocol", "ip", "prio", "1", "u32", *where],
        ]
    return commands


def rate_commands(device: str, mbps: float, queue_ms: float) -> list[list[str]]:
    """Arguments of `tc` for one rate and a queue of so many ms before it."""
    rate_mbps = mbps or UNLIMITED_MBPS
    queue_bytes = max(16 * PACKET_BYTES, rate_mbps * 125 * queue_ms)
    return [
        ["qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "2"],
        ["class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", f"{rate_mbps:g}mbit"],
        ["class", "add", "dev", device, "parent", "1:1", "classid", "1:2", "htb", "rate", f"{rate_mbps:g}mbit"],
        ["qdisc", "add", "dev", device, "parent", "1:2", "handle", "2:", "bfifo", "limit", f"{min(4e9, queue_bytes):.0f}"],
    ]


def read_counters(space: str) -> tuple[int, int, int]:
    """Bytes sent, bytes received, and packets dropped, of the host in this namespace."""
    counters = json.loads(run_ip("-n", space, "-s", "-j", "link", "show", "dev", DEVICE))[0]["stats64"]
    return counters["tx"]["bytes"], counters["rx"]["bytes"], counters["tx"]["dropped"] + counters["rx"]["dropped"]


def _port(number: int) -> str:
    return f"port{number}"
