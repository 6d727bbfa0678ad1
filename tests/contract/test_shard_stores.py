"""What every store of shards keeps: the same suite for the one on a disk and the one in memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import blake3
import pytest

from ciuic_p2p.errors import ShardDamaged, ShardMissing, StoreFull, Transient
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.store.shards import LARGEST_SHARD_BYTES, ShardStore
from ciuic_p2p.terms import ShardId

GRACE_S = 100.0
ABSENT = ShardId("ab" * 32)


@dataclass
class Kind:
    """One kind of store. `open` gives an empty one, with a quota in bytes or None."""

    open: Callable[..., ShardStore]
    damage: Callable[[ShardStore, ShardId, bytes], None]


def damage_on_disk(store: DiskStore, shard: ShardId, data: bytes) -> None:
    (store.folder / "shards" / shard[:2] / shard).write_bytes(data)


@pytest.fixture(params=["memory", "disk"])
def kind(request, tmp_path) -> Iterator[Kind]:
    with ExitStack() as stack:

        def on_disk(quota_bytes=None, grace_s=GRACE_S):
            return stack.enter_context(DiskStore(tmp_path / "store", quota_bytes, reserve_bytes=0, grace_s=grace_s))

        if request.param == "disk":
            yield Kind(on_disk, damage_on_disk)
        else:
            yield Kind(lambda quota_bytes=None, grace_s=GRACE_S: MemoryStore(quota_bytes, grace_s), MemoryStore.damage)


@pytest.fixture
def store(kind):
    return kind.open()


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20, 3 << 20, (8 << 20) + 5])
def test_what_was_put_comes_back_under_its_hash(store, size):
    data = random.Random(size).randbytes(size)
    shard = store.put(data)
    assert shard == blake3.blake3(data).hexdigest()
    assert store.get(shard) == data
    assert store.has(shard)
    assert store.size_bytes(shard) == store.used_bytes == size
    assert list(store.shards()) == [shard]


def test_a_view_of_any_shape_is_taken_as_its_bytes(store):
    array = memoryview(bytearray(range(64))).cast("I")
    assert store.get(store.put(array)) == bytes(range(64))
    assert type(store.get(store.put(array))) is bytes


def test_a_name_that_the_caller_compared_is_believed_once(store):
    data = random.Random(1).randbytes(2 << 20)
    name = ShardId(blake3.blake3(data).hexdigest())
    assert store.put(data, name) == name
    assert store.put(bytearray(data)) == name
    assert store.get(name) == data
    with pytest.raises(ValueError, match="not the name of a shard"):
        store.put(data, ShardId("../../etc/passwd"))


def test_large_bytes_that_were_got_stay_while_others_are(store):
    contents = [random.Random(seed).randbytes(1 << 20) for seed in range(30)]
    got = [store.get(store.put(content)) for content in contents]
    assert got == contents


def test_later_changes_of_the_callers_memory_do_not_reach_the_store(store):
    memory = bytearray(b"first")
    shard = store.put(memoryview(memory))
    memory[:] = b"other"
    assert store.get(shard) == b"first"


def test_putting_again_changes_nothing(store):
    assert store.put(b"same") == store.put(bytearray(b"same"))
    assert store.used_bytes == 4
    assert len(list(store.shards())) == 1


def test_what_is_not_there_is_missing(store):
    assert not store.has(ABSENT)
    with pytest.raises(ShardMissing, match="shard abababababab… is not in this store; it must come from another holder"):
        store.get(ABSENT)
    with pytest.raises(Transient):
        store.size_bytes(ABSENT)


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "AB" * 32, "ab" * 31, "ab" * 32 + "\n", "/" + "a" * 63, "ab/" + "a" * 61]
)
def test_a_name_that_is_none_is_refused_everywhere(store, name):
    for method in (store.get, store.has, store.size_bytes):
        with pytest.raises(ValueError, match="not the name of a shard"):
            method(name)


def test_more_than_the_largest_shard_is_refused(store):
    with pytest.raises(ValueError, match="at most"):
        store.put(bytes(LARGEST_SHARD_BYTES + 1))
    assert store.used_bytes == 0
    assert store.size_bytes(store.put(bytes(LARGEST_SHARD_BYTES))) == LARGEST_SHARD_BYTES


@pytest.mark.parametrize("wrong", [b"sheep", b"shar", b"shard and more", b""])
def test_damaged_bytes_are_never_returned_and_can_be_put_anew(kind, wrong):
    store = kind.open()
    shard = store.put(b"shard")
    kind.damage(store, shard, wrong)
    with pytest.raises(ShardDamaged):
        store.get(shard)
    with pytest.raises(ShardMissing) as caught:
        store.get(shard)
    assert not isinstance(caught.value, ShardDamaged)
    assert not store.has(shard)
    assert store.used_bytes == 0
    assert store.get(store.put(b"shard")) == b"shard"
    assert store.used_bytes == 5


@pytest.mark.parametrize("wrong", [b"sheep", b"shar"])
def test_putting_a_damaged_shard_repairs_it(kind, wrong):
    store = kind.open(quota_bytes=5)  # What is wrong takes no room from what replaces it.
    shard = store.put(b"shard")
    kind.damage(store, shard, wrong)
    assert store.put(b"shard") == shard
    assert store.get(shard) == b"shard"
    assert store.used_bytes == 5


def test_the_quota_is_kept_and_what_is_there_stays(kind):
    store = kind.open(quota_bytes=10)
    first = store.put(b"12345")
    second = store.put(b"67890")
    with pytest.raises(StoreFull, match="10 B of its quota of 10 B are used; raise its quota"):
        store.put(b"x")
    assert store.put(b"12345") == first
    assert {store.get(first), store.get(second)} == {b"12345", b"67890"}
    assert store.used_bytes == 10


def test_many_threads_share_a_quota_to_the_byte(kind):
    store = kind.open(quota_bytes=20_000)
    start = threading.Barrier(8)

    def put(seed):
        start.wait()
        taken = []
        for number in range(5):
            try:
                taken.append(store.put(random.Random(f"{seed} {number}").randbytes(1000)))
            except StoreFull:
                continue
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [shard for shards in pool.map(put, range(8)) for shard in shards]
    assert len(taken) == len(set(taken)) == 20
    assert store.used_bytes == 20_000
    assert set(store.shards()) == set(taken)


def test_threads_that_put_the_same_store_it_once(store):
    data = random.Random(0).randbytes(100_000)
    start = threading.Barrier(8)

    def put(_):
        start.wait()
        return [store.put(data) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        assert {shard for shards in pool.map(put, range(8)) for shard in shards} == set(store.shards())
    assert store.used_bytes == len(data)


class TestCollection:
    def test_only_what_is_long_unreachable_goes(self, store):
        kept, lost = store.put(b"kept"), store.put(b"lost")
        assert store.collect([kept], 1000.0) == 0
        assert store.collect({kept}, 1000.0 + GRACE_S - 1) == 0
        assert store.collect((kept,), 1000.0 + GRACE_S) == 4
        assert list(store.shards()) == [kept]
        assert not store.has(lost)
        assert store.used_bytes == 4

    def test_putting_again_begins_the_grace_anew(self, store):
        shard = store.put(b"lost")
        store.collect([], 0.0)
        store.put(b"lost")
        assert store.collect([], GRACE_S) == 0
        assert store.collect([], GRACE_S * 2 - 1) == 0
        assert store.collect([], GRACE_S * 2) == 4
        assert not store.has(shard)

    def test_being_reachable_between_begins_the_grace_anew(self, store):
        shard = store.put(b"lost")
        store.collect([], 0.0)
        store.collect([shard], GRACE_S - 1)
        assert store.collect([], GRACE_S) == 0
        assert store.collect([], GRACE_S * 2) == 4

    def test_a_shard_that_goes_and_comes_back_has_its_whole_grace(self, store):
        store.put(b"lost")
        store.collect([], 0.0)
        assert store.collect([], GRACE_S) == 4
        store.put(b"lost")
        assert store.collect([], GRACE_S * 3) == 0

    def test_without_any_grace_two_collections_are_needed(self, kind):
        store = kind.open(grace_s=0.0)
        store.put(b"lost")
        assert store.collect([], 5.0) == 0
        assert store.collect([], 5.0) == 4

    def test_what_is_kept_need_not_be_there(self, store):
        assert store.collect([ABSENT], 0.0) == 0
        assert not store.has(ABSENT)

    def test_room_that_was_freed_can_be_used(self, kind):
        store = kind.open(quota_bytes=5, grace_s=0.0)
        store.put(b"first")
        store.collect([], 0.0)
        store.collect([], 0.0)
        assert store.get(store.put(b"other")) == b"other"

    def test_what_was_just_put_again_is_there_however_much_is_collected_meanwhile(self, store):
        now_s, clock, done = 0.0, threading.Lock(), threading.Event()

        def collect():
            while not done.is_set():
                with clock:
                    store.collect([], now_s)

        collector = threading.Thread(target=collect)
        collector.start()
        try:
            for _ in range(60):
                shard = store.put(b"wanted")
                assert store.get(shard) == b"wanted"
                with clock:
                    now_s += GRACE_S  # Due to be collected at the very instant at which it is put again.
        finally:
            done.set()
            collector.join()
