"""Sees to it that shards are where they should be: keeps what it is asked to, asks others to keep, repairs, lets surplus go.

Decides nothing itself: where shards belong says core/placement.py, what is to be repaired core/repairs.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import structlog

from ciuic_p2p.core.hedging import WantedShard
from ciuic_p2p.core.messages import Message
from ciuic_p2p.core.placement import order_sources
from ciuic_p2p.core.repairs import Census, Copy, HeldShard, plan_drops, plan_repairs
from ciuic_p2p.core.shard_messages import LONGEST_REASON, MOST_ASKED, MOST_TOLD, DeclineShards, KeepShards, shard_name, shard_of
from ciuic_p2p.core.stripes import FetchShard, RebuildShard, Stripe, plan_stripes, surplus_of
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.daemon.shard_reading import ShardReader
from ciuic_p2p.errors import LocalError, PeerUnreachable
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.terms import PeerId, ShardId

log = structlog.get_logger(__name__)

PROMISE_S = 6 * 3600.0
"""How long a shard is kept that somebody asked for, and of whose object nothing is known yet: a put over a slow line lasts."""

BATCHES_AT_ONCE = 2
"""Of what one peer asked for: while the last shards of one are compared and written, the line carries the other."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a look at all shards showed."""

    short: frozenset[ShardId]
    """With fewer copies than the goal."""
    copies: tuple[Copy, ...]
    surplus: frozenset[ShardId]
    """That this peer may let go."""


@dataclass(frozen=True, slots=True)
class StripeSurvey:
    """The same of shards that have parity."""

    short: frozenset[ShardId]
    """That no peer has that is here, or was so a short time ago."""
    fetches: frozenset[ShardId]
    """That this peer should have, and another one has."""
    rebuilds: Mapping[Stripe, tuple[ShardId, ...]]
    """That this peer is to make of others."""
    surplus: frozenset[ShardId]


class Replicas:
    """Lives in the event loop's thread."""

    def __init__(
        self,
        me: PeerId,
        store: DiskStore,
        holdings: Holdings,
        reader: ShardReader,
        send: Callable[[PeerId, Message], None],
        rtt_ms: Callable[[PeerId], float],
        tasks: TaskSet,
    ) -> None:
        """send: raises PeerUnreachable. rtt_ms: of a peer as probed, 0 while unknown."""
        self._me = me
        self._store = store
        self._holdings = holdings
        self._reader = reader
        self._send = send
        self._rtt_ms = rtt_ms
        self._tasks = tasks
        self._asked: dict[PeerId, dict[ShardId, int]] = {}
        """What each peer asked this one to keep, and is not here yet."""
        self._batches: dict[PeerId, list[dict[ShardId, int]]] = {}
        """Those of it that are on their way."""
        self._promised_s: dict[ShardId, float] = {}
        """Until when it is kept, whoever knows of it."""

    # -- asked to keep -------------------------------------------------------------------------------------------------

    def asked_to_keep(self, peer: PeerId, message: KeepShards) -> None:
        wanted = {shard_of(name): size_bytes for name, size_bytes in message.shards}
        here = wanted.keys() & self._holdings.mine.keys()
        for shard in here:
            self._holdings.note_came(shard, self._holdings.mine[shard])
        taken = self._fetch_soon(peer, {shard: size for shard, size in wanted.items() if shard not in here})
        self._promised_s.update(dict.fromkeys(here | taken, time.monotonic() + PROMISE_S))

    def _fetch_soon(self, peer: PeerId, wanted: Mapping[ShardId, int]) -> set[ShardId]:
        """Those for which there is room; the others are declined."""
        room_bytes = self._holdings.free_bytes() - sum(sum(asked.values()) for asked in self._asked.values())
        refused = []
        fetching = self._asked.get(peer)
        taken = fetching if fetching is not None else {}
        for shard, size_bytes in wanted.items():
            room_bytes -= size_bytes
            if room_bytes >= 0 and len(taken) < MOST_TOLD:
                taken[shard] = size_bytes
            else:
                refused.append(shard)
        self._decline(peer, refused, "its store is full")
        if taken:
            self._asked[peer] = taken
            batches = self._batches.setdefault(peer, [])
            if len(batches) < BATCHES_AT_ONCE and self._next_batch(peer):
                batch: dict[ShardId, int] = {}
                batches.append(batch)
                self._tasks.spawn(self._fetch_batches(peer, batch))
        return wanted.keys() - set(refused)

    def _next_batch(self, peer: PeerId) -> dict[ShardId, int]:
        """Of what the peer asked for, and is not on its way."""
        begun = {shard for batch in self._batches[peer] for shard in batch}
        waiting = ((shard, size_bytes) for shard, size_bytes in self._asked[peer].items() if shard not in begun)
        return dict(islice(waiting, MOST_ASKED))

    async def _fetch_batches(self, peer: PeerId, batch: dict[ShardId, int]) -> None:
        """One after the other, until none is left. batch: shows which one it is."""
        asked = self._asked[peer]
        try:
            while waiting := self._next_batch(peer):
                batch.update(waiting)
                await self._fetch_batch(peer, waiting)
                for shard in waiting:
                    asked.pop(shard, None)
                batch.clear()
        finally:
            self._batches[peer] = [other for other in self._batches[peer] if other is not batch]
            if not self._batches[peer]:
                del self._batches[peer], self._asked[peer]

    async def _fetch_batch(self, peer: PeerId, batch: Mapping[ShardId, int]) -> None:
        try:
            missing: Iterable[ShardId] = await self.fetch(batch, first=peer)
            reason = "it did not get them"
        except LocalError as error:  # the rest would fare no better
            rest = self._next_batch(peer)
            missing, reason = [*(shard for shard in batch if shard not in self._holdings.mine), *rest], error.what
            for shard in rest:
                del self._asked[peer][shard]
        self._decline(peer, missing, reason)

    async def fetch(self, shards: Mapping[ShardId, int], first: PeerId | None = None) -> list[ShardId]:
        """Takes them into the store; returns those that could not be had. first: who surely has them. Raises StoreFull,
        StoreUnusable."""
        wanted = [
            WantedShard(shard=shard, size_bytes=size_bytes, holders=self.sources(shard, first))
            for shard, size_bytes in shards.items()
            if shard not in self._holdings.mine
        ]
        missing = await self._reader.read(wanted, self._keep, lambda shard: self._holdings.note_came(shard, shards[shard]))
        return [ShardId(each.shard) for each in missing]

    def sources(self, shard: ShardId, first: PeerId | None = None) -> tuple[PeerId, ...]:
        """Who holds it and is here, nearest first."""
        present = self._holdings.present()
        known = self._holdings.holders_of(shard) & present
        able = [holder for holder in self._holdings.holders() if holder.peer in known]
        nearest = order_sources(self._me, able, {peer: self._rtt_ms(peer) for peer in known})
        return tuple(dict.fromkeys((*([first] if first is not None else []), *nearest)))

    def _keep(self, shard: ShardId, data: memoryview) -> None:
        self._store.put(data, shard)

    def _decline(self, peer: PeerId, shards: Iterable[ShardId], reason: str) -> None:
        names = tuple(map(shard_name, shards))
        if names:
            with suppress(PeerUnreachable):
                self._send(peer, DeclineShards(shards=names, reason=reason[:LONGEST_REASON]))

    def promised(self) -> frozenset[ShardId]:
        now = time.monotonic()
        self._promised_s = {shard: until_s for shard, until_s in self._promised_s.items() if until_s > now}
        return frozenset(self._promised_s)

    # -- repair --------------------------------------------------------------------------------------------------------

    async def survey(self, shards: Mapping[ShardId, int], replicas: int, gone_after_s: float) -> Survey:
        """shards: all that should be held, with the bytes of each as they are kept."""
        census = Census(self._holdings.holders(), self._holdings.silent_since_s(), time.monotonic(), gone_after_s)
        everyone = self._holdings.everyone()
        return await asyncio.to_thread(_survey, self._me, shards, everyone, census, replicas)

    async def survey_stripes(self, stripes: Collection[Stripe], gone_after_s: float) -> StripeSurvey:
        census = Census(self._holdings.holders(), self._holdings.silent_since_s(), time.monotonic(), gone_after_s)
        return await asyncio.to_thread(_survey_stripes, self._me, stripes, self._holdings.everyone(), census)

    async def repair(self, copies: Collection[Copy], shards: Mapping[ShardId, int]) -> None:
        """Makes those copies whose target is this peer. What cannot be had now is planned again in the next period."""
        mine = [ShardId(copy.shard) for copy in copies if copy.target == self._me and copy.shard in shards]
        await self.bring({shard: shards[shard] for shard in mine})

    async def bring_back(self, shards: Mapping[ShardId, int]) -> None:
        """What should be here and is not, as far as somebody has it."""
        for shard in shards.keys() & self._holdings.mine.keys():
            if not self._store.has(shard):
                self._holdings.note_damaged(shard)
        await self.bring({shard: size_bytes for shard, size_bytes in shards.items() if self.sources(shard)})

    async def bring(self, mine: Mapping[ShardId, int]) -> None:
        """Here, as far as it can be had now."""
        if not mine:
            return
        log.info("shards.repairing", shards=len(mine))
        try:
            missing = await self.fetch(mine)
        except LocalError as error:
            log.warning("shards.not_repaired", error=str(error))
        else:
            log.info("shards.repaired", shards=len(mine) - len(missing), missing=len(missing))


def _survey(
    me: PeerId,
    shards: Mapping[ShardId, int],
    everyone: list[tuple[PeerId, Mapping[ShardId, int]]],
    census: Census,
    replicas: int,
) -> Survey:
    """In a thread: with many shards it takes longer than the loop may."""
    held = [
        HeldShard(shard=shard, size_bytes=size_bytes, holders=frozenset(peer for peer, theirs in everyone if shard in theirs))
        for shard, size_bytes in shards.items()
    ]
    return Survey(
        short=frozenset(ShardId(each.shard) for each in held if len(census.copies(each)) < replicas),
        copies=plan_repairs(held, census, replicas),
        surplus=frozenset(ShardId(drop.shard) for drop in plan_drops(held, census, replicas) if drop.holder == me),
    )


def _survey_stripes(
    me: PeerId, stripes: Collection[Stripe], everyone: list[tuple[PeerId, Mapping[ShardId, int]]], census: Census
) -> StripeSurvey:
    """In a thread."""
    shards = {shard for stripe in stripes for shard in stripe.shards}
    holders = {shard: frozenset(peer for peer, theirs in everyone if shard in theirs) for shard in shards}
    plan = plan_stripes(stripes, holders, census)
    rebuilds: dict[Stripe, tuple[ShardId, ...]] = {}
    for each in plan:
        if isinstance(each, RebuildShard) and each.target == me:
            rebuilds[each.stripe] = (*rebuilds.get(each.stripe, ()), each.shard)
    surplus = [surplus_of(me, stripe, holders, census) for stripe in stripes]
    needed = {s for stripe, extra in zip(stripes, surplus, strict=True) for s in stripe.shards if s not in extra}
    return StripeSurvey(
        short=frozenset(shard for shard in shards if not holders[shard] & census.staying.keys()),
        fetches=frozenset(each.shard for each in plan if isinstance(each, FetchShard) and each.target == me),
        rebuilds=rebuilds,
        surplus=frozenset[ShardId]().union(*surplus) - needed,
    )
