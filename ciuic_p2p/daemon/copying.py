"""The shards of one put, until enough peers hold each. Knows neither files nor versions.

Holders are asked in the order of core/placement.py; who declines, dies or stalls is replaced by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ciuic_p2p.core.messages import Message
from ciuic_p2p.core.placement import Holder, place
from ciuic_p2p.core.shard_messages import MOST_TOLD, DeclineShards, KeepShards, shard_name, shard_of
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.errors import PeerUnreachable, TooFewCopies
from ciuic_p2p.terms import PeerId, ShardId

STALL_LIMIT_S = 120.0
"""A holder that has told of none of its shards for so long is replaced."""


class Copying:
    """Lives in the event loop's thread."""

    def __init__(
        self,
        me: PeerId,
        holdings: Holdings,
        send: Callable[[PeerId, Message], None],
        name_of: Callable[[PeerId], str],
        replicas: int,
    ) -> None:
        """send: raises PeerUnreachable. replicas: the goal; fewer are enough where fewer peers are here."""
        self._me = me
        self._holdings = holdings
        self._send = send
        self._name_of = name_of
        self._replicas = replicas
        self._loop = asyncio.get_running_loop()
        self._open: dict[ShardId, int] = {}
        """Shards without enough copies → bytes as they are kept."""
        self._targets: dict[ShardId, tuple[PeerId, ...]] = {}
        self._able: frozenset[PeerId] = frozenset()
        """What `_targets` was made for."""
        self._asked: dict[PeerId, dict[ShardId, int]] = {}
        """What each peer was asked to keep and does not hold yet."""
        self._begun: set[ShardId] = set()
        """Of which holders were asked at least once."""
        self._heard_s: dict[PeerId, float] = {}
        self._unable: dict[PeerId, str] = {}
        """Who is asked for nothing more, and why."""
        self._is_all = False
        self.done_bytes = 0

    def add(self, shard: ShardId, size_bytes: int) -> None:
        """It is durable here. The same one may come again."""
        if shard not in self._begun:
            self._open[shard] = size_bytes
        self._holdings.changed.set()

    def all_added(self) -> None:
        self._is_all = True
        self._holdings.changed.set()

    def declined(self, peer: PeerId, message: DeclineShards) -> None:
        """Another put's are no concern of this one."""
        if any(shard_of(name) in self._asked.get(peer, {}) for name in message.shards):
            self._give_up_on(peer, message.reason)

    async def run(self) -> None:
        """Returns when all were added and each has enough copies. Raises TooFewCopies when that cannot be."""
        while True:
            self._review()
            if self._is_all and not self._open:
                return
            self._holdings.changed.clear()
            try:
                async with asyncio.timeout_at(min(self._heard_s.values(), default=self._loop.time()) + STALL_LIMIT_S):
                    await self._holdings.changed.wait()
            except TimeoutError:
                self._give_up_stalled()

    def _review(self) -> None:
        present = self._holdings.present()
        self._note_held(present)
        able = [h for h in self._holdings.holders() if h.peer in present and h.peer not in self._unable]
        names = frozenset(holder.peer for holder in able)
        if names != self._able:
            self._able, self._targets = names, {}
        everyone = dict(self._holdings.everyone())
        needed = min(self._replicas, len(present))
        asks: dict[PeerId, dict[ShardId, int]] = {}
        for shard, size_bytes in list(self._open.items()):
            holding = {peer for peer in present if shard in everyone.get(peer, ())}
            for peer in self._to_ask(shard, size_bytes, able, holding):
                asks.setdefault(peer, {})[shard] = size_bytes
            if self._is_enough(shard, holding, needed):
                del self._open[shard]
                self.done_bytes += size_bytes
            elif len(holding | set(self._targets[shard])) < needed:
                raise self._too_few(len(holding | set(self._targets[shard])), needed, size_bytes, able)
        for peer, shards in asks.items():
            self._ask(peer, shards)

    def _to_ask(self, shard: ShardId, size_bytes: int, able: list[Holder], holding: set[PeerId]) -> list[PeerId]:
        """At first also those that hold it: nothing names it yet, and they could let go of it."""
        if shard not in self._targets:
            self._targets[shard] = self._choose(shard, size_bytes, able, holding)
        is_new = shard not in self._begun
        self._begun.add(shard)
        return [
            peer
            for peer in self._targets[shard]
            if peer != self._me and (is_new or peer not in holding) and shard not in self._asked.get(peer, {})
        ]

    def _choose(self, shard: ShardId, size_bytes: int, able: list[Holder], holding: set[PeerId]) -> tuple[PeerId, ...]:
        return place(shard, able, self._replicas, size_bytes, holding)

    def _is_enough(self, shard: ShardId, holding: set[PeerId], needed: int) -> bool:
        return len(holding) >= needed

    def _too_few(self, possible: int, needed: int, size_bytes: int, able: list[Holder]) -> TooFewCopies:
        full = {holder.peer: "its store is full" for holder in able if holder.free_bytes < size_bytes}
        reasons = sorted((full | self._unable).items())
        why = "; ".join(f"{self._name_of(peer)}: {reason}" for peer, reason in reasons)
        return TooFewCopies(
            f"only {possible} of {needed} copies could be made{f' ({why})' if why else ''}",
            "free space on those peers, or raise their quota, and put it again",
        )

    def _note_held(self, present: frozenset[PeerId]) -> None:
        everyone = dict(self._holdings.everyone())
        for peer, asked in list(self._asked.items()):
            held = [shard for shard in asked if shard in everyone.get(peer, ())]
            for shard in held:
                del asked[shard]
            if held:
                self._heard_s[peer] = self._loop.time()
            if not asked or peer not in present:  # who comes back is asked again
                del self._asked[peer]
                self._heard_s.pop(peer, None)

    def _ask(self, peer: PeerId, shards: dict[ShardId, int]) -> None:
        told = [(shard_name(shard), size_bytes) for shard, size_bytes in shards.items()]
        try:
            for start in range(0, len(told), MOST_TOLD):
                self._send(peer, KeepShards(shards=tuple(told[start : start + MOST_TOLD])))
        except PeerUnreachable:
            return  # it is gone, or will be asked when it is back
        self._asked.setdefault(peer, {}).update(shards)
        self._heard_s.setdefault(peer, self._loop.time())

    def _give_up_on(self, peer: PeerId, reason: str) -> None:
        self._unable[peer] = reason
        self._asked.pop(peer, None)
        self._heard_s.pop(peer, None)
        self._holdings.changed.set()

    def _give_up_stalled(self) -> None:
        late_s = self._loop.time() - STALL_LIMIT_S
        for peer in [peer for peer, heard_s in self._heard_s.items() if heard_s <= late_s]:
            self._give_up_on(peer, "it did not take them")
