"""Files into a store and out of it: whole or not at all, gone on with after a break, refused in a line."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ciuic_p2p.core.objects import LARGEST_MANIFEST_BYTES
from ciuic_p2p.daemon import filing
from ciuic_p2p.daemon.filing import MOST_OBJECT_SHARDS, Cutting, Partial, shard_bytes_for
from ciuic_p2p.errors import LocalError, MalformedPayload, StoreFull
from ciuic_p2p.store.blobs import SHARD_BYTES, BlobManifest, write_blob
from ciuic_p2p.store.manifests import ShardRef
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.terms import LARGEST_SHARD_BYTES, BlobHash, ShardId

SMALL_SHARD = 1000


def stored(data: bytes, **options: object) -> tuple[MemoryStore, BlobManifest]:
    store = MemoryStore()
    return store, write_blob(store, [data], shard_bytes=SMALL_SHARD, **options)  # type: ignore[arg-type]


def random_bytes(size_bytes: int) -> bytes:
    return random.Random(0).randbytes(size_bytes)


def test_a_file_becomes_shards_and_each_is_told(tmp_path: Path) -> None:
    store, told = MemoryStore(), []
    data = random_bytes(SHARD_BYTES + 5)
    file = tmp_path / "file"
    file.write_bytes(data)
    cutting = Cutting(store, file, lambda shard, data: told.append((shard, len(data))))
    manifest = cutting.cut()
    assert sorted(size_bytes for _, size_bytes in told) == [5, SHARD_BYTES]
    assert {shard for shard, _ in told} == set(store.shards()) == {ref.shard for ref in manifest.shards}
    assert cutting.size_bytes == len(data)


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(random_bytes(10))

    def grow(_: ShardId, __: object) -> None:
        with file.open("ab") as stream:
            stream.write(b"more")

    with pytest.raises(LocalError, match="was changed while it was read"):
        Cutting(MemoryStore(), file, grow).cut()


def test_a_put_that_nobody_wants_any_more_ends(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    store = MemoryStore()
    cutting = Cutting(store, file, lambda *_: None)
    cutting.stop()
    with pytest.raises(LocalError, match="given up"):
        cutting.cut()
    assert list(store.shards()) == []


def test_what_is_no_readable_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", ".", "pipe"):
        with pytest.raises(LocalError, match=str(tmp_path)):
            Cutting(MemoryStore(), tmp_path / name, lambda *_: None).cut()


def test_larger_files_get_larger_shards() -> None:
    most = LARGEST_SHARD_BYTES * MOST_OBJECT_SHARDS
    assert shard_bytes_for(0) == SHARD_BYTES
    assert shard_bytes_for(SHARD_BYTES * MOST_OBJECT_SHARDS + 1) == 2 * SHARD_BYTES
    assert shard_bytes_for(most) == LARGEST_SHARD_BYTES
    with pytest.raises(LocalError, match="split it"):
        shard_bytes_for(most + 1)


def test_the_largest_object_fits_into_a_version() -> None:
    ref = ShardRef(shard=ShardId("f" * 64), size_bytes=LARGEST_SHARD_BYTES, stored_bytes=LARGEST_SHARD_BYTES - 1, packed=True)
    size_bytes = LARGEST_SHARD_BYTES * MOST_OBJECT_SHARDS
    manifest = BlobManifest(blob=BlobHash("0" * 64), size_bytes=size_bytes, shards=(ref,) * MOST_OBJECT_SHARDS)
    assert len(manifest.encode()) <= LARGEST_MANIFEST_BYTES


@pytest.mark.parametrize("packing", ["never", "always"])
def test_shards_in_any_order_make_the_file(tmp_path: Path, packing: str) -> None:
    data = b"compressible " * 300 + random_bytes(500) + bytes(2 * SMALL_SHARD)
    store, manifest = stored(data, packing=packing)
    target = tmp_path / "target"
    target.write_bytes(b"before")
    partial = Partial(target, manifest, "name")
    assert partial.found() == set()
    for shard in sorted({ref.shard for ref in manifest.shards}, reverse=True):
        assert target.read_bytes() == b"before"
        partial.take(shard, store.get(shard))
    partial.finish()
    partial.close()
    assert target.read_bytes() == data
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.parametrize("shard_bytes", [1 << 20, (1 << 20) + 4096, (1 << 20) + 1])
@pytest.mark.parametrize("most_kept_bytes", [64 << 20, 2 << 20, 0])
def test_large_shards_in_any_order_make_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_bytes: int, most_kept_bytes: int
) -> None:
    monkeypatch.setattr(filing, "_MOST_KEPT_BYTES", most_kept_bytes)
    data = random_bytes(6 * shard_bytes + 5)
    store = MemoryStore()
    manifest = write_blob(store, [data], shard_bytes=shard_bytes)
    partial = Partial(tmp_path / "target", manifest, "name")
    partial.found()
    shards = [ref.shard for ref in manifest.shards]
    for shard in random.Random(shard_bytes).sample([*shards, *shards[:3]], len(shards) + 3):  # some come twice
        partial.take(shard, store.get(shard))
    partial.finish()
    partial.close()
    assert (tmp_path / "target").read_bytes() == data


def test_shards_of_another_order_than_the_blobs_never_become_a_file(tmp_path: Path) -> None:
    store, manifest = stored(random_bytes(3 * SMALL_SHARD))
    lying = BlobManifest(blob=manifest.blob, size_bytes=manifest.size_bytes, shards=manifest.shards[::-1])
    partial = Partial(tmp_path / "target", lying, "name")
    partial.found()
    for ref in lying.shards:
        partial.take(ref.shard, store.get(ref.shard))
    with pytest.raises(LocalError, match="not what its author's manifest says"):
        partial.finish()
    partial.close()
    assert not (tmp_path / "target").exists()


def test_a_get_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    data = random_bytes(5 * SMALL_SHARD)
    store, manifest = stored(data)
    first, *rest = (ref.shard for ref in manifest.shards)
    broken_off = Partial(tmp_path / "target", manifest, "name")
    broken_off.found()
    broken_off.take(first, store.get(first))
    broken_off.close()

    again = Partial(tmp_path / "target", manifest, "name")
    assert again.found() == {first}
    for shard in rest:
        again.take(shard, store.get(shard))
    again.finish()
    assert (tmp_path / "target").read_bytes() == data


def test_only_one_get_writes_a_target(tmp_path: Path) -> None:
    _, manifest = stored(b"content")
    first = Partial(tmp_path / "target", manifest, "name")
    with pytest.raises(LocalError, match="another get"):
        Partial(tmp_path / "target", manifest, "name")
    first.close()
    Partial(tmp_path / "target", manifest, "name").close()


def test_a_folder_takes_the_file_and_a_missing_one_is_named(tmp_path: Path) -> None:
    store, manifest = stored(b"content")
    partial = Partial(tmp_path, manifest, "name")
    partial.found()
    partial.take(manifest.shards[0].shard, store.get(manifest.shards[0].shard))
    partial.finish()
    assert (tmp_path / "name").read_bytes() == b"content"
    with pytest.raises(LocalError, match="missing/target cannot be written"):
        Partial(tmp_path / "missing" / "target", manifest, "name")


def test_a_manifest_that_lies_never_becomes_a_file(tmp_path: Path) -> None:
    store, manifest = stored(b"content")
    lying = BlobManifest(blob=BlobHash("00" * 32), size_bytes=manifest.size_bytes, shards=manifest.shards)
    partial = Partial(tmp_path / "target", lying, "name")
    partial.found()
    with pytest.raises(MalformedPayload):
        partial.take(manifest.shards[0].shard, b"contents")
    partial.take(manifest.shards[0].shard, store.get(manifest.shards[0].shard))
    with pytest.raises(LocalError, match="not what its author's manifest says"):
        partial.finish()
    partial.discard()
    partial.close()
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    store, manifest = stored(b"content")
    partial = Partial(tmp_path / "target", manifest, "name")
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, partial._descriptor)
    os.close(full)
    with pytest.raises(StoreFull, match=r"the disk of .*target is full"):
        partial.take(manifest.shards[0].shard, store.get(manifest.shards[0].shard))
    partial.close()
