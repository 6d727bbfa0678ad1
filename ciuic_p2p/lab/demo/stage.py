"""Where the demonstration takes place: in a lab, or on plain loopback where no lab can be. Knows no peer's affairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from ciuic_p2p.lab.lab import Lab, RunningLab
from ciuic_p2p.lab.system import lab_available
from ciuic_p2p.lab.topology import Topology


class Stage(Protocol):
    """Runs commands on hosts."""

    sentence: str
    """What the network is, for the viewer."""

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """What to execute so that `argv` runs on that host."""

    def address(self, host: str) -> str:
        """Its IPv4 address."""


@contextmanager
def open_stage(topology: Topology, *, loopback: bool) -> Iterator[Stage]:
    """A lab if there can be one and loopback was not asked for; everything in it is gone afterwards."""
    reason = "as asked for" if loopback else lab_available()
    if reason is not None:
        yield LoopbackStage(reason)
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

    def address(self, host: str) -> str:
        """Inside the lab."""
        return self._lab.addresses[host]


class LoopbackStage:
    """All hosts are this machine."""

    def __init__(self, reason: str) -> None:
        self.sentence = f"No ocean is emulated ({reason}): all peers talk over loopback, without delay and limits."

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """As it is."""
        return list(argv)

    def address(self, host: str) -> str:
        """The same for all."""
        return "127.0.0.1"
