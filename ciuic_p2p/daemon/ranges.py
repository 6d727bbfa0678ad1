"""Bytes from the middle of objects: takes the shards that they are in from here or from holders, and keeps a few of those in
memory for whoever reads on. Of objects with parity, what nobody gives is made of the rest of its stripe. Knows no messages, and
not which version is read.

Each shard is compared with its name, as whole reads do; that the whole is what the author hashed only a whole read can tell.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable

from ciuic_p2p.core.hedging import WantedShard
from ciuic_p2p.core.objects import ObjectName, ObjectVersion
from ciuic_p2p.core.stripes import Stripe
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.daemon.rebuilding import Rebuilder, read_from
from ciuic_p2p.daemon.shard_reading import ShardReader
from ciuic_p2p.errors import LocalError, MalformedPayload, ObjectUnreadable, ShardMissing, SwarmError
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.store.blobs import open_shard
from ciuic_p2p.store.manifests import BlobManifest, CodedManifest, ShardRef
from ciuic_p2p.store.shards import ShardStore
from ciuic_p2p.terms import ShardId

KEPT_BYTES = 64 << 20
"""Of shards that were read last. A column of a table, or a tar, is read in many pieces of one shard."""

MOST_FETCHES = 8
"""At once, from holders; the others wait. What is here never waits for what is elsewhere."""

MOST_MANIFESTS = 16
"""Kept decoded: of an object of 48 GB that takes as long as reading from a disk."""

TRIES = 2
"""At what did not come: others may be known to hold it by then."""

Content = bytes | memoryview


class Ranges:
    """Lives in the event loop's thread."""

    def __init__(
        self,
        store: ShardStore,
        holdings: Holdings,
        reader: ShardReader,
        rebuilder: Rebuilder,
        wanted: Callable[[ShardId, int], WantedShard],
        unreadable: Callable[[ObjectName, list[ShardId]], ObjectUnreadable],
        tasks: TaskSet,
    ) -> None:
        """wanted: a shard and its bytes as they are kept, with who may give it. unreadable: what to say of missing ones."""
        self._store = store
        self._holdings = holdings
        self._reader = reader
        self._rebuilder = rebuilder
        self._wanted = wanted
        self._unreadable = unreadable
        self._tasks = tasks
        self._turns = asyncio.Semaphore(MOST_FETCHES)
        self._kept: OrderedDict[ShardRef, Content] = OrderedDict()
        """Unpacked, the one that was used last at the end."""
        self._coming: dict[ShardRef, asyncio.Future[Content]] = {}
        """Whoever wants one of these waits for it too."""
        self._manifests: OrderedDict[bytes, BlobManifest] = OrderedDict()
        """By the signature of their version."""
        self.kept_bytes = 0

    async def read(self, version: ObjectVersion, offset: int, length: int) -> bytes:
        """Fewer bytes where the object ends before. Raises ObjectUnreadable, LocalError, StoreUnusable."""
        manifest = await self._manifest(version)
        stop = min(offset + length, manifest.size_bytes)
        slices = list(manifest.slices(min(offset, stop), stop))
        contents = await self._contents(version.name, manifest, {each.ref for each in slices})
        return b"".join(memoryview(contents[each.ref])[each.start : each.stop] for each in slices)

    async def _manifest(self, version: ObjectVersion) -> BlobManifest:
        assert version.manifest is not None
        manifest = self._manifests.get(version.signature)
        if manifest is None:
            manifest = await asyncio.to_thread(BlobManifest.decode, version.manifest)
        self._manifests[version.signature] = manifest
        self._manifests.move_to_end(version.signature)
        while len(self._manifests) > MOST_MANIFESTS:
            self._manifests.popitem(last=False)
        return manifest

    async def _contents(self, name: ObjectName, manifest: BlobManifest, refs: set[ShardRef]) -> dict[ShardRef, Content]:
        found = {ref: self._kept[ref] for ref in refs if ref in self._kept}
        for ref in found:
            self._kept.move_to_end(ref)
        self._begin(name, manifest, [ref for ref in refs if ref not in found and ref not in self._coming])
        coming = {ref: self._coming[ref] for ref in refs if ref not in found}
        for ref, future in coming.items():
            found[ref] = await asyncio.shield(future)  # of another reader too, who may die
        return found

    # -- what is not here yet ----------------------------------------------------------------------------------------------

    def _begin(self, name: ObjectName, manifest: BlobManifest, refs: list[ShardRef]) -> None:
        if not refs:
            return
        coming: dict[ShardRef, asyncio.Future[Content]] = {}
        for ref in refs:
            coming[ref] = asyncio.get_running_loop().create_future()
            coming[ref].add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to hear it
        self._coming.update(coming)
        self._tasks.spawn(self._bring(name, manifest, coming))

    async def _bring(self, name: ObjectName, manifest: BlobManifest, coming: dict[ShardRef, asyncio.Future[Content]]) -> None:
        """All of them are done when this ends, in whatever way, and none is `_coming` any more."""
        error: SwarmError = LocalError(f"reading {name} was broken off", "the daemon's log says why")
        try:
            if missing := await self._fetch(name, manifest, coming):
                error = self._unreadable(name, missing)
        except SwarmError as raised:
            error = raised
        finally:
            for ref, future in coming.items():
                del self._coming[ref]
                if not future.done():
                    future.set_exception(error)

    async def _fetch(
        self, name: ObjectName, manifest: BlobManifest, coming: dict[ShardRef, asyncio.Future[Content]]
    ) -> list[ShardId]:
        """From here what is here, the rest from its holders. What could not be had."""
        refs: dict[ShardId, list[ShardRef]] = {}
        for ref in coming:
            refs.setdefault(ref.shard, []).append(ref)
        opened: dict[ShardRef, Content] = {}

        def take(shard: ShardId, data: Content) -> None:
            opened.update((ref, _open(name, ref, data)) for ref in refs.get(shard, ()))

        def came(shard: ShardId) -> None:
            for ref in refs.pop(shard, ()):
                self._keep(ref, opened[ref])
                coming[ref].set_result(opened.pop(ref))

        here = [shard for shard in refs if shard in self._holdings.mine]
        taken = await asyncio.to_thread(_take_from_store, self._store, here, take)
        for shard in here:
            if shard in taken:
                came(shard)
            else:
                self._holdings.note_left(shard)
        if refs:
            async with self._turns:
                for _ in range(TRIES):
                    wanted = [self._wanted(shard, of[0].stored_bytes) for shard, of in refs.items()]
                    if isinstance(manifest, CodedManifest):
                        stripes = await asyncio.to_thread(_stripes_of, manifest, frozenset(refs))
                        await self._rebuilder.read_or_decode(wanted, stripes, refs, self._from_store, take, came)
                    else:
                        await self._reader.read(wanted, take, came)
        return list(refs)

    def _from_store(self, shard: ShardId) -> Content | None:
        return read_from(self._store, shard)

    def _keep(self, ref: ShardRef, content: Content) -> None:
        self._kept[ref] = content
        self.kept_bytes += len(content)
        while self.kept_bytes > KEPT_BYTES:
            self.kept_bytes -= len(self._kept.popitem(last=False)[1])


def _stripes_of(manifest: CodedManifest, shards: Collection[ShardId]) -> list[Stripe]:
    """Those that have some of these."""
    return [stripe for stripe in manifest.stripes() if not frozenset(stripe.data).isdisjoint(shards)]


def _take_from_store(store: ShardStore, shards: Iterable[ShardId], take: Callable[[ShardId, Content], None]) -> set[ShardId]:
    """In a thread. Those that could be taken."""
    taken = set()
    for shard in shards:
        try:
            take(shard, store.get(shard))
        except ShardMissing:
            continue
        taken.add(shard)
    return taken


def _open(name: ObjectName, ref: ShardRef, data: Content) -> Content:
    """Raises LocalError where the manifest lies."""
    try:
        return open_shard(ref, data)
    except MalformedPayload as error:
        what = f"a shard of {name} is not what its author's manifest says ({error})"
        raise LocalError(what, "ask the author to put it again") from None
