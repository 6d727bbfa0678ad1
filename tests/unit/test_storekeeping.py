"""What a peer keeps and lets go of: shards of objects, of puts under way, and what other parts of the daemon hold on to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.hedging import LinkEstimate
from ciuic_p2p.core.messages import KeepShards
from ciuic_p2p.core.objects import ObjectVersion, sign_version
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.core.shard_messages import HeldShards, StoreTold, shard_name
from ciuic_p2p.core.vectors import VersionVector
from ciuic_p2p.daemon.catalogue import Catalogue
from ciuic_p2p.daemon.holdings import Holdings, StoreLimits
from ciuic_p2p.daemon.rebuilding import Rebuilder
from ciuic_p2p.daemon.replicas import Replicas
from ciuic_p2p.daemon.shard_reading import ShardReader
from ciuic_p2p.daemon.storekeeping import CareSettings, Reach, Storekeeper
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.store.blobs import BlobManifest, write_blob
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.manifests import CodedManifest
from ciuic_p2p.store.shards import shard_id_of
from ciuic_p2p.terms import BlobHash, PeerId, ShardId
from ciuic_p2p.testing.memory import MemoryNetwork
from ciuic_p2p.testing.recorder import Recorder

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
ME = peer_id_of(KEY.public_key())
OTHER = PeerId("other")


class Keeping:
    """One peer's store without any grace, and its catalogue."""

    def __init__(self, folder: Path, replicas: int) -> None:
        self.store = DiskStore(folder / "store", None, 0, grace_s=0)
        self.catalogue = Catalogue(folder / "objects", "swarm")
        limits = StoreLimits(quota_bytes=None, reserve_bytes=0)
        self.holdings = Holdings(ME, self.store, limits, lambda _: None, lambda peer: peer, lambda: 0.0)
        tasks = TaskSet()
        reader = ShardReader(MemoryNetwork().add(ME, Recorder()), lambda _: LinkEstimate(), tasks)
        self.replicas = Replicas(ME, self.store, self.holdings, reader, lambda *_: None, lambda _: 0.0, tasks)
        settings = CareSettings(replicas=replicas, repair_period_s=1.0, gone_after_s=0.0)
        rebuilder = Rebuilder(self.store, self.holdings, self.replicas, reader)
        self.keeper = Storekeeper(
            self.store, Reach(self.catalogue), self.holdings, self.replicas, rebuilder, settings, lambda: self.putting
        )
        self.putting: set[ShardId] = set()
        self._writes = 0

    def put(self, content: bytes) -> BlobManifest:
        manifest = write_blob(self.store, [content])
        for ref in manifest.shards:
            self.holdings.note_came(ref.shard, ref.stored_bytes)
        return manifest

    def name(self, key: str, manifest: BlobManifest | None) -> None:
        """Its newest version is this one."""
        self._writes += 1
        content = (
            {}
            if manifest is None
            else {"manifest": manifest.encode(), "size_bytes": manifest.size_bytes, "etag": manifest.blob}
        )
        version = ObjectVersion(
            bucket="data",
            key=key,
            vector=VersionVector(((ME, self._writes),)),
            author=ME,
            created_at_ms=self._writes,
            **({"manifest": None} | content),  # type: ignore[arg-type]  # of the fields' types
        )
        self.catalogue.add([sign_version(version, "swarm", KEY.sign)])

    async def care(self) -> set[ShardId]:
        """What is left after two looks, as nothing goes at the first."""
        await self.keeper.care()
        await self.keeper.care()
        return set(self.store.shards())


def play(tmp_path: Path, scenario: Callable[[Keeping], Coroutine[Any, Any, None]], replicas: int = 1) -> None:
    async def run() -> None:
        await scenario(Keeping(tmp_path, replicas))

    asyncio.run(run())


def shards(*manifests: BlobManifest) -> set[ShardId]:
    return {ref.shard for manifest in manifests for ref in manifest.shards}


def test_what_an_object_names_stays_and_the_rest_goes(tmp_path: Path) -> None:
    async def scenario(keeping: Keeping) -> None:
        named, unnamed, of_a_snapshot, promised, put = map(keeping.put, (b"named", b"none", b"snapshot", b"promised", b"put"))
        keeping.putting = shards(put)
        keeping.name("a", named)
        keeping.keeper.keep_also.append(lambda: shards(of_a_snapshot))
        wanted = tuple((shard_name(ref.shard), ref.stored_bytes) for ref in promised.shards)
        keeping.replicas.asked_to_keep(OTHER, KeepShards(shards=wanted))
        assert await keeping.care() == shards(named, of_a_snapshot, promised, put)
        assert keeping.holdings.mine.keys() == shards(named, of_a_snapshot, promised, put)
        assert not keeping.store.has(unnamed.shards[0].shard)

    play(tmp_path, scenario)


def test_a_replaced_version_goes_and_so_does_a_removed_object(tmp_path: Path) -> None:
    async def scenario(keeping: Keeping) -> None:
        first, second = keeping.put(b"first"), keeping.put(b"second")
        keeping.name("a", first)
        keeping.name("b", first)
        keeping.name("a", second)
        assert await keeping.care() == shards(first, second)
        keeping.name("b", None)
        assert await keeping.care() == shards(second)

    play(tmp_path, scenario)


def test_objects_that_wait_for_copies_are_counted(tmp_path: Path) -> None:
    async def scenario(keeping: Keeping) -> None:
        keeping.name("a", keeping.put(b"content"))
        keeping.name("b", keeping.put(b"other content"))
        await keeping.keeper.survey()
        assert keeping.keeper.under_replicated == 2

    play(tmp_path, scenario, replicas=2)


def test_a_surplus_copy_goes_only_when_all_that_should_hold_it_do(tmp_path: Path) -> None:
    async def scenario(keeping: Keeping) -> None:
        # given objects that another peer should hold, and one copy of each is enough
        manifests = [keeping.put(bytes([number])) for number in range(30)]
        for number, manifest in enumerate(manifests):
            keeping.name(f"{number}", manifest)
        keeping.holdings.peer_arrived(OTHER)
        offer = StoreTold(free_bytes=1 << 40, shard_bytes=0, goodput_mbps=0.0, shards=0, digest=bytes(32))
        keeping.holdings.store_told(OTHER, offer)
        assert await keeping.care() == shards(*manifests)

        # when it holds them, then what is not placed here goes, and nothing else
        keeping.holdings.held(OTHER, HeldShards(came=tuple((shard_name(s), 1) for s in shards(*manifests)), left=()))
        left = await keeping.care()
        assert left < shards(*manifests)

    play(tmp_path, scenario)


def test_an_author_that_lies_of_its_shards_sizes_keeps_nobody_from_caring_for_the_rest(tmp_path: Path) -> None:
    async def scenario(keeping: Keeping) -> None:
        # given a shard that is here, and an object that says that it is shorter, and that its parity is lost
        [ref] = keeping.put(b"1" * 1000).shards
        lying = replace(ref, size_bytes=10, stored_bytes=10)
        parity = replace(lying, shard=shard_id_of(b"nowhere"))
        keeping.name("lie", CodedManifest(blob=BlobHash("a" * 64), size_bytes=10, shards=(lying,), k=2, m=1, parity=(parity,)))
        unwanted = keeping.put(b"2" * 1000)
        # then what nothing names goes, and the lie gives nothing
        assert await keeping.care() == {ref.shard}
        assert not shards(unwanted) & set(keeping.store.shards())

    play(tmp_path, scenario)
