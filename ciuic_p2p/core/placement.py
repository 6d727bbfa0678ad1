"""Which peers hold a shard: rendezvous hashing, regions first. Knows neither what a shard holds nor who has it now.

Every peer ranks the holders by a hash of shard and peer and takes the first ones: nobody is asked, and nothing is remembered
(Thaler & Ravishankar, Using Name-Based Mappings to Increase Hit Rates, 1998). The score of a holder of weight w is U^(1/w), so
that each holds shards in proportion to its weight (Schindelhauer & Schomaker, Weighted Distributed Hash Tables, 2005, the
logarithmic method; U^(1/w) orders as -w/ln U does).

The region rule keeps what is good about it. The best holder of every region comes first, then the second of each, and so on.
When a holder goes, those behind it in its region move up to a lower score than it had, so that they overtake nobody who was
chosen: each shard it held gets one new holder, and nothing else moves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from blake3 import blake3

from ciuic_p2p.terms import PeerId

UNIT_BYTES = 1 << 30
"""Of space. Who offers less weighs as much as one that offers this; it is left out once it is full."""

HIGHEST_LEVEL = 8
"""Of space and of goodput each, in factors of four: 64 TiB and 65 Gbit/s."""

SETTLED_FACTOR = 2.0
"""A goodput is told anew when it is off by this factor: half a level, so that jitter never moves a shard back and forth."""

UNMEASURED_RTT_MS = 300.0
"""Of a link that nobody measured: farther than an ocean, nearer than never."""

_SCORE_BITS = 64
_READ_BITS = 8 * (8 << 20)
"""A shard of the default size; what nearness is judged by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A peer that offers space for shards. Raises ValueError at construction for a quantity that cannot be."""

    peer: PeerId
    region: str
    free_bytes: int
    """That it offers and nothing takes yet."""
    goodput_mbps: float
    """Of its line up, as it tells; see `settle_goodput`."""
    shard_bytes: int = 0
    """That shards take of its offer. They count for its weight: a holder would lose shards for having taken them otherwise,
    and get them back for having lost them."""

    def __post_init__(self) -> None:
        if self.free_bytes < 0 or self.shard_bytes < 0:
            raise ValueError(f"{self.peer} offers a negative number of bytes")
        if not (math.isfinite(self.goodput_mbps) and self.goodput_mbps >= 0):
            raise ValueError(f"{self.peer} has a goodput of {self.goodput_mbps} Mbit/s")


def place(
    shard: str, holders: Iterable[Holder], replicas: int, size_bytes: int, holding: Collection[PeerId] = ()
) -> tuple[PeerId, ...]:
    """The peers that should hold `shard`, best first; fewer than `replicas` when no others have room for `size_bytes`.

    holding: who has it already, and so needs no room. The order of `holders` does not matter. Raises ValueError for less than
    one replica.
    """
    if replicas < 1:
        raise ValueError(f"{replicas} replicas of a shard")
    roomy = (holder for holder in holders if holder.free_bytes >= size_bytes or holder.peer in holding)
    return tuple(holder.peer for holder in rank_holders(shard, roomy)[:replicas])


def rank_holders(shard: str, holders: Iterable[Holder]) -> list[Holder]:
    """By the region rule, then by score."""
    by_score = sorted(holders, key=lambda holder: (-_score(shard, holder), holder.peer))
    seen: Counter[str] = Counter()
    place_in_region: dict[PeerId, int] = {}
    for holder in by_score:
        place_in_region[holder.peer] = seen[holder.region]
        seen[holder.region] += 1
    return sorted(by_score, key=lambda holder: place_in_region[holder.peer])


def weight_level(holder: Holder) -> int:
    """The weight is 2 to this: the square root of space times goodput, in steps wide enough that small changes move nothing."""
    return _level((holder.free_bytes + holder.shard_bytes) // UNIT_BYTES) + _level(int(holder.goodput_mbps))


def _level(quantity: int) -> int:
    """Whole factors of four above one."""
    return min(max(quantity.bit_length() - 1, 0) // 2, HIGHEST_LEVEL)


def _score(shard: str, holder: Holder) -> int:
    """U^(1/w) as a fraction of 2^64. For a w of 2^k that is k square roots, which integers give alike on every machine."""
    score = int.from_bytes(blake3(f"ciuic placement\0{shard}\0{holder.peer}".encode()).digest(_SCORE_BITS // 8), "big")
    for _ in range(weight_level(holder)):
        score = math.isqrt(score << _SCORE_BITS)
    return score


def settle_goodput(measured_mbps: float, told_mbps: float) -> float:
    """What a holder tells from now on: what it told, until the measured goodput is off by SETTLED_FACTOR."""
    is_near = told_mbps / SETTLED_FACTOR < measured_mbps < told_mbps * SETTLED_FACTOR
    return told_mbps if is_near else measured_mbps


def order_sources(me: PeerId, holders: Iterable[Holder], rtt_ms: Mapping[PeerId, float]) -> tuple[PeerId, ...]:
    """Whom to read from, nearest first: by the time that one shard takes, from measured round trips and goodput. Without `me`.

    Equals come in another order for each reader, so that not all readers ask the same one first.
    """
    others = [holder for holder in holders if holder.peer != me]
    return tuple(
        holder.peer
        for holder in sorted(others, key=lambda holder: (_reading_ms(holder, rtt_ms), _pair_hash(me, holder.peer), holder.peer))
    )


def _reading_ms(holder: Holder, rtt_ms: Mapping[PeerId, float]) -> float:
    transfer_ms = _READ_BITS / (holder.goodput_mbps * 1e3) if holder.goodput_mbps else math.inf
    return rtt_ms.get(holder.peer, UNMEASURED_RTT_MS) + transfer_ms


def _pair_hash(me: PeerId, peer: PeerId) -> bytes:
    return blake3(f"ciuic reading\0{me}\0{peer}".encode()).digest()
