"""Blobs on a disk: of any size in constant memory, broken off and gone on with, packed where it pays."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest

from ciuic_p2p.errors import MalformedPayload, ShardDamaged, ShardMissing, StoreFull
from ciuic_p2p.store import blobs
from ciuic_p2p.store.blobs import PACKED_FROM_BYTES, SHARD_BYTES, read_blob, write_blob
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.tensors.codecs.registry import codec_by_name

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def store(tmp_path):
    with DiskStore(tmp_path / "store", reserve_bytes=0) as store:
        yield store


@pytest.fixture
def bfloat16s():
    return codec_by_name("bfloat16").encode(np.random.default_rng(0).standard_normal(400_000, dtype=np.float32))


def test_a_file_is_read_from_where_it_stands(store, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"head\n" + b"lines\n" * 100)
    with open(path, "rb") as file:
        file.read(5)
        manifest = write_blob(store, file, shard_bytes=64)
    assert b"".join(read_blob(store.get, manifest)) == b"lines\n" * 100


def test_an_empty_blob_has_no_shards(store):
    manifest = write_blob(store, io.BytesIO())
    assert manifest.shards == ()
    assert list(read_blob(store.get, manifest)) == []


def test_a_shard_is_written_as_soon_as_it_is_full_and_progress_says_so(store):
    said, asked = [], []

    def pieces():
        for number in range(20):
            asked.append(number)
            yield bytes([number]) * 1000

    def progress(durable_bytes):
        said.append(durable_bytes)
        assert store.used_bytes >= durable_bytes
        assert len(asked) * 1000 - durable_bytes <= 5000

    manifest = write_blob(store, pieces(), shard_bytes=1000, progress=progress)
    assert said == [1000 * number for number in range(1, 21)]
    assert manifest.size_bytes == 20_000


def test_memory_does_not_grow_with_the_blob(store, tmp_path):
    path = tmp_path / "file"
    with open(path, "wb") as file:
        for number in range(16):
            file.write(random.Random(number).randbytes(MIB))
    tracemalloc.start()
    try:
        with open(path, "rb") as file:
            manifest = write_blob(store, file, shard_bytes=128 * KIB)
        for _ in read_blob(store.get, manifest):
            pass
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()


WRITE_FILE = """
import sys
from ciuic_p2p.store.blobs import write_blob
from ciuic_p2p.store.disk import DiskStore
store = DiskStore(sys.argv[1], reserve_bytes=0)
with open(sys.argv[2], "rb") as file:
    write_blob(store, file, shard_bytes=100_000, progress=lambda done: print(done, flush=True))
"""


def test_after_kill_9_a_repeated_put_writes_only_what_is_missing(tmp_path):
    content = random.Random(0).randbytes(5_000_000)
    (tmp_path / "file").write_bytes(content)
    for lines in (1, 7, 20):
        command = [sys.executable, "-c", WRITE_FILE, str(tmp_path / "store"), str(tmp_path / "file")]
        with subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE, text=True
        ) as process:
            durable_bytes = int([process.stdout.readline() for _ in range(lines)][-1])
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert durable_bytes == 100_000 * lines

    def written():
        return {path.name: path.stat().st_ino for path in (tmp_path / "store" / "shards").rglob("*") if path.is_file()}

    with DiskStore(tmp_path / "store", reserve_bytes=0) as store:
        before = written()
        assert len(before) >= 20
        with open(tmp_path / "file", "rb") as file:
            manifest = write_blob(store, file, shard_bytes=100_000)
        assert before.items() <= written().items()
        assert len(written()) == len(manifest.shards) == 50
        assert b"".join(read_blob(store.get, manifest)) == content


def test_a_read_that_was_broken_off_goes_on_from_where_it_was(store):
    content = random.Random(0).randbytes(10_000)
    manifest = write_blob(store, [content], shard_bytes=999)
    pieces = read_blob(store.get, manifest)
    got = bytes(next(pieces)) + bytes(next(pieces))
    pieces.close()
    assert got + b"".join(read_blob(store.get, manifest, len(got))) == content


def test_a_reader_that_stops_early_leaves_no_thread(store):
    manifest = write_blob(store, [bytes(10_000)], shard_bytes=100)
    before = threading.active_count()
    pieces = read_blob(store.get, manifest)
    next(pieces)
    pieces.close()
    assert threading.active_count() == before


def test_a_store_that_is_full_says_so_and_keeps_what_it_has(tmp_path):
    with DiskStore(tmp_path, quota_bytes=5000, reserve_bytes=0) as store:
        with pytest.raises(StoreFull):
            write_blob(store, [random.Random(0).randbytes(20_000)], shard_bytes=1000)
        assert len(list(store.shards())) == 5
        assert os.listdir(tmp_path / "incoming") == []


def test_what_the_source_raises_comes_through(store):
    def pieces():
        yield bytes(1000)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        write_blob(store, pieces(), shard_bytes=100)


def read_until_damage(pieces):
    got = bytearray()
    try:
        for piece in pieces:
            got += piece
    except ShardDamaged as damage:
        return bytes(got), damage
    pytest.fail("no damage was found")


def test_damage_in_the_midst_is_found_and_nothing_wrong_was_given_out(store):
    content = random.Random(0).randbytes(10_000)
    manifest = write_blob(store, [content], shard_bytes=1000)
    shard = manifest.shards[5].shard
    (store.folder / "shards" / shard[:2] / shard).write_bytes(bytes(1000))
    got, damage = read_until_damage(read_blob(store.get, manifest))
    assert got == content[:5000]
    assert damage.shard == shard
    with pytest.raises(ShardMissing):
        next(read_blob(store.get, manifest, 5000, 5001))
    write_blob(store, [content], shard_bytes=1000)
    assert b"".join(read_blob(store.get, manifest)) == content


class TestPacking:
    def test_weights_shrink_and_ranges_of_them_come_back(self, store, bfloat16s):
        manifest = write_blob(store, [bfloat16s], dtype="bfloat16", packing="always", shard_bytes=100 * KIB)
        assert all(ref.packed for ref in manifest.shards)
        assert store.used_bytes == manifest.stored_bytes < 0.8 * manifest.size_bytes
        assert b"".join(read_blob(store.get, manifest)) == bfloat16s
        assert b"".join(read_blob(store.get, manifest, 12_345, 543_210)) == bfloat16s[12_345:543_210]

    def test_a_small_blob_is_packed_only_when_asked(self, store, bfloat16s):
        assert not any(ref.packed for ref in write_blob(store, [bfloat16s], dtype="bfloat16").shards)

    def test_each_shard_is_packed_only_where_it_gains(self, store):
        noise = random.Random(0).randbytes(1000)
        manifest = write_blob(store, [noise + bytes(1000)], packing="always", shard_bytes=1000)
        assert [ref.packed for ref in manifest.shards] == [False, True]
        assert b"".join(read_blob(store.get, manifest)) == noise + bytes(1000)

    def test_a_shard_whose_sample_misled_is_kept_as_it_is(self, store, monkeypatch):
        monkeypatch.setattr(blobs, "sampled_gain", lambda *_: 1.0)
        noise = random.Random(0).randbytes(1000)
        assert not write_blob(store, [noise], packing="always").shards[0].packed

    @pytest.mark.parametrize(("size_bytes", "packed"), [(PACKED_FROM_BYTES, False), (PACKED_FROM_BYTES + 1, True)])
    def test_a_large_file_is_packed_by_itself(self, tmp_path, size_bytes, packed):
        store = MemoryStore()
        with open(tmp_path / "file", "wb+") as file:
            file.truncate(size_bytes)
            manifest = write_blob(store, file)
        assert manifest.size_bytes == size_bytes
        assert {ref.packed for ref in manifest.shards} == {packed}
        assert manifest.shards[0].size_bytes == SHARD_BYTES
        assert sum(map(len, read_blob(store.get, manifest))) == size_bytes

    def test_an_iterator_is_packed_by_the_size_that_is_said(self, store):
        assert write_blob(store, [bytes(1000)], size_bytes=PACKED_FROM_BYTES + 1).shards[0].packed
        assert not write_blob(store, [bytes(1000)], size_bytes=1000).shards[0].packed
        assert not write_blob(store, [bytes(1000)]).shards[0].packed

    def test_a_bomb_is_refused_before_it_is_unpacked(self):
        store = MemoryStore()
        manifest = write_blob(store, [bytes(32 * MIB)], packing="always", shard_bytes=32 * MIB)
        bomb = manifest.shards[0]
        small = blobs.BlobManifest.from_wire([manifest.blob, 10_000, [[bomb.shard, 10_000, bomb.stored_bytes, True]]])
        tracemalloc.start()
        try:
            with pytest.raises(MalformedPayload, match="announces 33554432 bytes, at most 10000"):
                list(read_blob(store.get, small))
            assert tracemalloc.get_traced_memory()[1] < MIB
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("wrong", [{"dtype": "float31"}, {"shard_bytes": 0}, {"shard_bytes": 33 * MIB}])
def test_what_cannot_be_is_refused(store, wrong):
    with pytest.raises(ValueError, match=r"dtype|shards of"):
        write_blob(store, [b"content"], **wrong)
