"""Makes lost shards of stripes again from others of the same stripe, wherever they are. Decides neither which nor where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from ciuic_p2p.core.hedging import WantedShard
from ciuic_p2p.core.stripes import Stripe
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.daemon.replicas import Replicas
from ciuic_p2p.daemon.shard_reading import ShardReader, TakeShard
from ciuic_p2p.errors import LocalError, ShardMissing
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.shards import ShardStore, shard_id_of
from ciuic_p2p.tensors.erasure import rebuild
from ciuic_p2p.terms import ShardId

log = structlog.get_logger(__name__)

Have = Callable[[ShardId], bytes | memoryview | None]
"""The bytes of a shard, compared with its name, from somewhere on this machine. Called in a thread."""


class Rebuilder:
    """Lives in the event loop's thread. Holds one stripe in memory at a time."""

    def __init__(self, store: DiskStore, holdings: Holdings, replicas: Replicas, reader: ShardReader) -> None:
        self._store = store
        self._holdings = holdings
        self._replicas = replicas
        self._reader = reader
        self._turn = asyncio.Lock()

    async def rebuild(self, stripe: Stripe, lost: Collection[ShardId], have: Have) -> dict[ShardId, bytes]:
        """Those of the lost shards that could be made. have: asked first for each of the stripe."""
        async with self._turn:
            present = await asyncio.to_thread(_gather, stripe, lost, have)
            await self._read(stripe, lost, present)
            if len(present) < len(stripe.data):
                return {}
            return await asyncio.to_thread(_make, stripe, lost, present)

    async def read_or_decode(
        self,
        wanted: Collection[WantedShard],
        stripes: Collection[Stripe],
        missing: Collection[ShardId],
        have: Have,
        take: TakeShard,
        came: Callable[[ShardId], None],
    ) -> None:
        """Data shards first; what does not come, or not when it should, from the rest of its stripe.

        missing: shrinks by what came. take, came: as of `ShardReader.read`."""
        late: set[ShardId] = set()
        changed = asyncio.Event()

        def are_late(shards: Collection[ShardId]) -> None:
            if not late.issuperset(shards):
                late.update(shards)
                changed.set()

        reading = asyncio.get_running_loop().create_task(self._reader.read(wanted, take, came, are_late))
        reading.add_done_callback(lambda _: changed.set())
        try:
            while missing and not reading.done():
                await changed.wait()
                changed.clear()
                await self._decode(stripes, late.intersection(missing), have, take, came)
            if missing:
                await reading
                await self._decode(stripes, missing, have, take, came)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _decode(
        self,
        stripes: Iterable[Stripe],
        lost: Collection[ShardId],
        have: Have,
        take: TakeShard,
        came: Callable[[ShardId], None],
    ) -> None:
        """Those of them that their stripes' other shards give."""
        for stripe in stripes if lost else []:
            wanted = [shard for shard in stripe.data if shard in lost]
            made = await self.rebuild(stripe, wanted, have) if wanted else {}
            for shard, data in made.items():
                await asyncio.to_thread(take, shard, memoryview(data))
                came(shard)
            if made:
                log.info("object.decoded", shards=len(made))

    async def repair(self, lost: Mapping[Stripe, Collection[ShardId]]) -> None:
        """Into this peer's store. What cannot be made now is planned again in the next period."""
        if not lost:
            return
        wanted = sum(map(len, lost.values()))
        log.info("shards.rebuilding", shards=wanted)
        done = 0
        try:
            for stripe, shards in lost.items():
                made = await self.rebuild(stripe, shards, self._from_store)
                for shard, data in made.items():
                    await asyncio.to_thread(self._store.put, data)
                    self._holdings.note_came(shard, len(data))
                    done += 1
        except LocalError as error:
            log.warning("shards.not_rebuilt", error=str(error))
        else:
            log.info("shards.rebuilt", shards=done, missing=wanted - done)

    def _from_store(self, shard: ShardId) -> bytes | memoryview | None:
        return read_from(self._store, shard)

    async def _read(self, stripe: Stripe, lost: Collection[ShardId], present: dict[ShardId, bytes | memoryview]) -> None:
        """From others, as many as are needed: data first, as in the stripe; others where those do not come."""
        sizes = dict(zip(stripe.shards, stripe.sizes, strict=True))
        left = [shard for shard in sizes if shard not in present and shard not in lost]
        while len(present) < len(stripe.data) and left:
            count = len(stripe.data) - len(present)
            now, left = left[:count], left[count:]
            wanted = [WantedShard(shard=shard, size_bytes=sizes[shard], holders=self._replicas.sources(shard)) for shard in now]
            await self._reader.read(wanted, lambda shard, data: present.update({shard: bytes(data)}))


def read_from(store: ShardStore, shard: ShardId) -> bytes | memoryview | None:
    """In a thread. None when the store cannot give it."""
    try:
        return store.get(shard)
    except ShardMissing:
        return None


def _gather(stripe: Stripe, lost: Collection[ShardId], have: Have) -> dict[ShardId, bytes | memoryview]:
    """What is here, as much as is needed. Shards of another size than the stripe says are of no use: its author lies."""
    present: dict[ShardId, bytes | memoryview] = {}
    for shard, size_bytes in zip(stripe.shards, stripe.sizes, strict=True):
        data = have(shard) if shard not in lost and shard not in present and len(present) < len(stripe.data) else None
        if data is not None and len(data) == size_bytes:
            present[shard] = data
    return present


def _make(stripe: Stripe, lost: Iterable[ShardId], present: Mapping[ShardId, bytes | memoryview]) -> dict[ShardId, bytes]:
    """Only what has its name: parity of an author who lied is found out here."""
    numbers = {stripe.number_of(place): shard for place, shard in enumerate(stripe.shards)}
    given = {number: present[shard] for number, shard in numbers.items() if shard in present}
    wanted = {shard: number for number, shard in numbers.items() if shard in set(lost)}
    sizes = dict(zip(stripe.shards, stripe.sizes, strict=True))
    made = rebuild(given | dict.fromkeys(stripe.empty(), b""), list(wanted.values()), stripe.k, stripe.width)
    found = {shard: bytes(memoryview(data)[: sizes[shard]]) for shard, data in zip(wanted, made, strict=True)}
    wrong = [shard for shard, data in found.items() if shard_id_of(data) != shard]
    if wrong:
        log.warning("shards.rebuilt_wrong", shards=[shard[:12] for shard in wrong])
    return {shard: data for shard, data in found.items() if shard not in wrong}
