"""Bytes from the middle of objects: right ones, from here and from holders, each shard fetched once and only where needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from test_shard_transfer import HOLDER, READER, Peer, random_bytes, wanted, with_peers

from ciuic_p2p.core.objects import ObjectName, ObjectVersion
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.core.shard_messages import HeldShards, StoreTold, shard_name
from ciuic_p2p.core.vectors import VersionVector
from ciuic_p2p.daemon import ranges
from ciuic_p2p.daemon.holdings import Holdings, StoreLimits
from ciuic_p2p.daemon.ranges import Ranges
from ciuic_p2p.daemon.rebuilding import Rebuilder
from ciuic_p2p.daemon.replicas import Replicas
from ciuic_p2p.errors import LocalError, ObjectUnreadable
from ciuic_p2p.store.blobs import BlobManifest, write_blob
from ciuic_p2p.store.coding import add_parity
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.manifests import CodedManifest
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.tensors.erasure import Code
from ciuic_p2p.terms import ShardId
from ciuic_p2p.testing.memory import MemoryNetwork

SHARD = 1000
CONTENT = random_bytes(4 * SHARD + 500)
AUTHOR = peer_id_of(Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key())
AT_ONCE = [(0, 1), (999, 2), (1000, 1000), (500, 3500), (0, len(CONTENT)), (4400, 1000), (len(CONTENT), 1), (9999, 5), (7, 0)]


class Scene:
    """This peer's ranges, over a store of its own and one holder."""

    def __init__(self, folder: Path, reader: Peer, holder: Peer) -> None:
        self.store, self.holder = DiskStore(folder, None, 0), holder
        limits = StoreLimits(quota_bytes=None, reserve_bytes=0)
        self.holdings = Holdings(READER, self.store, limits, lambda _: None, lambda _: "", lambda: 0.0)
        self.tasks = reader.tasks
        self.holdings.peer_arrived(HOLDER)
        replicas = Replicas(READER, self.store, self.holdings, reader.reader, lambda *_: None, lambda _: 0.0, reader.tasks)
        rebuilder = Rebuilder(self.store, self.holdings, replicas, reader.reader)
        self.ranges = Ranges(self.store, self.holdings, reader.reader, rebuilder, wanted, self._unreadable, reader.tasks)

    def _unreadable(self, name: ObjectName, missing: list[ShardId]) -> ObjectUnreadable:
        assert missing
        return ObjectUnreadable(f"{len(missing)} shards of {name}")

    def put_here(self, content: bytes) -> BlobManifest:
        manifest = write_blob(self.store, iter([content]), shard_bytes=SHARD)
        for ref in manifest.shards:
            self.holdings.note_came(ref.shard, ref.stored_bytes)
        return manifest

    def put_coded(self, content: bytes, *, lost: int) -> CodedManifest:
        """In stripes of three and two, the first shards of each with nobody."""
        memory, code = MemoryStore(), Code(k=3, m=2)
        manifest = add_parity(memory, write_blob(memory, [content], shard_bytes=SHARD), code, lambda _: None)
        there = [shard for stripe in manifest.stripes() for shard in stripe.shards[lost:]]
        for shard in there:
            self.holder.store.put(memory.get(shard))
        told = tuple((shard_name(shard), memory.size_bytes(shard)) for shard in there)
        self.holdings.held(HOLDER, HeldShards(came=told, left=()))
        self.holdings.store_told(
            HOLDER, StoreTold(free_bytes=0, shard_bytes=0, goodput_mbps=0.0, shards=len(there), digest=bytes(32))
        )
        return manifest

    def put_there(self, content: bytes, **options: Any) -> BlobManifest:
        return write_blob(self.holder.store, iter([content]), shard_bytes=SHARD, **options)


def version_of(manifest: BlobManifest) -> ObjectVersion:
    return ObjectVersion(
        bucket="data",
        key="file",
        vector=VersionVector().increment(AUTHOR),
        author=AUTHOR,
        created_at_ms=0,
        manifest=manifest.encode(),
        size_bytes=manifest.size_bytes,
        etag=manifest.blob,
        signature=bytes.fromhex(manifest.blob) * 2,
    )


def with_scene(folder: Path, scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def run(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        await scenario(Scene(folder, reader, holder))

    with_peers(run)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("packing", ["never", "always"])
def test_any_range_is_the_right_bytes(tmp_path: Path, here: bool, packing: str) -> None:
    async def scenario(scene: Scene) -> None:
        content = CONTENT if packing == "never" else bytes(CONTENT[:50]) * (len(CONTENT) // 50)
        manifest = scene.put_here(content) if here else scene.put_there(content, packing=packing)
        assert here or all(ref.packed == (packing == "always") for ref in manifest.shards[:-1])
        version = version_of(manifest)
        read = await asyncio.gather(*(scene.ranges.read(version, *at) for at in AT_ONCE))
        assert read == [content[offset : offset + length] for offset, length in AT_ONCE]
        assert await scene.ranges.read(version, 3, 5) == content[3:8]

    with_scene(tmp_path, scenario)


def test_ranges_of_an_object_with_parity_are_read_though_data_shards_are_lost(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        # given an object of which each stripe has lost as many shards as it may, all of them data
        version = version_of(scene.put_coded(CONTENT, lost=2))
        # then any range of it can be read, by several readers at once
        read = await asyncio.gather(*(scene.ranges.read(version, *at) for at in AT_ONCE))
        assert read == [CONTENT[offset : offset + length] for offset, length in AT_ONCE]

    with_scene(tmp_path, scenario)


def test_a_range_of_which_too_much_is_lost_says_so(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        version = version_of(scene.put_coded(CONTENT, lost=3))
        with pytest.raises(ObjectUnreadable):
            await scene.ranges.read(version, 0, 10)

    with_scene(tmp_path, scenario)


def test_only_the_shards_that_are_needed_are_fetched_and_each_once(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        # given an object that a holder has
        manifest = scene.put_there(CONTENT)
        version = version_of(manifest)

        # when several readers at once want bytes of two of its shards, and one of them again later
        await asyncio.gather(*(scene.ranges.read(version, 1900 + n, 200) for n in range(20)))
        await scene.ranges.read(version, 1000, 1000)

        # then these two were asked for, once
        assert sorted(scene.holder.asked) == sorted(ref.shard for ref in manifest.shards[1:3])
        assert scene.ranges.kept_bytes == 2 * SHARD

    with_scene(tmp_path, scenario)


def test_a_reader_that_dies_takes_nothing_from_another_one(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        version = version_of(scene.put_there(CONTENT))
        first = asyncio.create_task(scene.ranges.read(version, 0, 10))
        second = asyncio.create_task(scene.ranges.read(version, 5, 10))
        for _ in range(3):
            await asyncio.sleep(0)
        first.cancel()
        assert await second == CONTENT[5:15]
        assert first.cancelled()

    with_scene(tmp_path, scenario)


def test_a_reader_is_told_when_the_daemon_ends(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        asked = asyncio.Event()
        scene.holder.lies = lambda *_: asked.set() or ()  # and says nothing
        reading = asyncio.create_task(scene.ranges.read(version_of(scene.put_there(CONTENT)), 0, 10))
        await asked.wait()
        await scene.tasks.cancel()
        with pytest.raises(LocalError, match="broken off"):
            await reading

    with_scene(tmp_path, scenario)


def test_what_is_kept_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        monkeypatch.setattr(ranges, "KEPT_BYTES", 2 * SHARD)
        manifest = scene.put_there(CONTENT)
        version = version_of(manifest)
        for offset in (0, 1000, 0, 2000, 0, 1000):  # 1000 is the one that was not used for the longest time
            assert await scene.ranges.read(version, offset, 10) == CONTENT[offset : offset + 10]
            assert scene.ranges.kept_bytes <= 2 * SHARD
        first, second, third = (ref.shard for ref in manifest.shards[:3])
        assert scene.holder.asked == [first, second, third, second]

    with_scene(tmp_path, scenario)


def test_a_shard_that_is_damaged_here_comes_from_a_holder(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        manifest = scene.put_here(CONTENT)
        scene.put_there(CONTENT)
        damaged = manifest.shards[1].shard
        (tmp_path / "shards" / damaged[:2] / damaged).write_bytes(bytes(SHARD))
        assert await scene.ranges.read(version_of(manifest), 0, 5000) == CONTENT
        assert scene.holder.asked == [damaged]
        assert damaged not in scene.holdings.mine

    with_scene(tmp_path, scenario)


def test_what_nobody_has_is_said_to_all_who_wait_and_can_be_read_once_it_is_there(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        manifest = scene.put_there(CONTENT)
        version = version_of(manifest)
        gone = manifest.shards[2].shard
        data = scene.holder.store.get(gone)
        scene.holder.store.collect(keep=[each for each in scene.holder.store.shards() if each != gone], now_s=0)
        scene.holder.store.collect(keep=[each for each in scene.holder.store.shards() if each != gone], now_s=1e6)
        read = await asyncio.gather(*(scene.ranges.read(version, 2000, 10) for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in read] == ["1 shards of ciuic://data/file"] * 3
        assert all(isinstance(error, ObjectUnreadable) for error in read)
        assert await scene.ranges.read(version, 0, 2000) == CONTENT[:2000]
        scene.holder.store.put(data)
        assert await scene.ranges.read(version, 0, 5000) == CONTENT

    with_scene(tmp_path, scenario)


def test_a_manifest_that_lies_is_said(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        manifest = scene.put_there(CONTENT)
        lie = manifest.to_wire()
        shard, _size, _stored, _packed = lie[2][0]
        lie[2][0] = [shard, 2000, 1000, True]
        lie[1] += 1000
        with pytest.raises(LocalError, match=r"not what its author's manifest says.*put it again"):
            await scene.ranges.read(version_of(BlobManifest.from_wire(lie)), 0, 1)

    with_scene(tmp_path, scenario)


def test_an_empty_object_has_no_bytes(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.ranges.read(version_of(scene.put_here(b"")), 0, 10) == b""
        assert scene.holder.asked == []

    with_scene(tmp_path, scenario)
