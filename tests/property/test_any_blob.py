"""Any content, cut in any way, comes back; any manifest of a stranger is a sound one or refused."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import msgpack
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.errors import MalformedMessage, MalformedPayload
from ciuic_p2p.store.blobs import BlobManifest, read_blob, write_blob
from ciuic_p2p.store.manifests import ShardRef
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.store.shards import LARGEST_SHARD_BYTES
from ciuic_p2p.tensors.lossless import pack_known

contents = st.binary(max_size=300) | st.builds(
    lambda seed, size: random.Random(seed).randbytes(size), st.integers(), st.integers(0, 5000)
)
shard_sizes = st.integers(1, 700)
packings = st.sampled_from(["auto", "always", "never"])
dtypes = st.sampled_from([None, "float32", "bfloat16", "float64"])


def all_of(pieces):
    return b"".join(pieces)


def pieces_in_one_memory(content, sizes):
    """An iterator that reuses its memory for each piece, as a reader of sockets does."""
    memory, start = bytearray(max(sizes)), 0
    while start < len(content):
        for size in sizes:
            piece = content[start : start + size]
            memory[: len(piece)] = piece
            yield memoryview(memory)[: len(piece)]
            memory[:] = bytes(len(memory))
            start += size


@given(content=contents, repeats=st.integers(1, 20), shard_bytes=shard_sizes, packing=packings, dtype=dtypes)
@settings(deadline=None)
def test_any_content_comes_back_however_it_is_cut_and_packed(content, repeats, shard_bytes, packing, dtype):
    content *= repeats
    store = MemoryStore()
    manifest = write_blob(store, [content], shard_bytes=max(shard_bytes, len(content) // 30), packing=packing, dtype=dtype)
    assert all_of(read_blob(store.get, manifest)) == content
    assert manifest.size_bytes == len(content)
    assert manifest.blob == blake3(content).hexdigest()
    assert set(store.shards()) == {ref.shard for ref in manifest.shards}
    assert all(store.size_bytes(ref.shard) == ref.stored_bytes for ref in manifest.shards)


@given(content=contents, sizes=st.lists(st.integers(0, 999), min_size=1, max_size=5).filter(any), shard_bytes=shard_sizes)
@settings(deadline=None)
def test_the_pieces_in_which_content_arrives_make_no_difference(content, sizes, shard_bytes):
    shard_bytes = max(shard_bytes, len(content) // 30)
    whole, gathered = MemoryStore(), MemoryStore()
    expected = write_blob(whole, [content], shard_bytes=shard_bytes)
    assert write_blob(gathered, pieces_in_one_memory(content, sizes), shard_bytes=shard_bytes) == expected
    assert all_of(read_blob(gathered.get, expected)) == content


@given(content=contents, shard_bytes=shard_sizes, ends=st.tuples(st.integers(0, 5000), st.integers(0, 5000)), packing=packings)
@settings(deadline=None)
def test_any_range_comes_back(content, shard_bytes, ends, packing):
    start, stop = sorted(end % (len(content) + 1) for end in ends)
    store = MemoryStore()
    manifest = write_blob(store, [content], shard_bytes=max(shard_bytes, len(content) // 30), packing=packing)
    asked = []

    def get(shard):
        asked.append(shard)
        return store.get(shard)

    assert all_of(read_blob(get, manifest, start, stop)) == content[start:stop]
    assert all_of(read_blob(store.get, manifest, start)) == content[start:]
    assert len(asked) == len(list(manifest.slices(start, stop)))


@given(content=contents, shard_bytes=st.integers(100, 700), packing=packings)
@settings(deadline=None)
def test_a_manifest_comes_back_from_the_wire(content, shard_bytes, packing):
    manifest = write_blob(MemoryStore(), [content], shard_bytes=shard_bytes, packing=packing)
    assert BlobManifest.from_wire(msgpack.unpackb(msgpack.packb(manifest.to_wire()))) == manifest
    assert BlobManifest.decode(manifest.encode()) == manifest


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=70)
    | st.binary(max_size=70),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(data=st.binary(max_size=300) | values.map(msgpack.packb) | values.map(lambda value: msgpack.packb([1, value])))
def test_bytes_that_are_no_manifest_are_refused(data):
    with pytest.raises(MalformedMessage):
        BlobManifest.decode(data)


MANIFEST = write_blob(MemoryStore(), [random.Random(0).randbytes(1000) + bytes(1000)], shard_bytes=500, packing="always")


@given(
    flips=st.lists(st.tuples(st.integers(0, len(MANIFEST.encode()) - 1), st.integers(1, 255)), min_size=1, max_size=4),
    end=st.integers(0, 40),
)
def test_a_changed_manifest_is_refused_or_adds_up(flips, end):
    data = bytearray(MANIFEST.encode() + bytes(20))[: len(MANIFEST.encode()) + 20 - end]
    for position, change in flips:
        data[position % len(data)] ^= change
    with contextlib.suppress(MalformedMessage):
        manifest = BlobManifest.decode(bytes(data))
        assert manifest.encode() == data
        assert manifest.size_bytes == sum(ref.size_bytes for ref in manifest.shards)


REF = ["ab" * 32, 10, 10, False]


@pytest.mark.parametrize(
    "hostile",
    [
        ["ab" * 32, 10, []],
        ["ab" * 32, 11, [REF]],
        ["ab" * 31, 10, [REF]],
        ["../" * 21 + "a", 10, [REF]],
        ["ab" * 32, 10, [["../" * 21 + "a", 10, 10, False]]],
        ["ab" * 32, 10, [["AB" * 32, 10, 10, False]]],
        ["ab" * 32, 10, [["ab" * 32, 10, 9, False]]],
        ["ab" * 32, 10, [["ab" * 32, 10, 10, True]]],
        ["ab" * 32, 10, [["ab" * 32, 10, 0, True]]],
        ["ab" * 32, 10, [["ab" * 32, 10, 10, 0]]],
        ["ab" * 32, 0, [["ab" * 32, 0, 0, False]]],
        ["ab" * 32, 10, [REF, ["ab" * 32, 0, 0, False]]],
        ["ab" * 32, 10, [["ab" * 32, 20, 20, False], ["ab" * 32, -10, -10, False]]],
        ["ab" * 32, LARGEST_SHARD_BYTES + 1, [["ab" * 32, LARGEST_SHARD_BYTES + 1, 9, True]]],
        ["ab" * 32, 1 << 62, [["ab" * 32, 1 << 62, 1 << 62, False]]],
        ["ab" * 32, 10.0, [REF]],
        ["ab" * 32, 10, [REF], "more"],
        ["ab" * 32, 10 << 17, [REF] * ((1 << 17) + 1)],
    ],
)
def test_hostile_manifests_are_refused(hostile):
    with pytest.raises(MalformedMessage):
        BlobManifest.from_wire(hostile)
    with pytest.raises(MalformedMessage):
        BlobManifest.decode(msgpack.packb([1, hostile]))


@pytest.mark.parametrize(
    "data", [msgpack.packb([2, MANIFEST.to_wire()]), msgpack.packb([True, MANIFEST.to_wire()]), b"", bytes(17 << 20)]
)
def test_other_formats_and_sizes_are_refused(data):
    with pytest.raises(MalformedMessage):
        BlobManifest.decode(data)


def lying(content, stored, **changes):
    """A store with `stored`, and a manifest that says `content` is in it."""
    store = MemoryStore()
    ref = {"shard": store.put(stored), "size_bytes": len(content), "stored_bytes": len(stored), "packed": True, **changes}
    blob = blake3(content).hexdigest()
    return store, BlobManifest(blob=blob, size_bytes=len(content), shards=(ShardRef(**ref),))


ZEROS = bytes(LARGEST_SHARD_BYTES)
BOMB = pack_known(ZEROS, 1, gains=True)


@pytest.mark.parametrize(
    ("content", "stored", "changes"),
    [
        (bytes(100_000), BOMB, {}),  # It unpacks to 300 times what the manifest says.
        (bytes(100_000), pack_known(bytes(99_999), 4, gains=True), {}),
        (bytes(100), b"no packed shard", {}),
        (bytes(100), b"", {"stored_bytes": 50}),
        (bytes(100), bytes(50), {"stored_bytes": 51}),
        (bytes(100), bytes(99), {"packed": False, "stored_bytes": 100}),
        (bytes(99) + b"x", bytes(100), {"packed": False}),  # All as announced, but for the hash of the whole.
    ],
)
def test_shards_that_are_not_what_the_manifest_says_are_refused(content, stored, changes):
    store, manifest = lying(content, stored, **changes)
    with pytest.raises(MalformedPayload):
        all_of(read_blob(store.get, manifest))


def test_a_whole_of_the_right_shards_in_the_wrong_order_is_found_out():
    store = MemoryStore()
    manifest = write_blob(store, [b"first", b"other"], shard_bytes=5)
    with pytest.raises(MalformedPayload, match="not the blob"):
        all_of(read_blob(store.get, dataclasses.replace(manifest, shards=manifest.shards[::-1])))


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (0, 11), (6, 5), (11, 11)])
def test_a_range_that_is_not_in_the_blob_is_refused_at_once(start, stop):
    manifest = write_blob(MemoryStore(), [b"0123456789"])
    with pytest.raises(ValueError, match="of a blob of 10"):
        read_blob(MemoryStore().get, manifest, start, stop)
