"""Which peers hold which shards, and what they offer: this peer's own store, and what the others tell. Knows no objects.

Each peer tells all what came and what left, and a digest of the whole; whose digest is another is asked for all pages.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from ciuic_p2p.core.messages import Message
from ciuic_p2p.core.placement import Holder, settle_goodput
from ciuic_p2p.core.shard_messages import (
    HASH_BYTES,
    MOST_PAGES,
    MOST_TOLD,
    AskInventory,
    HeldShards,
    Inventory,
    StoreTold,
    shard_name,
    shard_of,
)
from ciuic_p2p.errors import ShardMissing
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.terms import PeerId, ShardId

TELL_AFTER_S = 0.05
"""What comes and goes within it is told at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    quota_bytes: int | None
    reserve_bytes: int


@dataclass(slots=True)
class _Shards:
    """A set of shards, and its digest: their names, exclusively or'd, so that one more or less costs nothing.

    Who makes up names for equal digests deceives others about nobody's shards but its own.
    """

    sizes: dict[ShardId, int] = field(default_factory=dict)
    _names: int = 0

    def add(self, shard: ShardId, size_bytes: int) -> None:
        if shard not in self.sizes:
            self._names ^= int(shard, 16)
        self.sizes[shard] = size_bytes

    def discard(self, shard: ShardId) -> bool:
        """Whether it was there."""
        if self.sizes.pop(shard, None) is None:
            return False
        self._names ^= int(shard, 16)
        return True

    def digest(self) -> bytes:
        return self._names.to_bytes(HASH_BYTES)


@dataclass(slots=True)
class _Told:
    """What another peer says of its store."""

    offer: StoreTold | None = None
    shards: _Shards = field(default_factory=_Shards)
    pages: _Shards | None = None
    """Of an inventory that is not complete."""
    silent_since_s: float | None = None
    """By the monotonic clock; None while it is here."""


class Holdings:
    """Lives in the event loop's thread. Peers that are gone stay known, for they may come back with all they hold."""

    def __init__(
        self,
        me: PeerId,
        store: DiskStore,
        limits: StoreLimits,
        tell_all: Callable[[Message], None],
        region_of: Callable[[PeerId], str],
        line_mbps: Callable[[], float],
    ) -> None:
        """region_of: of any peer, this one too. line_mbps: of this peer, 0 while it was not measured."""
        self._me = me
        self._store = store
        self._limits = limits
        self.tell_all = tell_all
        self._region_of = region_of
        self._line_mbps = line_mbps
        self._goodput_mbps = 0.0
        self._mine = _Shards()
        self._told: dict[PeerId, _Told] = {}
        self._came: dict[ShardId, int] = {}
        self._left: set[ShardId] = set()
        self._telling: asyncio.TimerHandle | None = None
        self._damaged: set[ShardId] = set()
        """What the disk lost, and nobody has put again."""
        self.damaged = 0
        """Shards that the disk lost or changed since this daemon began; `repaired`: those that came back from others."""
        self.repaired = 0
        self.changed = asyncio.Event()
        """Set whenever anything of this is another; whoever waits for it clears it first."""

    # -- this peer's own -----------------------------------------------------------------------------------------------

    def read_store(self) -> dict[ShardId, int]:
        """Names and sizes of what is in the store. In a thread: it asks the disk."""
        return {shard: size for shard in self._store.shards() if (size := _size_in(self._store, shard)) is not None}

    def begin(self, mine: Mapping[ShardId, int]) -> None:
        for shard, size_bytes in mine.items():
            self._mine.add(shard, size_bytes)

    @property
    def mine(self) -> Mapping[ShardId, int]:
        """What this peer holds → bytes as they are kept."""
        return self._mine.sizes

    def note_came(self, shard: ShardId, size_bytes: int) -> None:
        """It is durable here. Told anew also when it was here before: somebody may wait to hear it."""
        if shard in self._damaged:
            self._damaged.discard(shard)
            self.repaired += 1
        self._mine.add(shard, size_bytes)
        self._came[shard] = size_bytes
        self._left.discard(shard)
        self._tell_soon()

    def note_left(self, shard: ShardId) -> None:
        if self._mine.discard(shard):
            self._came.pop(shard, None)
            self._left.add(shard)
            self._tell_soon()

    def note_damaged(self, shard: ShardId) -> None:
        """The disk has it no more, or gives back something else; it was set aside. What was never here is no loss."""
        if shard in self.mine and shard not in self._damaged:
            self._damaged.add(shard)
            self.damaged += 1
        self.note_left(shard)

    def free_bytes(self) -> int:
        """What is still offered: within the quota, above the disk's reserve."""
        of_disk = shutil.disk_usage(self._store.folder).free - self._limits.reserve_bytes
        quota_bytes = self._limits.quota_bytes
        of_quota = of_disk if quota_bytes is None else quota_bytes - self._store.used_bytes
        return max(min(of_disk, of_quota), 0)

    def offer(self) -> StoreTold:
        self._goodput_mbps = settle_goodput(self._line_mbps(), self._goodput_mbps)
        return StoreTold(
            free_bytes=self.free_bytes(),
            shard_bytes=self._store.used_bytes,
            goodput_mbps=self._goodput_mbps,
            shards=min(len(self.mine), MOST_PAGES * MOST_TOLD),
            digest=self._mine.digest(),
        )

    def inventory(self) -> list[Inventory]:
        """All pages of it; of more shards than fit, some."""
        shards = [(shard_name(shard), size) for shard, size in islice(self.mine.items(), MOST_PAGES * MOST_TOLD)]
        pages = [shards[start : start + MOST_TOLD] for start in range(0, len(shards), MOST_TOLD)] or [[]]
        return [Inventory(page=page, pages=len(pages), shards=tuple(held)) for page, held in enumerate(pages)]

    def _tell_soon(self) -> None:
        self.changed.set()
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_AFTER_S, self._tell)

    def _tell(self) -> None:
        self._telling = None
        came, left = list(self._came.items()), sorted(self._left)
        self._came, self._left = {}, set()
        while came or left:
            now, came = came[:MOST_TOLD], came[MOST_TOLD:]
            gone, left = left[: MOST_TOLD - len(now)], left[MOST_TOLD - len(now) :]
            told = tuple((shard_name(shard), size) for shard, size in now)
            self.tell_all(HeldShards(came=told, left=tuple(map(shard_name, gone))))
        self.tell_all(self.offer())

    # -- the others' -----------------------------------------------------------------------------------------------------

    def peer_arrived(self, peer: PeerId) -> None:
        self._told.setdefault(peer, _Told()).silent_since_s = None
        self.changed.set()

    def peer_gone(self, peer: PeerId) -> None:
        if peer in self._told:
            self._told[peer].silent_since_s = time.monotonic()
            self._told[peer].pages = None
        self.changed.set()

    def store_told(self, peer: PeerId, message: StoreTold) -> AskInventory | None:
        """What to ask the peer in return."""
        told = self._told.setdefault(peer, _Told())
        told.offer = message
        self.changed.set()
        return AskInventory() if told.shards.digest() != message.digest else None

    def held(self, peer: PeerId, message: HeldShards) -> None:
        told = self._told.setdefault(peer, _Told())
        for shards in (told.shards, *([told.pages] if told.pages is not None else [])):
            for name, size_bytes in message.came:
                shards.add(shard_of(name), size_bytes)
            for name in message.left:
                shards.discard(shard_of(name))
        self.changed.set()

    def inventory_told(self, peer: PeerId, message: Inventory) -> None:
        """Pages out of turn are of an inventory that was begun again."""
        told = self._told.setdefault(peer, _Told())
        if message.page == 0:
            told.pages = _Shards()
        if told.pages is None:
            return
        for name, size_bytes in message.shards:
            told.pages.add(shard_of(name), size_bytes)
        if message.page == message.pages - 1:
            told.shards, told.pages = told.pages, None
            self.changed.set()

    # -- what follows ----------------------------------------------------------------------------------------------------

    def present(self) -> frozenset[PeerId]:
        """Who is here and has said what it offers, this peer included."""
        return frozenset({self._me, *(p for p, told in self._told.items() if told.offer and told.silent_since_s is None)})

    def here(self) -> frozenset[PeerId]:
        """The others that are here, whether they have said anything yet or not."""
        return frozenset(peer for peer, told in self._told.items() if told.silent_since_s is None)

    def silent_since_s(self) -> dict[PeerId, float]:
        return {peer: told.silent_since_s for peer, told in self._told.items() if told.silent_since_s is not None}

    def has_told_all(self, peer: PeerId) -> bool:
        """Whether what it holds is known, as far as it said. Always true of this peer."""
        told = self._told.get(peer)
        return peer == self._me or (told is not None and told.offer is not None and told.offer.digest == told.shards.digest())

    def holders(self) -> list[Holder]:
        """All that are known, this peer included."""
        offers = {peer: told.offer for peer, told in self._told.items() if told.offer is not None}
        return [self._holder(peer, offer) for peer, offer in sorted({**offers, self._me: self.offer()}.items())]

    def holders_of(self, shard: ShardId) -> frozenset[PeerId]:
        """As told, those that are gone included."""
        return frozenset(peer for peer, held in self.everyone() if shard in held)

    def everyone(self) -> list[tuple[PeerId, Mapping[ShardId, int]]]:
        """What each peer holds, as told, those that are gone included. Other threads may look shards up in it."""
        return [(self._me, self.mine), *((peer, told.shards.sizes) for peer, told in self._told.items())]

    def _holder(self, peer: PeerId, offer: StoreTold) -> Holder:
        return Holder(
            peer=peer,
            region=self._region_of(peer),
            free_bytes=offer.free_bytes,
            goodput_mbps=offer.goodput_mbps,
            shard_bytes=offer.shard_bytes,
        )


def _size_in(store: DiskStore, shard: ShardId) -> int | None:
    try:
        return store.size_bytes(shard)
    except ShardMissing:
        return None
