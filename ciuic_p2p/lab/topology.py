"""The wide-area network that a lab is to be, as read from JSON, and as the router reads it. Opens no device.

    {"hosts": {"us0": {"region": "us", "up_mbps": 100, "down_mbps": 100}, …},
     "rtt_ms": {"us-us": 5, "us-eu": 90},      unordered pairs of regions, or of hosts where one differs from its region
     "loss": {"us-eu": 0.001},                 of wire packets of 1,448 bytes; 1 cuts the path
     "jitter_ms": {"us-eu": 5},
     "cable_mbps": {"us-eu": 50},              one cable for each pair of regions and direction, shared by all hosts of both
     "queue_ms": 200, "gso_bytes": 16000}

A rate that is absent or 0 is unlimited.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from ciuic_p2p.errors import ConfigError

MOST_HOSTS = 200
"""MAX in router.c."""

BYTES_PER_S_PER_MBPS = 125_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine of the lab and its access link; 0 is unlimited."""

    name: str
    region: str
    up_mbps: float = 0
    down_mbps: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts and what lies between them. Tables have pairs such as "us-eu" as keys."""

    hosts: tuple[Host, ...]
    rtt_ms: Mapping[str, float] = field(default_factory=dict)
    loss: Mapping[str, float] = field(default_factory=dict)
    jitter_ms: Mapping[str, float] = field(default_factory=dict)
    cable_mbps: Mapping[str, float] = field(default_factory=dict)
    queue_ms: float = 200
    gso_bytes: int = 16_000
    """Largest super-packet: small, so that one loss takes few wire packets with it, as on a real link."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= MOST_HOSTS:
            raise ConfigError(f"a lab of {len(self.hosts)} hosts cannot be", f"name 1 to {MOST_HOSTS}")
        regions = {f"{a.region}-{b.region}" for a, b in product(self.hosts, repeat=2)}
        hosts = {f"{a.name}-{b.name}" for a, b in product(self.hosts, repeat=2)}
        _refuse_strangers("rtt_ms, loss or jitter_ms", {*self.rtt_ms, *self.loss, *self.jitter_ms} - regions - hosts)
        _refuse_strangers("cable_mbps", set(self.cable_mbps) - regions)
        if not all(0 <= share <= 1 for share in self.loss.values()):
            raise ConfigError("a loss is not between 0 and 1", "0.01 is one packet in a hundred, 1 cuts the path")

    def cut_off(self, host: str) -> Topology:
        """The same network with no path to or from `host`."""
        cuts = {f"{host}-{other.name}": 1.0 for other in self.hosts if other.name != host}
        return replace(self, loss={**self.loss, **cuts})

    def delay_s(self, source: Host, target: Host) -> float:
        """One way, without jitter and queues."""
        return _of_pair(self.rtt_ms, source, target) / 2000

    def jitter_ms_of(self, source: Host, target: Host) -> float:
        """Milliseconds that are added at random, at most."""
        return _of_pair(self.jitter_ms, source, target)

    def loss_of(self, source: Host, target: Host) -> float:
        """Share of the wire packets."""
        return _of_pair(self.loss, source, target)

    def cable_rate_mbps(self, region: str, other: str) -> float:
        """Of the cable from one region to another, each direction; 0 where there is none that limits."""
        return self.cable_mbps.get(f"{region}-{other}") or self.cable_mbps.get(f"{other}-{region}") or 0.0

    def router_config(self) -> str:
        """What router.c reads: rates in bytes/s, times in seconds, a cable for each pair of regions and direction."""
        cables = self._cables()
        numbers = {ends: number for number, ends in enumerate(cables)}
        paths = [
            f"{self.delay_s(a, b)} {self.jitter_ms_of(a, b) / 1000} {self.loss_of(a, b)}"
            f" {numbers.get((a.region, b.region), -1)}"
            for a, b in product(self.hosts, repeat=2)
        ]
        lines = [
            f"{len(self.hosts)} {self.queue_ms / 1000}",
            " ".join(str(host.up_mbps * BYTES_PER_S_PER_MBPS) for host in self.hosts),
            " ".join(str(host.down_mbps * BYTES_PER_S_PER_MBPS) for host in self.hosts),
            *paths,
            f"{len(cables)} " + " ".join(str(rate) for rate in cables.values()),
        ]
        return "\n".join(lines) + "\n"

    def _cables(self) -> dict[tuple[str, str], float]:
        """Bytes/s of each cable, by the regions that it leads from and to."""
        regions = {host.region for host in self.hosts}
        return {
            (a, b): mbps * BYTES_PER_S_PER_MBPS
            for key, mbps in self.cable_mbps.items()
            for a, b in product(regions, repeat=2)
            if key in (f"{a}-{b}", f"{b}-{a}")
        }


def read_topology(path: Path) -> Topology:
    """Raises ConfigError that names the file."""
    try:
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"the topology {path} cannot be read ({error.strerror})", "check the path") from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"{path} is not a topology: {error}", f"compare it with {shipped_topology('three-regions')}"
        ) from None


def shipped_topology(name: str) -> Path:
    """A topology that comes with the package: three-regions, ocean-limited, home-links, long-fat, demo."""
    return Path(__file__).with_name(f"{name}.json")


def find_topology(name: str) -> Topology:
    """By the name of one that is shipped, or by its path. Raises ConfigError that names the file."""
    shipped = shipped_topology(name)
    return read_topology(shipped if "/" not in name and shipped.exists() else Path(name))


def _from_json(fields: dict[str, Any]) -> Topology:
    hosts = tuple(Host(**{"name": name, "region": name, **host}) for name, host in fields["hosts"].items())
    return Topology(**{**fields, "hosts": hosts})


def _of_pair(table: Mapping[str, float], a: Host, b: Host) -> float:
    keys = (f"{a.name}-{b.name}", f"{b.name}-{a.name}", f"{a.region}-{b.region}", f"{b.region}-{a.region}")
    return next((table[key] for key in keys if key in table), 0.0)


def _refuse_strangers(where: str, keys: set[str]) -> None:
    if keys:
        raise ConfigError(
            f"{where}: {', '.join(sorted(keys))} is no pair of this lab", "write pairs of its regions or hosts, as us-eu"
        )
