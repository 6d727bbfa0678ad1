"""A store of shards in memory, for tests of what is built on stores. Keeps the contract but for durability."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

from ciuic_p2p.errors import ShardDamaged, ShardMissing
from ciuic_p2p.store.grace import Grace
from ciuic_p2p.store.room import Room
from ciuic_p2p.store.shards import GRACE_S, require_shard_id, shard_bytes, shard_id_of
from ciuic_p2p.terms import ShardId


class MemoryStore:
    """A `ShardStore`."""

    def __init__(self, quota_bytes: int | None = None, grace_s: float = GRACE_S) -> None:
        self._shards: dict[ShardId, bytes] = {}
        self._room = Room("the store in memory", quota_bytes)
        self._grace = Grace(grace_s)
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._room.used_bytes

    def put(self, data: bytes | memoryview, name: ShardId | None = None) -> ShardId:
        view = shard_bytes(data)
        shard = shard_id_of(view) if name is None else require_shard_id(name)
        with self._lock:
            if shard in self._shards and shard_id_of(self._shards[shard]) != shard:
                self._drop(shard)
            if shard not in self._shards:
                with self._room.arriving(len(view)):
                    self._shards[shard] = bytes(view)
            self._grace.forgive(shard)
        return shard

    def get(self, shard: ShardId) -> bytes:
        require_shard_id(shard)
        with self._lock:
            data = self._shards.get(shard)
            if data is None:
                raise ShardMissing(shard)
            if shard_id_of(data) != shard:
                self._drop(shard)
                raise ShardDamaged(shard)
            return data

    def has(self, shard: ShardId) -> bool:
        return require_shard_id(shard) in self._shards

    def size_bytes(self, shard: ShardId) -> int:
        data = self._shards.get(require_shard_id(shard))
        if data is None:
            raise ShardMissing(shard)
        return len(data)

    def shards(self) -> Iterator[ShardId]:
        with self._lock:
            return iter(list(self._shards))

    def collect(self, keep: Collection[ShardId], now_s: float) -> int:
        with self._lock:
            return sum(self._drop(shard) for shard in self._grace.expired(self._shards, keep, now_s))

    def damage(self, shard: ShardId, data: bytes) -> None:
        """Plays a disk that gives back other bytes than were written."""
        with self._lock:
            self._room.find(len(data) - len(self._shards[shard]))
            self._shards[shard] = data

    def _drop(self, shard: ShardId) -> int:
        size_bytes = len(self._shards.pop(shard))
        self._room.leave(size_bytes)
        self._grace.forgive(shard)
        return size_bytes
