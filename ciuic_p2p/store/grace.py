"""Since when a shard has been unreachable, and when it may go. Pure: is given the time, deletes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ciuic_p2p.terms import ShardId


class Grace:
    """Remembers, from one collection to the next, what was unreachable."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since_s: dict[ShardId, float] = {}

    def forgive(self, shard: ShardId) -> None:
        """The shard was put again, or is gone: its grace begins anew when it is next found unreachable."""
        self._since_s.pop(shard, None)

    def is_running(self, shard: ShardId) -> bool:
        """Whether the last collection found the shard unreachable, and nobody has put it since."""
        return shard in self._since_s

    def expired(self, shards: Iterable[ShardId], keep: Collection[ShardId], now_s: float) -> list[ShardId]:
        """Those of `shards` that were unreachable in every collection since one at least grace_s before now_s.

        Never what is unreachable for the first time, even without any grace.
        """
        reachable = frozenset(keep)
        unreachable = [shard for shard in shards if shard not in reachable]
        known_s, self._since_s = self._since_s, {shard: self._since_s.get(shard, now_s) for shard in unreachable}
        return [shard for shard in unreachable if shard in known_s and now_s - known_s[shard] >= self._grace_s]
