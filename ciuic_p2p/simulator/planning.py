"""The plan that the leader of an epoch would make in a world where everything was measured. Makes none itself: core does."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ciuic_p2p.core.messages import Plan
from ciuic_p2p.core.parts import choose_part_values
from ciuic_p2p.core.succession import next_counter, order_of_succession, term_of
from ciuic_p2p.core.topology import Links, plan_butterfly
from ciuic_p2p.simulator.world import World
from ciuic_p2p.tensors.codecs.base import Codec
from ciuic_p2p.tensors.codecs.registry import codec_by_name, reply_codec
from ciuic_p2p.terms import PeerId, StateHash

RUN = "simulated"
MOST_FRAMES = 150_000
"""Of one epoch, contributions and results. Beyond that parts are made larger, as far as a plan allows."""
LARGEST_PART_VALUES = 1 << 20
"""That a plan allows (core/messages.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is averaged: values without buffers, under a codec."""

    count: int
    codec: Codec

    @classmethod
    def of_size(cls, size_bytes: float, codec: str) -> Model:
        """size_bytes: as float32. Raises ConfigError for a codec that there is not."""
        return cls(count=max(int(size_bytes) // 4, 1), codec=codec_by_name(codec))

    @property
    def encoded_bytes(self) -> int:
        """Of the whole tensor: the mean of what it takes as contribution and as result."""
        return (self.codec.encoded_bytes(self.count) + reply_codec(self.codec).encoded_bytes(self.count)) // 2


def plan_epoch(world: World, model: Model, epoch: int) -> Plan:
    """As core/runs.py has the leader make it, from true lines and links instead of measured ones."""
    contributors = order_of_succession(RUN, epoch, world.peers)
    numbers = {peer: number for number, peer in enumerate(world.peers)}
    lines = {peer: float(world.line_mbps[number]) for peer, number in numbers.items() if world.line_mbps[number] < 1e9}
    butterfly = plan_butterfly(contributors, model.count, model.encoded_bytes, links_of(world), lines)
    plan = Plan(
        run=RUN,
        epoch=epoch,
        term=term_of(next_counter(0), RUN, epoch, contributors[0]),
        base_hash=StateHash(f"{epoch:064}"),
        contributors=contributors,
        listeners=(),
        spans=butterfly.spans,
        count=model.count,
        parameter_count=model.count,
        part_values=choose_part_values(model.count, len(contributors), butterfly.values_per_s),
        codec=model.codec.name,
        lossless_level=0,
        reason="simulated; spans by bandwidth",
        outer_learning_rate=1.0,
        outer_momentum=0.0,
        predicted_s=butterfly.predicted_s,
        patience_s=butterfly.patience_s,
    )
    return with_fewer_parts(plan)


def with_fewer_parts(plan: Plan) -> Plan:
    """Larger parts where there would be more frames than a simulation should move: stages overlap a little less then."""
    frames_of_a_part = 2 * (len(plan.contributors) - 1)
    wanted = -(-plan.count * frames_of_a_part // MOST_FRAMES)
    return dataclasses.replace(plan, part_values=max(plan.part_values, min(wanted, LARGEST_PART_VALUES)))


def links_of(world: World) -> Links:
    """One pair of peers for each pair of regions: the others are alike but for their lines, which the planner is told."""
    first: dict[int, list[int]] = {}
    for number, region in enumerate(world.region_of.tolist()):
        first.setdefault(region, [])
        if len(first[region]) < 2:
            first[region].append(number)
    some = [number for members in first.values() for number in members]
    ids: tuple[PeerId, ...] = world.peers
    return {(ids[a], ids[b]): world.link(a, b) for a in some for b in some if a != b}
