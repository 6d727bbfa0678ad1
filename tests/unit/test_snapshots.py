"""Snapshots on the disk: what is read back is what was saved, or nothing; what is exported is a plain safetensors file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest

from ciuic_p2p.core.retention import DAY_S, Retention
from ciuic_p2p.errors import SnapshotDamaged, StoreFull
from ciuic_p2p.store.blobs import BlobManifest
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.store.snapshots import MOMENTUM, Snapshot, Snapshots
from ciuic_p2p.tensors.layout import Entry, Layout
from ciuic_p2p.tensors.outer import OuterState
from ciuic_p2p.tensors.state import StateManifest
from ciuic_p2p.terms import BlobHash, PeerId

ENTRIES = (("weight", (300, 1000), "parameter"), ("bias", (77,), "parameter"), ("running.mean", (5, 2), "buffer"))
MODEL = Layout(tuple(Entry(name=n, shape=s, dtype="float32", role=r) for n, s, r in ENTRIES))  # type: ignore[arg-type]
NO_BLOB = BlobManifest(blob=BlobHash("0" * 64), size_bytes=0, shards=())


def state_of(seed: int, model: Layout = MODEL) -> OuterState:
    random = np.random.default_rng(seed)
    return OuterState(
        anchor=random.standard_normal(model.count, np.float32),
        momentum=random.standard_normal(model.parameter_count, np.float32),
    )


def snapshot_of(state: OuterState, epoch: int = 7, model: Layout | None = MODEL, **more: object) -> Snapshot:
    plain = Snapshot(
        run="mnist",
        epoch=epoch,
        state_hash=StateManifest.describe(state, epoch, 10 * epoch).state_hash,
        samples=10 * epoch,
        count=state.count,
        parameter_count=state.parameter_count,
        layout="a fingerprint",
        tensors=msgpack.packb(model.to_wire()) if model is not None else b"",
        ancestors=("abc",),
        saved_at_s=1_800_000_000,
        witnesses=(PeerId("me"),),
        is_complete=True,
        blob=NO_BLOB,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "store", reserve_bytes=0)


@pytest.mark.parametrize("model", [MODEL, None], ids=["with-the-model", "without"])
def test_what_is_read_back_is_what_was_saved(tmp_path: Path, store: DiskStore, model: Layout | None) -> None:
    state = state_of(1)
    saved = Snapshots(tmp_path / "snapshots", store).save(snapshot_of(state, model=model), state)
    again = Snapshots(tmp_path / "snapshots", DiskStore(tmp_path / "store"))
    assert again.runs() == ["mnist"]
    assert again.of_run("mnist") == [saved]
    loaded = again.load(saved)
    assert loaded.anchor.tobytes() == state.anchor.tobytes()
    assert loaded.momentum.tobytes() == state.momentum.tobytes()
    assert again.reachable() == set(store.shards())


def test_all_peers_save_the_same_shards(tmp_path: Path) -> None:
    state, shards = state_of(1), []
    for clock_s in (5, 500_000):
        store = MemoryStore()
        Snapshots(tmp_path / str(clock_s), store).save(snapshot_of(state, saved_at_s=clock_s), state)
        shards.append(set(store.shards()))
    assert shards[0] == shards[1]


@pytest.mark.parametrize("run", ["../../etc", "..", ".", "a/b", "ünïcode 名", "x" * 128])
def test_no_name_of_a_run_leaves_the_folder(tmp_path: Path, run: str) -> None:
    state, snapshots = state_of(1), Snapshots(tmp_path / "deep" / "snapshots", MemoryStore())
    snapshots.save(snapshot_of(state, run=run), state)
    assert snapshots.runs() == [run]
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["snapshots"]


def test_a_flipped_bit_is_named_and_an_older_one_still_reads(tmp_path: Path, store: DiskStore) -> None:
    snapshots, states = Snapshots(tmp_path / "snapshots", store), [state_of(seed) for seed in (1, 2)]
    old, new = (snapshots.save(snapshot_of(state, epoch), state) for epoch, state in enumerate(states, start=4))
    shard = next(path for path in (tmp_path / "store").rglob("*") if path.name == new.blob.shards[0].shard)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(SnapshotDamaged, match=r"epoch 5 is damaged"):
        snapshots.load(new)
    assert snapshots.missing(new) == [new.blob.shards[0].shard]
    assert snapshots.load(old).anchor.tobytes() == states[0].anchor.tobytes()
    # and saving it again makes it whole
    snapshots.save(new, states[1])
    assert snapshots.load(new).anchor.tobytes() == states[1].anchor.tobytes()


def test_shards_of_another_state_are_not_taken_for_it(tmp_path: Path, store: DiskStore) -> None:
    state, other = state_of(1), state_of(2)
    snapshots = Snapshots(tmp_path / "snapshots", store)
    saved, wrong = (snapshots.save(snapshot_of(one), one) for one in (state, other))
    with pytest.raises(SnapshotDamaged, match="another hash"):
        snapshots.load(replace(saved, blob=wrong.blob))


@pytest.mark.parametrize("content", [b"", b"\xc1", msgpack.packb([1, 2]), b"\x00" * 100])
def test_a_torn_manifest_is_left_out(tmp_path: Path, store: DiskStore, content: bytes) -> None:
    state, snapshots = state_of(1), Snapshots(tmp_path / "snapshots", store)
    saved = snapshots.save(snapshot_of(state), state)
    (tmp_path / "snapshots" / "mnist" / "0000000009-ffff.snapshot").write_bytes(content)
    assert snapshots.of_run("mnist") == [saved]


def test_a_full_disk_leaves_the_older_snapshot_and_no_new_one(tmp_path: Path) -> None:
    state, next_state = state_of(1), state_of(2)
    store = DiskStore(tmp_path / "store", quota_bytes=4_000_000, reserve_bytes=0)
    snapshots = Snapshots(tmp_path / "snapshots", store)
    saved = snapshots.save(snapshot_of(state, 4), state)
    with pytest.raises(StoreFull):
        snapshots.save(snapshot_of(next_state, 5), next_state)
    assert snapshots.of_run("mnist") == [saved]
    assert snapshots.load(saved).anchor.tobytes() == state.anchor.tobytes()


def test_old_ones_are_thinned_out_to_five_and_one_a_day(tmp_path: Path) -> None:
    snapshots, state = Snapshots(tmp_path, MemoryStore(), Retention(newest=2, days=3)), state_of(1)
    hours = {epoch: 6 * epoch for epoch in range(20)}
    for epoch, hour in hours.items():
        snapshots.save(snapshot_of(state, epoch, saved_at_s=100 * DAY_S + 3600 * hour), state)
    snapshots.thin_out("mnist")
    assert [one.epoch for one in snapshots.of_run("mnist")] == [19, 18, 15, 11]


def test_the_newest_complete_one_is_never_thinned_out(tmp_path: Path) -> None:
    snapshots, state = Snapshots(tmp_path, MemoryStore(), Retention(newest=2, days=1)), state_of(1)
    for epoch in range(9):
        snapshots.save(snapshot_of(state, epoch, is_complete=epoch == 3, saved_at_s=epoch * DAY_S), state)
    snapshots.thin_out("mnist")
    assert [one.epoch for one in snapshots.of_run("mnist")] == [8, 7, 3]


def test_an_exported_one_loads_with_safetensors_alone(tmp_path: Path, store: DiskStore) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy")
    torch_files = pytest.importorskip("safetensors.torch")
    state, snapshots = state_of(3), Snapshots(tmp_path / "snapshots", store)
    saved = snapshots.save(snapshot_of(state), state)
    written = snapshots.export(saved, state, tmp_path / "here" / "and there")
    for load in (numpy_files.load_file, torch_files.load_file):
        tensors = {name: np.asarray(tensor) for name, tensor in load(written).items()}
        assert {name: tensor.shape for name, tensor in tensors.items()} == {name: shape for name, shape, _ in ENTRIES}
        flat = np.concatenate([tensors[name].ravel() for name, _, _ in ENTRIES])
        assert flat.tobytes() == state.anchor.tobytes()
    # and so does what the shards themselves hold, the momentum included
    whole = tmp_path / "whole.safetensors"
    whole.write_bytes(b"".join(store.get(ref.shard) for ref in saved.blob.shards))
    tensors = numpy_files.load_file(whole)
    assert tensors[MOMENTUM].tobytes() == state.momentum.tobytes()


def test_leftovers_of_a_killed_save_are_no_snapshot(tmp_path: Path, store: DiskStore) -> None:
    state, snapshots = state_of(1), Snapshots(tmp_path / "snapshots", store)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # saves again and again until it is killed
        os.write(writing, b"!")
        for epoch in range(10_000):
            snapshots.save(snapshot_of(state_of(epoch % 3), epoch), state_of(epoch % 3))
        os._exit(0)
    os.read(reading, 1)
    while len(snapshots.of_run("mnist")) < 5:
        pass
    os.kill(child, 9)
    os.waitpid(child, 0)
    again = Snapshots(tmp_path / "snapshots", DiskStore(tmp_path / "store", reserve_bytes=0))
    for one in again.of_run("mnist"):
        assert again.load(one).anchor.tobytes() == state_of(one.epoch % 3).anchor.tobytes()
    assert state.count


def test_the_ledgers_are_saved_and_a_state_without_its_own_is_damaged(tmp_path: Path, store: DiskStore) -> None:
    state, ledgers = state_of(1), b"what is used"
    state_hash = StateManifest.describe(state, 7, 70, ledgers).state_hash
    snapshots = Snapshots(tmp_path / "snapshots", store)
    saved = snapshots.save(snapshot_of(state, state_hash=state_hash, ledgers=ledgers), state)
    assert snapshots.of_run("mnist") == [saved]
    assert snapshots.load(saved).anchor.tobytes() == state.anchor.tobytes()
    with pytest.raises(SnapshotDamaged, match="another hash"):
        snapshots.load(replace(saved, ledgers=b"something else"))


def test_a_manifest_from_before_there_were_quorums_and_ledgers_is_read(tmp_path: Path, store: DiskStore) -> None:
    snapshots, state = Snapshots(tmp_path / "snapshots", store), state_of(1)
    saved = snapshots.save(snapshot_of(state, quorum=3), state)
    file = tmp_path / "snapshots" / "mnist" / saved.name
    file.write_bytes(msgpack.packb(msgpack.unpackb(file.read_bytes())[:-2]))
    assert snapshots.of_run("mnist") == [replace(saved, quorum=0)]
