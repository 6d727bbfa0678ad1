"""Where the demonstration takes place: in a lab, or on plain loopback where no lab can be. Knows no peer's affairs."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from ciuic_p2p.lab.lab import Lab, RunningLab
from ciuic_p2p.lab.system import lab_available
from ciuic_p2p.lab.topology import Topology

LAB_PORT = 4001
"""Of libp2p on each host of a lab; sessions take the next one."""

LOOPBACK_PORTS = range(20_001, 32_001, 2)
"""Below those that Linux gives to outgoing connections, so that a peer that comes back finds its own still free."""

LANES_SENT_TO = 4
"""Two lanes to each of two other peers, as the daemon's defaults have it."""


class Stage(Protocol):
    """Runs commands on hosts."""

    sentence: str
    """What the network is, for the viewer."""

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """What to execute so that `argv` runs on that host."""

    def listen(self, host: str) -> str:
        """The multiaddr that its daemon listens on, the same in all its lives."""

    def settings(self) -> dict[str, str]:
        """Of every daemon, as environment."""


@contextmanager
def open_stage(topology: Topology, *, loopback: bool) -> Iterator[Stage]:
    """A lab if there can be one and loopback was not asked for; everything in it is gone afterwards."""
    reason = "as asked for" if loopback else lab_available()
    if reason is not None:
        yield LoopbackStage(reason, topology)
        return
    with Lab(topology) as lab:
        yield LabStage(lab, topology)


class LabStage:
    """Each host a network namespace, long links between them."""

    def __init__(self, lab: RunningLab, topology: Topology) -> None:
        rtts = ", ".join(f"{pair} {rtt:.0f} ms" for pair, rtt in topology.rtt_ms.items())
        rate = min(host.up_mbps for host in topology.hosts)
        self.sentence = f"An emulated ocean: {rtts} round trip; {rate:.0f} Mbit/s for each peer."
        self._lab = lab

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """In its namespace."""
        return self._lab.command(host, argv)

    def listen(self, host: str) -> str:
        """Inside the lab."""
        return f"/ip4/{self._lab.addresses[host]}/tcp/{LAB_PORT}"

    def settings(self) -> dict[str, str]:
        """None: the network is slow by itself."""
        return {}


class LoopbackStage:
    """All hosts are this machine; the kernel limits the rate of each lane."""

    def __init__(self, reason: str, topology: Topology) -> None:
        rate = min(host.up_mbps for host in topology.hosts)
        self._lane_mbps = rate / LANES_SENT_TO
        self._ports = dict(zip((host.name for host in topology.hosts), _free_ports(), strict=False))
        self.sentence = (
            f"No ocean is emulated ({reason}): all peers talk over loopback without delay. Only rates are emulated:"
            f" each lane sends at most {self._lane_mbps:.0f} Mbit/s, so each peer {rate:.0f} Mbit/s."
        )

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """As it is."""
        return list(argv)

    def listen(self, host: str) -> str:
        """A port of its own, and the next one for sessions."""
        return f"/ip4/127.0.0.1/tcp/{self._ports[host]}"

    def settings(self) -> dict[str, str]:
        """The limit."""
        return {"CIUIC_LANE_MBPS": str(self._lane_mbps)}


def _free_ports() -> Iterator[int]:
    """Each with the one after it."""
    candidates = random.SystemRandom().sample(LOOPBACK_PORTS, len(LOOPBACK_PORTS))
    for port in candidates:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 1)):
            yield port
