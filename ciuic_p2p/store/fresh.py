"""Shards that were just put here and are about to be sent: in memory for a moment, so that they need not be read back.

Knows neither peers nor disks. What is not here is in the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ciuic_p2p.terms import ShardId

MOST_BYTES = 64 << 20
"""Of all. What comes when there is no room is read from the disk, which then has time for it: others are slower."""
FRESH_S = 5.0
"""After it nobody is expected to ask."""


@dataclass(slots=True)
class _Fresh:
    data: bytes | memoryview
    readers: int
    """Who has not asked yet."""
    until_s: float


class FreshShards:
    """Thread-safe."""

    def __init__(self, readers: int, clock: Callable[[], float] = time.monotonic) -> None:
        """readers: how many peers are expected to ask for each."""
        self._readers = readers
        self._clock = clock
        self._shards: dict[ShardId, _Fresh] = {}
        """The oldest first."""
        self._bytes = 0
        self._lock = threading.Lock()

    def keep(self, shard: ShardId, data: bytes | memoryview) -> None:
        """Its bytes, which nobody changes, are those of its name."""
        self.trim()
        with self._lock:
            if self._readers and shard not in self._shards and self._bytes + len(data) <= MOST_BYTES:
                self._shards[shard] = _Fresh(data, self._readers, self._clock() + FRESH_S)
                self._bytes += len(data)

    def take(self, shard: ShardId) -> bytes | memoryview | None:
        """For one of those who were expected to ask; None for one more."""
        with self._lock:
            fresh = self._shards.get(shard)
            if fresh is None:
                return None
            fresh.readers -= 1
            if not fresh.readers:
                self._drop(shard)
            return fresh.data

    def trim(self) -> None:
        """Forgets what is here for too long."""
        with self._lock:
            now = self._clock()
            for shard in [shard for shard, fresh in self._shards.items() if fresh.until_s <= now]:
                self._drop(shard)

    def _drop(self, shard: ShardId) -> None:
        self._bytes -= len(self._shards.pop(shard).data)
