"""A ring: each sends what has been summed up so far to the next. Every hop encodes anew: only codecs with little loss fit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from ciuic_p2p.core.messages import RING
from ciuic_p2p.core.planning.draft import Draft, Piece, cut
from ciuic_p2p.core.planning.network import Ground

MOST_ORDERS_TRIED = 5
"""Regions of which every order is tried; of more the nearest one is always next."""


def draft_ring(ground: Ground, count: int) -> Draft | None:
    """Region after region, so that each ocean on the way is crossed once each way. None for fewer than three peers."""
    peers = len(ground.peers)
    if peers < 3:
        return None
    order = tuple(peer for region in order_regions(ground) for peer in ground.members[region])
    spans = cut(count, [1 / peers] * peers)
    pieces = (Piece(start, stop, owner) for owner, (start, stop) in zip(order, spans, strict=True) if stop > start)
    return Draft(RING, tuple(pieces), (order,))


def order_regions(ground: Ground) -> tuple[int, ...]:
    """Around the widest cables, and among equals along the shortest round trips."""
    first, *others = (region for region, members in enumerate(ground.members) if members)
    if len(others) < MOST_ORDERS_TRIED:
        orders: Iterator[tuple[int, ...]] = itertools.permutations(others)
    else:
        orders = iter([_nearest_next(ground, first, others)])
    return min(
        ((first, *order) for order in orders), key=lambda order: (-_narrowest_mbps(ground, order), _length_ms(ground, order))
    )


def _nearest_next(ground: Ground, first: int, others: Sequence[int]) -> tuple[int, ...]:
    left, order, here = set(others), [], first
    while left:
        here = min(left, key=lambda region: (ground.rtt_between_ms(here, region), region))
        left.discard(here)
        order.append(here)
    return tuple(order)


def _crossings(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    for here, there in zip(order, (*order[1:], order[0]), strict=True):
        yield here, there
        yield there, here


def _narrowest_mbps(ground: Ground, order: Sequence[int]) -> float:
    return min((ground.cables_mbps.get(crossing, math.inf) for crossing in _crossings(order)), default=math.inf)


def _length_ms(ground: Ground, order: Sequence[int]) -> float:
    return sum(ground.rtt_between_ms(here, there) for here, there in _crossings(order))
