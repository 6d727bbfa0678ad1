"""The plan that the leader of an epoch would make in a world where everything was measured. Makes none itself: core does."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from ciuic_p2p.core.messages import BUTTERFLY, LARGEST_COUNT, Plan
from ciuic_p2p.core.pacing import MOST_MBPS
from ciuic_p2p.core.parts import choose_part_values
from ciuic_p2p.core.planning.network import Network
from ciuic_p2p.core.planning.planner import Planned, RoundToPlan, plan_round
from ciuic_p2p.core.succession import next_counter, order_of_succession, term_of
from ciuic_p2p.core.topology import Links
from ciuic_p2p.errors import ConfigError
from ciuic_p2p.simulator.world import World
from ciuic_p2p.tensors.codecs.base import Codec
from ciuic_p2p.tensors.codecs.registry import codec_by_name, reply_codec
from ciuic_p2p.terms import StateHash
from ciuic_p2p.wording import in_bytes

RUN = "simulated"
MOST_FRAMES = 150_000
"""Of one epoch, contributions and results. Beyond that parts are made larger, as far as a plan allows."""
LARGEST_PART_VALUES = 1 << 20
"""That a plan allows (core/messages.py)."""
PEERS_MEASURED = 3
"""Of each region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is averaged: values without buffers, under a codec."""

    count: int
    codec: Codec

    @classmethod
    def of_size(cls, size_bytes: float, codec: str) -> Model:
        """size_bytes: as float32. Raises ConfigError for a size that no plan can have, and a codec that there is not."""
        if size_bytes < 4:
            raise ConfigError(f"a model of {size_bytes:g} bytes has no value", "give a size such as 500MB, 2GB")
        if size_bytes // 4 > LARGEST_COUNT:
            raise ConfigError(f"a model of {in_bytes(size_bytes)} is larger than any plan's", "name a smaller model")
        return cls(count=int(size_bytes) // 4, codec=codec_by_name(codec))

    @property
    def encoded_bytes(self) -> int:
        """Of the whole tensor: the mean of what it takes as contribution and as result."""
        return (self.codec.encoded_bytes(self.count) + reply_codec(self.codec).encoded_bytes(self.count)) // 2


class Leader:
    """Whoever leads an epoch: all see the same, so one stands for all."""

    def __init__(self, world: World, model: Model) -> None:
        self._world, self._model = world, model
        self._network = network_of(world)
        self._topology_before = BUTTERFLY
        self.planned: Planned | None = None
        """The newest plan as the planner gave it, with its alternatives."""

    def plan(self, epoch: int) -> Plan:
        """As core/runs.py has the leader make it, from true lines, cables and links instead of measured ones."""
        model, contributors = self._model, order_of_succession(RUN, epoch, self._world.peers)
        planned = plan_round(
            RoundToPlan(
                contributors=contributors,
                count=model.count,
                encoded_bytes=model.encoded_bytes,
                codec=model.codec.name,
                previous=self._topology_before,
            ),
            self._network,
        )
        self.planned, self._topology_before = planned, planned.topology
        plan = Plan(
            run=RUN,
            epoch=epoch,
            term=term_of(next_counter(0), RUN, epoch, contributors[0]),
            base_hash=StateHash(f"{epoch:064}"),
            contributors=contributors,
            listeners=(),
            spans=planned.spans,
            topology=planned.topology,
            groups=planned.groups,
            count=model.count,
            parameter_count=model.count,
            part_values=choose_part_values(model.count, len(contributors), planned.values_per_s),
            codec=model.codec.name,
            lossless_level=0,
            reason=planned.reason,
            outer_learning_rate=1.0,
            outer_momentum=0.0,
            predicted_s=planned.predicted_s,
            patience_s=planned.patience_s,
        )
        return with_fewer_parts(plan)


def with_fewer_parts(plan: Plan) -> Plan:
    """Larger parts where there would be more frames than a simulation should move: stages overlap a little less then."""
    frames_of_a_part = 2 * (len(plan.contributors) - 1)
    wanted = -(-plan.count * frames_of_a_part // MOST_FRAMES)
    return dataclasses.replace(plan, part_values=max(plan.part_values, min(wanted, LARGEST_PART_VALUES)))


def network_of(world: World) -> Network:
    """As all peers together would have measured it."""
    m = range(len(world.regions))
    return Network(
        links=_links_of(world),
        places={peer: world.place(number) for number, peer in enumerate(world.peers)},
        lines_mbps={peer: min(float(mbps), MOST_MBPS) for peer, mbps in zip(world.peers, world.line_mbps, strict=True)},
        cables_mbps={
            (world.regions[a], world.regions[b]): float(world.cable_mbps[a, b])
            for a in m
            for b in m
            if math.isfinite(world.cable_mbps[a, b])
        },
    )


def _links_of(world: World) -> Links:
    """Of a few peers of each region: the others' say no more than their lines, which the planner is told."""
    met: dict[int, list[int]] = {}
    for number, region in enumerate(world.region_of.tolist()):
        met.setdefault(region, []).append(number)
    some = [number for members in met.values() for number in members[:PEERS_MEASURED]]
    return {(world.peers[a], world.peers[b]): world.link(a, b) for a in some for b in some if a != b}
