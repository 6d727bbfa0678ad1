"""What happens in the demonstration, as numbers. Starts nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ciuic_p2p.errors import LocalError
from ciuic_p2p.lab.topology import Topology, read_topology, shipped_topology

SCRIPT = "mnist_three_regions.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One peer for each host of the topology; the first starts the swarm and the others join it."""

    topology: Topology
    epochs: int = 40
    inner_steps: int = 25
    batch_size: int = 32
    killed: str = "node-as"
    """Daemon and trainer of this peer are killed at once."""
    killed_at_epoch: int = 12
    back_after_epochs: int = 2
    """How many epochs the others finish without it before it is started again."""
    least_accuracy: float = 0.95

    def __post_init__(self) -> None:
        if self.killed not in self.peers[1:] or self.killed_at_epoch + self.back_after_epochs >= self.epochs:
            raise ValueError("the killed peer is one that joined, and comes back before the end")

    @property
    def peers(self) -> tuple[str, ...]:
        """Their names, which are those of their hosts."""
        return tuple(host.name for host in self.topology.hosts)

    @property
    def survivors(self) -> tuple[str, ...]:
        """Who is not killed."""
        return tuple(name for name in self.peers if name != self.killed)

    def region_of(self, peer: str) -> str:
        """The region of its host."""
        return next(host.region for host in self.topology.hosts if host.name == peer)


def shipped_scenario() -> Scenario:
    """What `ciuic-peer demo` shows."""
    return Scenario(topology=read_topology(shipped_topology("demo")))


def plain_data_parallel_bytes(parameters: int, steps: float, peers: int) -> float:
    """What one peer would send to average float32 gradients at every step: 2·(n−1)/n of them, the least that any all-reduce
    can do (Patarasuk and Yuan, 2009)."""
    return 4.0 * parameters * steps * 2 * (peers - 1) / peers


def training_script() -> Path:
    """The example that the peers run: in a clone beside the package, in an installation where the wheel put it."""
    clone = Path(__file__).parents[3] / "examples"
    installed = Path(sys.prefix) / "share" / "ciuic-p2p" / "examples"
    for folder in (clone, installed):
        if (folder / SCRIPT).exists():
            return folder / SCRIPT
    raise LocalError(
        f"{SCRIPT} is not installed", "install again with `pip install 'ciuic-p2p[examples]'`, or run it in a clone"
    )
