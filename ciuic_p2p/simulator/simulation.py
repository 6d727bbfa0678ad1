"""What one simulation found: several epochs of one world, or of a growing one. Plain data for tables, JSON and curves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ciuic_p2p.core.planning.gossip import choose_grid, count_rounds_to_mix
from ciuic_p2p.core.planning.planner import Alternative
from ciuic_p2p.simulator.epochs import EpochReport, Epochs
from ciuic_p2p.simulator.planning import Leader, Model
from ciuic_p2p.simulator.sharing import Floats
from ciuic_p2p.simulator.world import World

CURVE = (10, 30, 100, 300, 1000, 3000)
"""Sizes of a curve, up to the one that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Of one world."""

    world: World
    model: Model
    epochs: tuple[EpochReport, ...]
    alternatives: tuple[Alternative, ...]
    """What the planner weighed for the last epoch, the quickest first."""
    rounds_to_mix: int = 1
    """Every round's mean is that of all."""

    @property
    def gossip_rounds_to_mix(self) -> int:
        """That grid gossip would take instead, until peers differ by a hundredth of what they did."""
        peers = len(self.world.peers)
        return count_rounds_to_mix(peers, choose_grid(peers))

    @property
    def epoch_s(self) -> float:
        return statistics.median(epoch.epoch_s for epoch in self.epochs)

    @property
    def round_s(self) -> float:
        return statistics.median(epoch.round_s for epoch in self.epochs)

    @property
    def predicted_s(self) -> float:
        return statistics.median(epoch.predicted_s for epoch in self.epochs)

    @property
    def ocean_bytes(self) -> Floats:
        """[m, m], of one epoch."""
        return np.asarray(np.mean([epoch.ocean_bytes for epoch in self.epochs], axis=0))

    def to_json(self) -> dict[str, Any]:
        regions = self.world.regions
        oceans = self.ocean_bytes
        return {
            "peers": len(self.world.peers),
            "regions": len(regions),
            "model_bytes": 4 * self.model.count,
            "codec": self.model.codec.name,
            "encoded_bytes": self.model.encoded_bytes,
            "topology": self.epochs[-1].topology,
            "epoch_s": self.epoch_s,
            "round_s": self.round_s,
            "predicted_s": self.predicted_s,
            "rounds_to_mix": self.rounds_to_mix,
            "gossip_rounds_to_mix": self.gossip_rounds_to_mix,
            "alternatives": [
                {"topology": one.topology, "predicted_s": one.predicted_s, "bound_by": one.bound_by, "barred": one.barred}
                for one in self.alternatives
            ],
            "ocean_bytes": [
                {"from": a, "to": b, "bytes": round(oceans[i, j])}
                for i, a in enumerate(regions)
                for j, b in enumerate(regions)
                if i != j
            ],
            "epochs": [
                {
                    "epoch": epoch.epoch,
                    "topology": epoch.topology,
                    "epoch_s": epoch.epoch_s,
                    "round_s": epoch.round_s,
                    "predicted_s": epoch.predicted_s,
                    "contributions": epoch.contributions,
                    "frames": epoch.frames,
                }
                for epoch in self.epochs
            ],
        }


def simulate(
    world: World,
    model: Model,
    epochs: int,
    said: Callable[[EpochReport], None] = lambda _: None,
) -> Simulation:
    """said: is told of every epoch that is over. Raises RoundFailed when a peer leaves a round."""
    leader = Leader(world, model)
    run = Epochs(world, model, leader.plan)
    reports: list[EpochReport] = []
    for epoch in range(epochs):
        reports.append(run.run_epoch(epoch))
        said(reports[-1])
    assert leader.planned is not None, "an epoch was simulated"
    return Simulation(world=world, model=model, epochs=tuple(reports), alternatives=leader.planned.alternatives)


def sizes_up_to(peers: int) -> Sequence[int]:
    """Of a curve that ends with `peers`."""
    return [*(size for size in CURVE if size < peers), peers]
