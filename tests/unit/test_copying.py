"""The shards of one put: who is asked to keep them, who stands in for whom, and when it is over or cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ciuic_p2p.core.messages import Message
from ciuic_p2p.core.placement import Holder, place
from ciuic_p2p.core.shard_messages import DeclineShards, HeldShards, KeepShards, StoreTold, shard_name, shard_of
from ciuic_p2p.daemon.copying import Copying
from ciuic_p2p.daemon.holdings import Holdings, StoreLimits
from ciuic_p2p.errors import PeerUnreachable, TooFewCopies
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.shards import shard_id_of
from ciuic_p2p.terms import PeerId, ShardId

ME = PeerId("me")
OTHERS = [PeerId(name) for name in ("eu", "as", "sa")]
ROOM = 1 << 30
SIZE = 1000


class Scene:
    """This peer's view of three others, and what it says to them."""

    def __init__(self, folder: Path, replicas: int) -> None:
        store = DiskStore(folder, ROOM, 0)
        limits = StoreLimits(quota_bytes=ROOM, reserve_bytes=0)
        self.holdings = Holdings(ME, store, limits, lambda _: None, lambda peer: peer, lambda: 0.0)
        self.asked: list[tuple[PeerId, ShardId]] = []
        self.unreachable: set[PeerId] = set()
        self.copying = Copying(ME, self.holdings, self._send, lambda peer: peer, replicas)
        for peer in OTHERS:
            self.offers(peer, ROOM)
        self.running = asyncio.ensure_future(self.copying.run())

    def _send(self, peer: PeerId, message: Message) -> None:
        if peer in self.unreachable:
            raise PeerUnreachable("no session")
        assert isinstance(message, KeepShards)
        self.asked += [(peer, shard_of(name)) for name, _ in message.shards]

    def offers(self, peer: PeerId, free_bytes: int) -> None:
        self.holdings.peer_arrived(peer)
        told = StoreTold(free_bytes=free_bytes, shard_bytes=0, goodput_mbps=0.0, shards=0, digest=bytes(32))
        self.holdings.store_told(peer, told)

    def add(self, *shards: ShardId) -> None:
        for shard in shards:
            self.holdings.note_came(shard, SIZE)
            self.copying.add(shard, SIZE)

    async def settled(self) -> None:
        """What follows has followed."""
        for _ in range(5):
            await asyncio.sleep(0)

    def holds(self, peer: PeerId, *shards: ShardId) -> None:
        self.holdings.held(peer, HeldShards(came=tuple((shard_name(shard), SIZE) for shard in shards), left=()))

    def declines(self, peer: PeerId, *shards: ShardId) -> None:
        self.copying.declined(peer, DeclineShards(shards=tuple(map(shard_name, shards)), reason="no room"))


def play(tmp_path: Path, scenario: Callable[[Scene], Coroutine[Any, Any, None]], replicas: int = 3) -> None:
    async def run() -> None:
        scene = Scene(tmp_path, replicas)
        async with asyncio.timeout(20):
            await scenario(scene)
        scene.running.cancel()

    asyncio.run(run())


def shard(number: int) -> ShardId:
    return shard_id_of(bytes([number]))


def wanted(shard: ShardId, replicas: int, *without: PeerId) -> list[PeerId]:
    """Where it should be, others than this peer."""
    holders = [
        Holder(peer=peer, region=peer, free_bytes=ROOM, goodput_mbps=0.0) for peer in (ME, *OTHERS) if peer not in without
    ]
    return [peer for peer in place(shard, holders, replicas, SIZE) if peer != ME]


def test_it_is_over_when_enough_peers_hold_all(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        shards = [shard(number) for number in range(20)]
        scene.add(*shards)
        await scene.settled()

        # each is asked of those that should hold it, once
        assert sorted(scene.asked) == sorted((peer, each) for each in shards for peer in wanted(each, 3))
        for peer in OTHERS:
            scene.holds(peer, *shards[:-1])
        await scene.settled()
        assert scene.copying.done_bytes == 19 * SIZE

        # not before the last one, and not before it is known to be the last one
        for peer in OTHERS:
            scene.holds(peer, shards[-1])
        await scene.settled()
        assert not scene.running.done()
        scene.copying.all_added()
        await scene.running

    play(tmp_path, scenario)


def test_who_declines_or_is_gone_is_replaced(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        one = next(each for each in map(shard, range(256)) if len(wanted(each, 2)) == 2)
        first, second = wanted(one, 2)
        scene.add(one)
        scene.copying.all_added()
        await scene.settled()
        assert scene.asked == [(first, one), (second, one)]

        scene.declines(first, one)
        await scene.settled()
        scene.holdings.peer_gone(second)
        await scene.settled()
        third = next(peer for peer in OTHERS if peer not in (first, second))
        assert scene.asked[2:] == [(third, one)]

        scene.holds(third, one)
        await scene.running

    play(tmp_path, scenario, replicas=2)


def test_where_too_few_can_take_it_it_says_who_and_why(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.add(shard(1))
        await scene.settled()
        scene.declines(OTHERS[0], shard(1))
        scene.offers(OTHERS[1], 10)
        with pytest.raises(TooFewCopies, match=r"only 2 of 4 copies could be made \(as: its store is full; eu: no room\)"):
            await scene.running

    play(tmp_path, scenario, replicas=4)


def test_anothers_put_that_is_declined_is_no_concern(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.add(shard(1))
        await scene.settled()
        for peer in OTHERS:
            scene.declines(peer, shard(2))
        await scene.settled()
        assert not scene.running.done()

    play(tmp_path, scenario, replicas=4)


def test_alone_its_own_copy_is_enough(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        for peer in OTHERS:
            scene.holdings.peer_gone(peer)
        scene.add(shard(1))
        scene.copying.all_added()
        await scene.running
        assert scene.asked == []

    play(tmp_path, scenario)


def test_who_cannot_be_reached_for_a_moment_is_asked_when_it_is_back(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.unreachable = set(OTHERS)
        scene.add(shard(1))
        scene.copying.all_added()
        await scene.settled()
        assert scene.asked == []
        for peer in OTHERS:
            scene.holdings.peer_gone(peer)
        scene.unreachable = set()
        for peer in OTHERS:
            scene.offers(peer, ROOM)
        await scene.settled()
        assert sorted(peer for peer, _ in scene.asked) == sorted(OTHERS)

    play(tmp_path, scenario, replicas=4)


def test_holders_of_earlier_are_asked_to_keep_it_too(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        for peer in OTHERS:
            scene.holds(peer, shard(1))
        scene.add(shard(1))
        scene.copying.all_added()
        await scene.running
        assert sorted(peer for peer, _ in scene.asked) == sorted(OTHERS)

    play(tmp_path, scenario, replicas=4)
