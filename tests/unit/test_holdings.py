"""Who holds what, as it is told: changes, pages, digests that differ, and peers that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ciuic_p2p.core.messages import Message
from ciuic_p2p.core.shard_messages import MOST_TOLD, AskInventory, HeldShards, Inventory, StoreTold
from ciuic_p2p.daemon.holdings import Holdings, StoreLimits
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.shards import shard_id_of
from ciuic_p2p.terms import PeerId, ShardId

US, EU = PeerId("us"), PeerId("eu")


def of_peer(peer: PeerId, folder: Path, quota_bytes: int | None, told: list[Message]) -> Holdings:
    store = DiskStore(folder / peer, quota_bytes, 0)
    limits = StoreLimits(quota_bytes=quota_bytes, reserve_bytes=0)
    return Holdings(peer, store, limits, told.append, lambda peer: peer, lambda: 0.0)


def in_loop(scenario: Callable[[], object]) -> None:
    async def run() -> None:
        scenario()

    asyncio.run(run())


def note(told: list[Message], message: Message, over: asyncio.Event) -> None:
    told.append(message)
    if isinstance(message, StoreTold):
        over.set()


def shard(number: int) -> ShardId:
    return shard_id_of(number.to_bytes(8))


def test_what_comes_and_goes_is_told_and_understood(tmp_path: Path) -> None:
    async def scenario() -> None:
        # given two peers
        told: list[Message] = []
        over = asyncio.Event()
        us, eu = of_peer(US, tmp_path, None, told), of_peer(EU, tmp_path, None, [])
        us.tell_all = lambda message: note(told, message, over)
        eu.peer_arrived(US)

        # when many shards come to one, and it tells
        for number in range(MOST_TOLD + 10):
            us.note_came(shard(number), 1)
        us.note_left(shard(0))
        await over.wait()
        assert [type(message) for message in told] == [HeldShards, HeldShards, StoreTold]

        # then the other one knows it, and need not ask
        for message in told:
            if isinstance(message, HeldShards):
                eu.held(US, message)
            else:
                assert isinstance(message, StoreTold)
                assert eu.store_told(US, message) is None
        assert eu.holders_of(shard(1)) == {US}
        assert eu.holders_of(shard(0)) == frozenset()
        assert eu.present() == {US, EU}

    asyncio.run(scenario())


def test_whose_digest_is_another_is_asked_for_all_pages(tmp_path: Path) -> None:
    def scenario() -> None:
        us, eu = of_peer(US, tmp_path, None, []), of_peer(EU, tmp_path, None, [])
        us.begin({shard(number): 1 for number in range(MOST_TOLD + 1)})
        eu.held(US, HeldShards(came=((bytes(32), 1),), left=()))

        assert eu.store_told(US, us.offer()) == AskInventory()
        pages = us.inventory()
        assert len(pages) == 2

        # pages out of turn change nothing
        eu.inventory_told(US, pages[1])
        assert eu.holders_of(shard(0)) == frozenset()

        for page in pages:
            eu.inventory_told(US, page)
        assert eu.store_told(US, us.offer()) is None
        assert eu.holders_of(shard_of_zeros()) == frozenset()
        assert all(eu.holders_of(shard(number)) == {US} for number in (0, MOST_TOLD))

    in_loop(scenario)


def shard_of_zeros() -> ShardId:
    return ShardId(bytes(32).hex())


def test_what_comes_while_pages_arrive_is_not_lost(tmp_path: Path) -> None:
    def scenario() -> None:
        eu = of_peer(EU, tmp_path, None, [])
        name = bytes.fromhex
        eu.inventory_told(US, Inventory(page=0, pages=2, shards=((name(shard(1)), 5),)))
        eu.held(US, HeldShards(came=((name(shard(2)), 5),), left=(name(shard(1)),)))
        eu.inventory_told(US, Inventory(page=1, pages=2, shards=()))
        assert eu.holders_of(shard(2)) == {US}
        assert eu.holders_of(shard(1)) == frozenset()

    in_loop(scenario)


def test_who_is_gone_is_remembered_with_what_it_holds(tmp_path: Path) -> None:
    def scenario() -> None:
        us, eu = of_peer(US, tmp_path, None, []), of_peer(EU, tmp_path, None, [])
        us.begin({shard(1): 5})
        eu.peer_arrived(US)
        eu.store_told(US, us.offer())
        for page in us.inventory():
            eu.inventory_told(US, page)
        eu.peer_gone(US)
        assert eu.present() == {EU}
        assert eu.here() == frozenset()
        assert eu.silent_since_s().keys() == {US}
        assert eu.holders_of(shard(1)) == {US}
        assert [holder.peer for holder in eu.holders()] == [EU, US]

        eu.peer_arrived(US)
        assert eu.present() == {US, EU}
        assert eu.silent_since_s() == {}

    in_loop(scenario)


def test_no_more_is_offered_than_the_quota_leaves(tmp_path: Path) -> None:
    def scenario() -> None:
        us = of_peer(US, tmp_path, 1000, [])
        assert us.free_bytes() == 1000
        us._store.put(bytes(400))
        assert us.free_bytes() == 600
        assert us.offer().shard_bytes == 400

    in_loop(scenario)


def test_what_the_disk_lost_is_counted_once_and_again_when_it_came_back(tmp_path: Path) -> None:
    def scenario() -> None:
        us = of_peer(US, tmp_path, None, [])
        us.begin({shard(1): 5})
        for lost in (shard(1), shard(1), shard(2)):  # the last one was never here
            us.note_damaged(lost)
        assert (us.damaged, us.repaired, us.mine.keys()) == (1, 0, set())
        us.note_came(shard(2), 5)
        us.note_came(shard(1), 5)
        us.note_came(shard(1), 5)
        assert (us.damaged, us.repaired) == (1, 1)

    in_loop(scenario)


def test_a_peer_has_told_all_when_its_digest_is_that_of_what_it_told(tmp_path: Path) -> None:
    def scenario() -> None:
        us, eu = of_peer(US, tmp_path, None, []), of_peer(EU, tmp_path, None, [])
        us.begin({shard(1): 5})
        eu.peer_arrived(US)
        assert not eu.has_told_all(US)
        eu.store_told(US, us.offer())
        assert not eu.has_told_all(US)
        for page in us.inventory():
            eu.inventory_told(US, page)
        assert eu.has_told_all(US)

    in_loop(scenario)
