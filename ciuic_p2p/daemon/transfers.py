"""Files into the swarm and out of it: a put until enough peers hold its shards, a get from whoever has them, nearest first.

Knows no versions and no messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import structlog

from ciuic_p2p.core.hedging import WantedShard
from ciuic_p2p.core.messages import Message
from ciuic_p2p.core.objects import ObjectName
from ciuic_p2p.core.shard_messages import DeclineShards
from ciuic_p2p.core.stripes import Stripe
from ciuic_p2p.daemon.copying import Copying
from ciuic_p2p.daemon.filing import Cutting, Partial
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.daemon.rebuilding import Rebuilder, read_from
from ciuic_p2p.daemon.replicas import Replicas
from ciuic_p2p.daemon.shard_reading import ShardReader
from ciuic_p2p.daemon.spreading import Spreading
from ciuic_p2p.errors import LocalError, ObjectUnreadable, ShardMissing
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.fresh import FreshShards
from ciuic_p2p.store.manifests import BlobManifest, CodedManifest
from ciuic_p2p.store.pipeline import in_order
from ciuic_p2p.tensors.erasure import Code
from ciuic_p2p.terms import PeerId, ShardId

log = structlog.get_logger(__name__)

TRIES = 2
"""Of a get, at what did not come: others may be known to hold it by then."""
READING_THREADS = 3
REPORT_EVERY_S = 0.2

Told = Callable[[int, int], None]
"""Is told how many bytes of how many are done."""


class Transfers:
    """Lives in the event loop's thread."""

    def __init__(
        self,
        me: PeerId,
        store: DiskStore,
        holdings: Holdings,
        replicas: Replicas,
        reader: ShardReader,
        send: Callable[[PeerId, Message], None],
        name_of: Callable[[PeerId], str],
        goal: int,
        fresh: FreshShards,
        rebuilder: Rebuilder,
    ) -> None:
        """send: raises PeerUnreachable. goal: copies of each shard, but of those that have parity. fresh: is given what was
        just put."""
        self._rebuilder = rebuilder
        self._me = me
        self._store = store
        self._holdings = holdings
        self._replicas = replicas
        self._reader = reader
        self._send = send
        self._name_of = name_of
        self._goal = goal
        self._fresh = fresh
        self._copying: dict[Copying, set[ShardId]] = {}
        """Puts under way → their shards, which nothing names yet."""

    def being_put(self) -> frozenset[ShardId]:
        return frozenset().union(*self._copying.values())

    def declined(self, peer: PeerId, message: DeclineShards) -> None:
        for copying in self._copying:
            copying.declined(peer, message)

    # -- put -----------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def put(self, path: Path, told: Told, code: Code | None = None) -> AsyncIterator[BlobManifest]:
        """Within it, enough peers hold the file's shards, and this one lets go of none. code: instead of copies.

        Raises LocalError, StoreFull, StoreUnusable, TooFewCopies.
        """
        if code is None:
            copying = Copying(self._me, self._holdings, self._send, self._name_of, self._goal)
        else:
            copying = Spreading(self._me, self._holdings, self._send, self._name_of)
        self._copying[copying] = set()
        try:
            yield await self._cut_and_copy(path, copying, told, code)
        finally:
            del self._copying[copying]

    async def _cut_and_copy(self, path: Path, copying: Copying, told: Told, code: Code | None) -> BlobManifest:
        loop = asyncio.get_running_loop()

        def put_here(shard: ShardId, size_bytes: int) -> None:
            if copying in self._copying:
                self._copying[copying].add(shard)
                self._holdings.note_came(shard, size_bytes)
                if not isinstance(copying, Spreading):
                    copying.add(shard, size_bytes)

        def coded_here(stripe: Stripe) -> None:
            if copying in self._copying and isinstance(copying, Spreading):
                copying.add_stripe(stripe)

        def from_thread(shard: ShardId, data: bytes | memoryview) -> None:
            self._fresh.keep(shard, data)
            with contextlib.suppress(RuntimeError):  # the daemon ends
                loop.call_soon_threadsafe(put_here, shard, len(data))

        def coded_from_thread(stripe: Stripe) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(coded_here, stripe)

        cutting = Cutting(self._store, path, from_thread, code, coded_from_thread)
        reporting = loop.create_task(_report(lambda: told(min(copying.done_bytes, cutting.size_bytes), cutting.size_bytes)))
        cut = loop.create_task(asyncio.to_thread(cutting.cut))
        cut.add_done_callback(lambda _: copying.all_added())
        copies = loop.create_task(copying.run())
        try:
            await asyncio.wait({cut, copies}, return_when=asyncio.FIRST_EXCEPTION)
            if not cut.done():
                await copies  # raises
            manifest = await cut
            await copies
            return manifest
        finally:
            cutting.stop()
            await _end(reporting, copies, cut)

    # -- get -----------------------------------------------------------------------------------------------------------

    async def get(self, name: ObjectName, manifest: BlobManifest, target: Path, told: Told) -> None:
        """The target is there whole when this returns. Raises ObjectUnreadable, LocalError, StoreFull.

        What was got stays beside the target when shards are with nobody now, so that the next get goes on from there.
        """
        partial = await asyncio.to_thread(Partial, target, manifest, name.key.rpartition("/")[2])
        try:
            await self._fill(partial, name, manifest, told)
            await asyncio.to_thread(partial.finish)
        except LocalError:
            partial.discard()
            raise
        finally:
            await asyncio.to_thread(partial.close)

    async def _fill(self, partial: Partial, name: ObjectName, manifest: BlobManifest, told: Told) -> None:
        """From here what is here, the rest from its holders."""
        refs = {ref.shard: ref for ref in manifest.shards}
        total_bytes = sum(ref.size_bytes for ref in refs.values())
        missing = dict.fromkeys(refs)

        def came(shard: ShardId) -> None:
            missing.pop(shard, None)

        def report() -> None:
            told(total_bytes - sum(refs[shard].size_bytes for shard in missing), total_bytes)

        def have(shard: ShardId) -> bytes | memoryview | None:
            return partial.give(shard) or read_from(self._store, shard)

        reporting = asyncio.get_running_loop().create_task(_report(report))
        try:
            for shard in await asyncio.to_thread(partial.found):
                came(shard)
            await self._take_from_here(partial, list(missing), came)
            for _ in range(TRIES):
                wanted = [self.wanted(shard, refs[shard].stored_bytes) for shard in missing]
                if isinstance(manifest, CodedManifest):
                    await self._rebuilder.read_or_decode(wanted, manifest.stripes(), missing, have, partial.take, came)
                else:
                    await self._reader.read(wanted, partial.take, came)
            if missing:
                raise self.unreadable(name, list(missing))
        finally:
            await _end(reporting)

    async def _take_from_here(self, partial: Partial, shards: list[ShardId], came: Callable[[ShardId], None]) -> None:
        here = [shard for shard in shards if shard in self._holdings.mine]
        taken = await asyncio.to_thread(_take_from_store, self._store, partial, here)
        for shard in here:
            if shard in taken:
                came(shard)
            else:
                self._holdings.note_left(shard)

    def wanted(self, shard: ShardId, size_bytes: int) -> WantedShard:
        """Where nobody is known to hold it, all are asked: what they told may be on its way."""
        known = tuple(peer for peer in self._replicas.sources(shard) if peer != self._me)
        return WantedShard(shard=shard, size_bytes=size_bytes, holders=known or tuple(sorted(self._holdings.here())))

    def unreadable(self, name: ObjectName, missing: list[ShardId]) -> ObjectUnreadable:
        gone = {peer for shard in missing for peer in self._holdings.holders_of(shard)} - self._holdings.present()
        who = ", ".join(sorted(map(self._name_of, gone)))
        remedy = f"it can be read when one of {who} is back" if who else "put it again where its file still is"
        return ObjectUnreadable(f"{len(missing)} shards of {name} (such as {missing[0][:12]}…) are with nobody here", remedy)


def _take_from_store(store: DiskStore, partial: Partial, shards: list[ShardId]) -> set[ShardId]:
    """In a thread. Those that could be taken."""

    def take(shard: ShardId) -> ShardId | None:
        try:
            partial.take(shard, store.get(shard))
        except ShardMissing:
            return None
        return shard

    with contextlib.closing(in_order(take, shards, READING_THREADS)) as taken:
        return {shard for shard in taken if shard is not None}


async def _report(tell: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        tell()


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """They are over when this returns; what they raise was raised already, or does not matter any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
