"""Stripes of erasure-coded objects: which peer should hold which shard, and what is to be copied or rebuilt. Pure.

A stripe is k data shards and their m parity shards; any k give the rest (tensors/erasure.py). Each belongs on a peer of its
own, regions first. Who holds a shard of it already and is among those that the stripe is placed on keeps that one, so that a
peer that goes or comes moves its own shard and no other.

Every peer makes the same plan from the same facts and does its own part of it, as in core/repairs.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle, islice

from ciuic_p2p.core.placement import Holder, rank_holders
from ciuic_p2p.core.repairs import MOST_MOVED_BYTES, Census
from ciuic_p2p.terms import PeerId, ShardId

Holders = Mapping[ShardId, Collection[PeerId]]
"""Of each shard, as told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stripe:
    """Raises ValueError for one that cannot be."""

    k: int
    data: tuple[ShardId, ...]
    """At most k: a blob's last stripe may have fewer, and the others count as nothing but zeros."""
    parity: tuple[ShardId, ...]
    sizes: tuple[int, ...]
    """Bytes as they are kept, data first."""

    def __post_init__(self) -> None:
        if not 0 < len(self.data) <= self.k or not self.parity or len(self.sizes) != len(self.shards):
            raise ValueError(f"a stripe of {len(self.data)} of {self.k} and {len(self.parity)} shards")

    @property
    def shards(self) -> tuple[ShardId, ...]:
        return self.data + self.parity

    @property
    def width(self) -> int:
        """Of its parity shards."""
        return max(self.sizes)

    def number_of(self, place: int) -> int:
        """In the code, of the shard at this place of `shards`: parity comes after k data shards, wanting ones included."""
        return place if place < len(self.data) else place - len(self.data) + self.k

    def empty(self) -> range:
        """Numbers of the data shards that it has not."""
        return range(len(self.data), self.k)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchShard:
    """`target` takes it from somebody who is here and has it."""

    shard: ShardId
    target: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildShard:
    """Nobody has it; `target` makes it from others of its stripe."""

    stripe: Stripe
    shard: ShardId
    target: PeerId


def assign(stripe: Stripe, able: Iterable[Holder], holders: Holders) -> tuple[PeerId, ...]:
    """Who should hold each shard of the stripe, in order. Where there are fewer peers than shards, some have several.

    able: who holds one of them, or has room for one. Empty where nobody is.
    """
    chosen = [holder.peer for holder in rank_holders(stripe.data[0], able)[: len(stripe.shards)]]
    if not chosen:
        return ()
    rooms = Counter(islice(cycle(chosen), len(stripe.shards)))
    held = {peer: [n for n, shard in enumerate(stripe.shards) if peer in holders.get(shard, ())] for peer in chosen}
    found: dict[int, PeerId] = {}
    for peer in sorted(chosen, key=lambda peer: len(held[peer])):  # who has one has no choice; who put it has all
        for place in held[peer]:
            if place not in found and rooms[peer]:
                found[place] = peer
                rooms[peer] -= 1
    rest = iter([peer for peer in chosen for _ in range(rooms[peer])])
    return tuple(found[place] if place in found else next(rest) for place in range(len(stripe.shards)))


def plan_stripes(
    stripes: Iterable[Stripe], holders: Holders, census: Census, most_moved_bytes: int = MOST_MOVED_BYTES
) -> tuple[FetchShard | RebuildShard, ...]:
    """What is to be made now, those stripes first that can lose least. What nobody can make has no plan."""
    moved_bytes: Counter[PeerId] = Counter()
    plan: list[FetchShard | RebuildShard] = []
    for stripe in sorted(stripes, key=lambda stripe: (spare_shards(stripe, holders, census), stripe.data[0])):
        for shard, target in _wanted(stripe, holders, census):
            if target not in census.alive or target in holders.get(shard, ()):
                continue
            if not _has(shard, holders, census.staying):
                if can_be_read(stripe, holders, census.alive):
                    plan.append(RebuildShard(stripe=stripe, shard=shard, target=target))
            elif _has(shard, holders, census.alive) and moved_bytes[target] < most_moved_bytes:
                moved_bytes[target] += stripe.width
                plan.append(FetchShard(shard=shard, target=target))
    return tuple(plan)


def surplus_of(me: PeerId, stripe: Stripe, holders: Holders, census: Census) -> frozenset[ShardId]:
    """Shards that this peer may let go: others should hold them, are alive, and do."""
    targets: dict[ShardId, list[PeerId]] = {}
    for shard, target in _wanted(stripe, holders, census):
        targets.setdefault(shard, []).append(target)
    return frozenset(
        shard
        for shard, peers in targets.items()
        if me in holders.get(shard, ())
        and me not in peers
        and all(peer in census.alive and peer in holders.get(shard, ()) for peer in peers)
    )


def spare_shards(stripe: Stripe, holders: Holders, census: Census) -> int:
    """How many more of its shards may be lost; less than 0: it cannot be read."""
    return sum(_has(shard, holders, census.staying) for shard in stripe.shards) - len(stripe.data)


def spare_peers(stripe: Stripe, holders: Holders, peers: Collection[PeerId]) -> int:
    """So many of these peers, whichever, may be lost at least; less than 0: it cannot be read.

    As if each shard were with one of its holders alone: who put an object lets go of what belongs to others.
    """
    loads: Counter[PeerId] = Counter()
    able = [[peer for peer in sorted(holders.get(shard, ())) if peer in peers] for shard in stripe.shards]
    for those in sorted(able, key=len):
        if those:
            loads[min(those, key=lambda peer: loads[peer])] += 1
    left, spare = loads.total(), -1
    for load in (0, *sorted(loads.values(), reverse=True)):
        left -= load
        spare += left >= len(stripe.data)
    return spare


def can_be_read(stripe: Stripe, holders: Holders, peers: Collection[PeerId]) -> bool:
    """Whether these peers have enough of it."""
    return sum(_has(shard, holders, peers) for shard in stripe.shards) >= len(stripe.data)


def _wanted(stripe: Stripe, holders: Holders, census: Census) -> list[tuple[ShardId, PeerId]]:
    keeping = {peer for shard in stripe.shards for peer in holders.get(shard, ())}
    able = [
        holder
        for peer, holder in census.staying.items()
        if peer in keeping or (peer in census.alive and holder.free_bytes >= stripe.width)
    ]
    return list(zip(stripe.shards, assign(stripe, able, holders), strict=False))


def _has(shard: ShardId, holders: Holders, peers: Collection[PeerId]) -> bool:
    return any(peer in peers for peer in holders.get(shard, ()))
