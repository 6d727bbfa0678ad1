"""Grid gossip: small groups along one axis of a grid average, the next epoch those along the next axis.

With a full grid of d axes everybody has the average of all after d rounds (Ryabinin et al., arXiv 2103.03239). Each round is
quick, but none of them is the average of all: a run that must stay exact never does it. Pure; for `plan` and the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ciuic_p2p.core.planning.network import Ground
from ciuic_p2p.terms import PeerId

GOSSIP = "gossip"
WANTED_GROUP = 8
MOST_ROUNDS = 64
MIXED = 0.01
"""Peers are mixed when what they disagree by is so much of what it was."""


def choose_grid(count: int) -> tuple[int, ...]:
    """Sides of a grid of at least `count` cells with sides of about WANTED_GROUP, as equal as can be; two axes at least."""
    axes = max(2, round(math.log(max(count, 2)) / math.log(WANTED_GROUP)))
    sides: list[int] = []
    for axis in range(axes):
        left = -(-count // math.prod(sides))
        side = max(1, round(left ** (1 / (axes - axis))))
        while side ** (axes - axis) < left and axis == axes - 1:
            side += 1
        sides.append(side)
    return tuple(sides)


def gossip_groups(members: Sequence[PeerId], epoch: int, grid: Sequence[int]) -> tuple[tuple[PeerId, ...], ...]:
    """Who averages with whom in that epoch: those that differ in one coordinate only, another one each epoch.

    members: in an order that all agree on; neighbours in it meet along the first axis. Raises ValueError when the grid is
    too small for them.
    """
    if len(members) > math.prod(grid):
        raise ValueError(f"{len(members)} members do not fit into a grid of {math.prod(grid)}")
    axis = epoch % len(grid)
    stride = math.prod(grid[:axis])
    groups: dict[int, list[PeerId]] = {}
    for place, member in enumerate(members):
        groups.setdefault(place - place // stride % grid[axis] * stride, []).append(member)
    return tuple(tuple(group) for _, group in sorted(groups.items()))


def count_rounds_to_mix(count: int, grid: Sequence[int]) -> int:
    """Rounds until what peers disagree by is MIXED of what it was; as many as there are axes where the grid is full.

    Follows two values that differ most along each axis; MOST_ROUNDS when they have not met by then.
    """
    members = [PeerId(str(place)) for place in range(count)]
    samples = [[float(place) for place in range(count)], [float(place * 7919 % 101) for place in range(count)]]
    first = [_disagreement(sample) for sample in samples]
    for epoch in range(MOST_ROUNDS):
        if all(_disagreement(now) <= MIXED * before for now, before in zip(samples, first, strict=True)):
            return epoch
        for group in gossip_groups(members, epoch, grid):
            places = [int(member) for member in group]
            for sample in samples:
                mean = sum(sample[place] for place in places) / len(places)
                for place in places:
                    sample[place] = mean
    return MOST_ROUNDS


def _disagreement(values: Sequence[float]) -> float:
    middle = sum(values) / len(values)
    return max(abs(value - middle) for value in values)


def order_for_gossip(ground: Ground) -> tuple[int, ...]:
    """Peers region after region, so that groups along the first axis mostly are of one region."""
    return tuple(peer for members in ground.members for peer in members)


def predict_transfer_s(ground: Ground, encoded_bytes: float) -> float:
    """The slowest axis: a butterfly of equal spans in each group, all groups at once."""
    order = order_for_gossip(ground)
    grid = choose_grid(len(order))
    names = [PeerId(str(peer)) for peer in order]
    return max(_transfer_s(ground, gossip_groups(names, axis, grid), encoded_bytes * 8e-6) for axis in range(len(grid)))


def _transfer_s(ground: Ground, groups: Sequence[Sequence[PeerId]], tensor_mbit: float) -> float:
    slowest_s, crossing = 0.0, dict.fromkeys(ground.cables_mbps, 0.0)
    for group in groups:
        peers = [int(peer) for peer in group]
        each = tensor_mbit * 2 / len(peers)  # of a pair, one way: a contribution to one's span, a result of the other's
        slowest_s = max(slowest_s, each * (len(peers) - 1) / min(ground.lines_mbps[peer] for peer in peers))
        here: dict[int, int] = {}
        for peer in peers:
            here[ground.region_of[peer]] = here.get(ground.region_of[peer], 0) + 1
        for source, target in crossing:
            crossing[source, target] += each * here.get(source, 0) * here.get(target, 0)
    return max(slowest_s, max((crossing[pair] / ground.cables_mbps[pair] for pair in crossing), default=0.0))
