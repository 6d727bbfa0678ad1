"""Which copies of shards are to be made and which to be dropped, from what all peers know. Knows no network and no clock.

Every peer makes the same plan from the same facts and does its own part of it: the target of a copy fetches it, the holder of
a surplus one drops it. Where facts differ for a moment, the worst that comes of it is a copy too many, which is dropped later.

Repairs come first: shards with fewer copies than the goal. Rebalancing moves what is held where `place` would not put it, so
many bytes a plan; a plan is made once in a period.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from blake3 import blake3

from ciuic_p2p.core.placement import Holder, rank_holders
from ciuic_p2p.terms import PeerId

GONE_AFTER_S = 600.0
"""A machine that is restarted is back by then; what it holds need not be copied."""

MOST_MOVED_BYTES = 256 << 20
"""By rebalancing, to one target, in one plan."""

_FAR_FACTOR = 3.0
"""A source of another region is asked when those of the target's own have so much more to send already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShard:
    shard: str
    size_bytes: int
    holders: frozenset[PeerId]
    """As told; who is not known any more may be among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """`target` fetches the shard; `source` is where it asks first."""

    shard: str
    source: PeerId
    target: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """`holder` may forget the shard, once those that should hold it have said so to it."""

    shard: str
    holder: PeerId


class Census:
    """Who can hold shards, by what is known at `now`.

    holders: all known ones. silent_since_s: of those that are not alive, since when; from `gone_after_s` on one is gone. Until
    then what it holds counts, and it is asked for nothing.
    """

    def __init__(
        self,
        holders: Iterable[Holder],
        silent_since_s: Mapping[PeerId, float],
        now: float,
        gone_after_s: float = GONE_AFTER_S,
    ) -> None:
        self.staying = {
            holder.peer: holder
            for holder in holders
            if holder.peer not in silent_since_s or now - silent_since_s[holder.peer] < gone_after_s
        }
        self.alive = frozenset(self.staying.keys() - silent_since_s.keys())

    def copies(self, held: HeldShard) -> frozenset[PeerId]:
        """Those that count."""
        return held.holders & self.staying.keys()


class _Ledger:
    """What the copies planned so far take of room, lines and the bound on rebalancing."""

    def __init__(self, census: Census, most_moved_bytes: int) -> None:
        self._census = census
        self._most_moved_bytes = most_moved_bytes
        self._coming_bytes: Counter[PeerId] = Counter()
        self._moved_bytes: Counter[PeerId] = Counter()
        self._sent_bytes: Counter[PeerId] = Counter()

    def has_room(self, holder: Holder, size_bytes: int) -> bool:
        return holder.free_bytes - self._coming_bytes[holder.peer] >= size_bytes

    def may_move(self, target: PeerId, size_bytes: int) -> bool:
        """A shard above the bound moves alone."""
        moved_bytes = self._moved_bytes[target]
        return not moved_bytes or moved_bytes + size_bytes <= self._most_moved_bytes

    def add(self, held: HeldShard, source: PeerId, target: PeerId, *, is_move: bool) -> Copy:
        self._coming_bytes[target] += held.size_bytes
        self._sent_bytes[source] += held.size_bytes
        self._moved_bytes[target] += held.size_bytes if is_move else 0
        return Copy(shard=held.shard, source=source, target=target)

    def choose_source(self, held: HeldShard, sources: Collection[PeerId], target: PeerId) -> PeerId:
        """Who would have sent it soonest, with what it has to send already."""

        def sending(peer: PeerId) -> tuple[float, PeerId]:
            source = self._census.staying[peer]
            load = (self._sent_bytes[peer] + held.size_bytes) / max(source.goodput_mbps, 1.0)
            is_near = source.region == self._census.staying[target].region
            return (load if is_near else load * _FAR_FACTOR), peer

        return min(sources, key=sending)


def plan_repairs(
    shards: Iterable[HeldShard], census: Census, replicas: int, most_moved_bytes: int = MOST_MOVED_BYTES
) -> tuple[Copy, ...]:
    """All copies to be made now, most urgent first. A shard that nobody alive holds has none: see `lost_shards`."""
    ledger = _Ledger(census, most_moved_bytes)
    by_urgency = sorted(shards, key=lambda held: (len(census.copies(held)), _order(held.shard)))
    repairs = [copy for held in by_urgency for copy in _repair(held, census, replicas, ledger)]
    repaired = {copy.shard for copy in repairs}
    return *repairs, *(
        copy for held in by_urgency if held.shard not in repaired for copy in _rebalance(held, census, replicas, ledger)
    )


def _repair(held: HeldShard, census: Census, replicas: int, ledger: _Ledger) -> list[Copy]:
    """Up to the goal, on peers that are alive: who is silent may be back soon, but the shard is short of copies now."""
    copies = census.copies(held)
    sources = copies & census.alive
    lacking = replicas - len(copies)
    if lacking <= 0 or not sources:
        return []
    able = [
        holder
        for peer, holder in census.staying.items()
        if peer in copies or (peer in census.alive and ledger.has_room(holder, held.size_bytes))
    ]
    wanted = [holder.peer for holder in rank_holders(held.shard, able)[:replicas]]
    targets = [peer for peer in wanted if peer not in copies][:lacking]
    return [ledger.add(held, ledger.choose_source(held, sources, target), target, is_move=False) for target in targets]


def _rebalance(held: HeldShard, census: Census, replicas: int, ledger: _Ledger) -> list[Copy]:
    copies = census.copies(held)
    sources = copies & census.alive
    able = [h for peer, h in census.staying.items() if peer in copies or ledger.has_room(h, held.size_bytes)]
    targets = [
        holder.peer
        for holder in rank_holders(held.shard, able)[:replicas]
        if holder.peer in census.alive - copies and ledger.may_move(holder.peer, held.size_bytes)
    ]
    if not sources:
        return []
    return [ledger.add(held, ledger.choose_source(held, sources, target), target, is_move=True) for target in targets]


def plan_drops(shards: Iterable[HeldShard], census: Census, replicas: int) -> tuple[Drop, ...]:
    """Copies that are not where `place` wants them, of shards whose goal is met by those that are, all alive."""
    return tuple(
        Drop(shard=held.shard, holder=peer)
        for held in sorted(shards, key=lambda held: _order(held.shard))
        for peer in _surplus(held, census, replicas)
    )


def _surplus(held: HeldShard, census: Census, replicas: int) -> list[PeerId]:
    copies = census.copies(held)
    able = [h for peer, h in census.staying.items() if peer in copies or h.free_bytes >= held.size_bytes]
    wanted = {holder.peer for holder in rank_holders(held.shard, able)[:replicas]}
    # where fewer are able than the goal says, all of them are wanted, and none is surplus
    return sorted((copies & census.alive) - wanted) if wanted <= copies & census.alive else []


def lost_shards(shards: Iterable[HeldShard], census: Census) -> tuple[HeldShard, ...]:
    """Those that nobody alive holds. One of their `holders` must return for each."""
    return tuple(sorted((held for held in shards if not held.holders & census.alive), key=lambda held: held.shard))


def _order(shard: str) -> bytes:
    """The same on every peer, and none that whoever names a shard can choose."""
    return blake3(f"ciuic repair\0{shard}".encode()).digest()
