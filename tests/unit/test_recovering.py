"""Which snapshot a run goes on from: the newest that enough peers saved alike, whatever one disk lost of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from test_snapshots import MODEL, snapshot_of, state_of

from ciuic_p2p.core.hedging import LinkEstimate
from ciuic_p2p.core.shard_messages import HASH_BYTES, HeldShards, StoreTold, shard_name
from ciuic_p2p.daemon.holdings import Holdings, StoreLimits
from ciuic_p2p.daemon.recovering import Recovering
from ciuic_p2p.daemon.replicas import Replicas
from ciuic_p2p.daemon.shard_reading import ShardReader
from ciuic_p2p.errors import SnapshotDamaged
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.snapshots import Snapshot, Snapshots
from ciuic_p2p.terms import PeerId, ShardId
from ciuic_p2p.testing.memory import MemoryNetwork
from ciuic_p2p.testing.recorder import Recorder

ME, A, B = PeerId("me"), PeerId("a"), PeerId("b")


class Scene:
    """One peer after a start, with an older complete snapshot of three peers and a newer one that was not told yet."""

    def __init__(self, folder: Path, gone_after_s: float, **newer: Any) -> None:
        self.store = DiskStore(folder / "store", None, 0)
        self.snapshots = Snapshots(folder / "snapshots", self.store)
        limits = StoreLimits(quota_bytes=None, reserve_bytes=0)
        self.holdings = Holdings(ME, self.store, limits, lambda _: None, lambda peer: peer, lambda: 0.0)
        reader = ShardReader(MemoryNetwork().add(ME, Recorder()), lambda _: LinkEstimate(), TaskSet())
        replicas = Replicas(ME, self.store, self.holdings, reader, lambda *_: None, lambda _: 0.0, TaskSet())
        self.recovering = Recovering(ME, self.snapshots, self.holdings, replicas, gone_after_s, lambda peer: peer)
        self.older = self._save(7, is_complete=True, witnesses=(A, B, ME))
        self.newer = self._save(9, **({"is_complete": False, "witnesses": (ME,), "quorum": 2} | newer))

    def _save(self, epoch: int, **facts: Any) -> Snapshot:
        state = state_of(epoch, MODEL)
        saved = self.snapshots.save(snapshot_of(state, epoch, **facts), state)
        for ref in saved.blob.shards:
            self.holdings.note_came(ref.shard, ref.stored_bytes)
        return saved

    def arrives(self, peer: PeerId, *held: Snapshot) -> None:
        """It tells what it holds, all of it."""
        shards = {ref.shard: ref.stored_bytes for snapshot in held for ref in snapshot.blob.shards}
        digest = 0
        for shard in shards:
            digest ^= int(shard, 16)
        self.holdings.peer_arrived(peer)
        told = tuple((shard_name(ShardId(shard)), size_bytes) for shard, size_bytes in shards.items())
        self.holdings.held(peer, HeldShards(came=told, left=()))
        offer = StoreTold(free_bytes=0, shard_bytes=0, goodput_mbps=0.0, shards=len(shards), digest=digest.to_bytes(HASH_BYTES))
        assert self.holdings.store_told(peer, offer) is None

    async def waits(self, recovery: asyncio.Task[Any]) -> None:
        """It does, and says so."""
        while not self.recovering.describe_waiting():  # noqa: ASYNC110 — nobody is told
            await asyncio.sleep(0)
        assert not recovery.done()


def play(folder: Path, scenario: Callable[[Scene], Coroutine[Any, Any, None]], gone_after_s: float, **newer: Any) -> None:
    async def run() -> None:
        await scenario(Scene(folder, gone_after_s, **newer))

    asyncio.run(run())


def test_a_newer_one_counts_when_enough_others_turn_out_to_hold_it(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.recovering.newest("mnist") is None
        recovery = asyncio.ensure_future(scene.recovering.recover("mnist"))
        await scene.waits(recovery)
        scene.arrives(A, scene.older)
        scene.arrives(B, scene.older, scene.newer)
        found = await recovery
        assert found is not None
        assert (found[0].epoch, found[0].is_complete) == (9, True)
        assert found[1].anchor.tobytes() == state_of(9, MODEL).anchor.tobytes()
        assert scene.recovering.describe_waiting() == []
        assert (await scene.recovering.newest("mnist") or found)[0].epoch == 9

    play(tmp_path, scenario, gone_after_s=3600.0)


def test_the_older_one_is_taken_when_all_have_told_and_too_few_hold_the_newer_one(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        recovery = asyncio.ensure_future(scene.recovering.recover("mnist"))
        await scene.waits(recovery)
        scene.arrives(A, scene.older)
        scene.arrives(B, scene.older)
        found = await recovery
        assert found is not None
        assert found[0].epoch == 7
        assert not scene.snapshots.of_run("mnist")[0].is_complete

    play(tmp_path, scenario, gone_after_s=3600.0)


def test_nobody_is_waited_for_longer_than_silent_copies_count(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        found = await scene.recovering.recover("mnist")
        assert found is not None
        assert found[0].epoch == 7

    play(tmp_path, scenario, gone_after_s=0.0)


@pytest.mark.parametrize("newer", [{"quorum": 0}, {"is_complete": True}], ids=str)
def test_what_is_certain_is_not_waited_for(tmp_path: Path, newer: dict[str, Any]) -> None:
    async def scenario(scene: Scene) -> None:
        found = await scene.recovering.newest("mnist")
        assert found is not None
        assert found[0].epoch == (9 if "is_complete" in newer else 7)

    play(tmp_path, scenario, gone_after_s=3600.0, **newer)


def test_an_older_one_is_taken_only_once_nobody_can_have_what_the_newer_one_lacks(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        # given a newer complete one with a flipped bit, which two others saved as well
        shard = scene.newer.blob.shards[0].shard
        file = scene.store.folder / "shards" / shard[:2] / shard
        file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
        assert await scene.recovering.newest("mnist") is None
        recovery = asyncio.ensure_future(scene.recovering.recover("mnist"))
        await scene.waits(recovery)
        (waiting,) = scene.recovering.describe_waiting()
        assert (waiting["epoch"], waiting["lost_shards"], waiting["must_return"]) == (9, [shard], [A])

        # when one is here and has lost it too, the other one is still waited for
        scene.arrives(A, scene.older)
        while scene.recovering.describe_waiting()[0]["must_return"] != [B]:  # noqa: ASYNC110 — nobody is told
            await asyncio.sleep(0)
        assert not recovery.done()

        # and when that one has lost it as well, then nobody is
        scene.arrives(B, scene.older)
        found = await recovery
        assert found is not None
        assert found[0].epoch == 7

    play(tmp_path, scenario, gone_after_s=3600.0, is_complete=True, witnesses=(A, B, ME))


def test_one_that_nobody_has_whole_names_who_must_return(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        shard = scene.newer.blob.shards[0].shard
        (scene.store.folder / "shards" / shard[:2] / shard).unlink()
        with pytest.raises(SnapshotDamaged, match=rf"1 of its 1 shards \({shard[:12]}…\) are with nobody here, and with b"):
            await scene.recovering.load(scene.newer)
        assert scene.holdings.damaged == 1

    play(tmp_path, scenario, gone_after_s=0.0, is_complete=True, witnesses=(B, ME))
