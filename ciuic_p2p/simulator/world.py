"""Peers, their regions and lines, and what lies between regions, as a simulation takes it. Knows no rounds and no time."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from ciuic_p2p.core.topology import Link, Place
from ciuic_p2p.errors import ConfigError
from ciuic_p2p.lab.topology import Topology
from ciuic_p2p.simulator.sharing import Floats, Ints
from ciuic_p2p.terms import PeerId

MOST_PEERS = 4096
"""A plan has no more members (core/messages.py)."""

PEER_ID_LENGTH = 52
"""Of a real peer id: plans are as large as real ones."""

NEAR_RTT_SHARE = 0.1
"""Between peers of one region, of the round trip between regions."""

RTT_SPREAD = 0.5
"""Round trips between regions differ from the middle one by so much of it, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """n peers in m regions. Rates in Mbit/s; infinite where nothing limits them."""

    peers: tuple[PeerId, ...]
    names: tuple[str, ...]
    regions: tuple[str, ...]
    region_of: Ints  # [n]
    up_mbps: Floats  # [n]
    down_mbps: Floats  # [n]
    delay_s: Floats  # [n, n], one way
    cable_mbps: Floats  # [m, m], directed; within a region there is none
    processor_mbps: float = math.inf
    """What the processors seal, open, encode and decode: bytes sent and bytes received count alike."""
    is_one_machine: bool = False
    """All peers share those processors, as in the lab; else each peer has as much to itself."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.peers) <= MOST_PEERS:
            raise ConfigError(f"{len(self.peers)} peers cannot be in one round", f"name 1 to {MOST_PEERS}")
        rates = (self.up_mbps.min(), self.down_mbps.min(), self.cable_mbps.min(), self.processor_mbps)
        if not all(rate > 0 for rate in rates):  # false for a NaN
            raise ConfigError("a rate is not above 0 Mbit/s", "leave out what is unlimited")

    @property
    def line_mbps(self) -> Floats:  # [n]
        """Of each peer's slower direction: in a round it sends as much as it receives."""
        return np.minimum(self.up_mbps, self.down_mbps)

    def link(self, source: int, target: int) -> Link:
        """As the two would have measured it with nothing else under way. 0 Mbit/s: nothing limits it."""
        cable = self.cable_mbps[self.region_of[source], self.region_of[target]]
        mbps = min(self.up_mbps[source], self.down_mbps[target], cable)
        rtt_ms = 1000 * (self.delay_s[source, target] + self.delay_s[target, source])
        return Link(rtt_ms=float(rtt_ms), goodput_mbps=float(mbps) if math.isfinite(mbps) else 0.0)

    def place(self, peer: int) -> Place:
        return Place(self.names[peer], self.regions[self.region_of[peer]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """What the user says of a world whose peers are alike. 0 Mbit/s is unlimited."""

    up_mbps: float = 100.0
    down_mbps: float = 100.0
    cable_mbps: float = 0.0
    """Of each region to each other one, shared by all peers of both."""
    rtt_ms: float = 100.0
    """Between two regions that are neither near nor far."""

    def __post_init__(self) -> None:
        for name, rate in (("--up-mbps", self.up_mbps), ("--down-mbps", self.down_mbps), ("--cable-mbps", self.cable_mbps)):
            if not 0 <= rate < math.inf:
                raise ConfigError(f"{name} {rate:g} is no rate", "give Mbit/s, or 0 for unlimited")
        if not 0 <= self.rtt_ms <= 60_000:
            raise ConfigError(f"--rtt-ms {self.rtt_ms:g} is no round trip", "give 0 to 60000 milliseconds")


def even_world(peers: int, regions: int, lines: Lines, seed: int = 0, processor_mbps: float = math.inf) -> World:
    """Regions of the same size with the same lines; the seed says how far they are apart."""
    if not 1 <= peers <= MOST_PEERS:
        raise ConfigError(f"--peers {peers} cannot be in one round", f"name 1 to {MOST_PEERS}")
    if regions < 1:
        raise ConfigError(f"--regions {regions} cannot be", "name 1 or more")
    regions = min(regions, peers)
    rng = random.Random(seed)  # noqa: S311  a simulation wants a seed, not secrecy
    rtt_ms = np.full((regions, regions), NEAR_RTT_SHARE * lines.rtt_ms)
    for a in range(regions):
        for b in range(a):
            rtt_ms[a, b] = rtt_ms[b, a] = lines.rtt_ms * rng.uniform(1 - RTT_SPREAD, 1 + RTT_SPREAD)
    region_of = np.arange(peers) * regions // peers
    cables = np.full((regions, regions), float(lines.cable_mbps or math.inf))
    np.fill_diagonal(cables, math.inf)
    places = [int(region) for region in region_of]
    names = tuple(f"r{region}-{number}" for number, region in enumerate(places))
    return World(
        peers=_peer_ids(names),
        names=names,
        regions=tuple(f"r{region}" for region in range(regions)),
        region_of=region_of,
        up_mbps=np.full(peers, float(lines.up_mbps or math.inf)),
        down_mbps=np.full(peers, float(lines.down_mbps or math.inf)),
        delay_s=rtt_ms[np.ix_(places, places)] / 2000,
        cable_mbps=cables,
        processor_mbps=processor_mbps,
    )


def processors_of(cpu_mbps: float) -> float:
    """A user's word on processors: 0 is unlimited. Raises ConfigError for what is no rate."""
    if not 0 <= cpu_mbps < math.inf:
        raise ConfigError(f"--cpu-mbps {cpu_mbps:g} is no rate", "give Mbit/s, or 0 for unlimited")
    return cpu_mbps or math.inf


def world_of(
    topology: Topology, *, payload_share: float = 1.0, processor_mbps: float = math.inf, is_one_machine: bool = False
) -> World:
    """The lab's network. Losses, jitter and queues are left out.

    payload_share: of what lines and cables carry, what is not headers.
    """
    hosts = topology.hosts
    regions = tuple(dict.fromkeys(host.region for host in hosts))
    cables = np.array([[topology.cable_rate_mbps(a, b) or math.inf for b in regions] for a in regions])
    return World(
        peers=_peer_ids([host.name for host in hosts]),
        names=tuple(host.name for host in hosts),
        regions=regions,
        region_of=np.array([regions.index(host.region) for host in hosts]),
        up_mbps=np.array([payload_share * host.up_mbps or math.inf for host in hosts]),
        down_mbps=np.array([payload_share * host.down_mbps or math.inf for host in hosts]),
        delay_s=np.array([[topology.delay_s(a, b) for b in hosts] for a in hosts]),
        cable_mbps=payload_share * cables,
        processor_mbps=processor_mbps,
        is_one_machine=is_one_machine,
    )


def _peer_ids(names: Sequence[str]) -> tuple[PeerId, ...]:
    return tuple(PeerId((name + "-" + blake3(name.encode()).hexdigest())[:PEER_ID_LENGTH]) for name in names)
