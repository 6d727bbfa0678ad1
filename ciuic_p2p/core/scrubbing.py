"""When a store reads which of its shards again, to find what its disk has changed. Pure: knows neither disks nor the time.

A pass goes through all names in order, spread over the period, so that a store of any size costs the disk the same small share
of its time. Where it stands is one name: a daemon that starts again goes on from there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ciuic_p2p.terms import ShardId

MOST_BYTES_PER_S = 4 << 20
"""Even where a pass takes longer than its period then: the disk has more to do than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One look at all shards, as far as it came. Times in seconds since 1970, 0 for never."""

    began_at_s: float = 0.0
    after: str = ""
    """The last name that was read; "" before the first one."""
    is_over: bool = True
    ended_at_s: float = 0.0
    """Of the newest pass that came to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Read this shard, then say so."""

    shard: ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Nothing is to be read before so many seconds are over."""

    seconds: float


class Scrubbing:
    """`next` says what to do; `verified` is told that it was done."""

    def __init__(self, period_s: float, standing: Pass | None = None) -> None:
        """standing: as an earlier life of the daemon left it."""
        self._period_s = period_s
        self.standing = standing or Pass()
        self._names: deque[ShardId] = deque()
        """That the pass has before it, in order. What came since it began was written just now."""
        self._left_bytes = 0
        self._may_read_at_s = 0.0
        self._rest_s = 0.0

    def next(self, sizes: Mapping[ShardId, int], now_s: float) -> Verify | Rest:
        """sizes: of all that is held now. now_s: since 1970."""
        rest_s = self._may_read_at_s - now_s
        if 0 < rest_s <= self._rest_s:  # more only where a clock was set back
            return Rest(seconds=rest_s)
        if self.standing.is_over:
            wait_s = self.standing.began_at_s + self._period_s - now_s
            if 0 < wait_s <= self._period_s:
                return Rest(seconds=wait_s)
            self.standing = replace(self.standing, began_at_s=now_s, after="", is_over=False)
        if not self._names:
            self._gather(sizes)
        while self._names and self._names[0] not in sizes:
            self._names.popleft()
        if self._names:
            return Verify(shard=self._names[0])
        self.standing = replace(self.standing, is_over=True, ended_at_s=now_s)
        return Rest(seconds=max(min(self.standing.began_at_s - now_s, 0.0) + self._period_s, 0.0))

    def verified(self, shard: ShardId, size_bytes: int, now_s: float) -> None:
        """It was read, whatever came of that."""
        self.standing = replace(self.standing, after=shard)
        while self._names and self._names[0] <= shard:
            self._names.popleft()
        left_s = max(min(self.standing.began_at_s - now_s, 0.0) + self._period_s, 1.0)
        bytes_per_s = min(max(self._left_bytes, 1) / left_s, MOST_BYTES_PER_S)
        self._left_bytes -= size_bytes
        self._rest_s = size_bytes / bytes_per_s
        self._may_read_at_s = now_s + self._rest_s

    def _gather(self, sizes: Mapping[ShardId, int]) -> None:
        ordered = sorted(sizes)
        self._names = deque(ordered[bisect_right(ordered, self.standing.after) :])
        self._left_bytes = sum(sizes[name] for name in self._names)
