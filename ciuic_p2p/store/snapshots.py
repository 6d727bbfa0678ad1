"""Snapshots of runs on this peer's disk: the state as shards of a store, and one small file that says what it is.

    FOLDER/RUN/EPOCH-HASH.snapshot    the manifest, written whole after all its shards are on the disk

A snapshot is there or it is not, whatever instant the process dies at. What is inside has the layout of a safetensors file, the
same bytes on every peer that saved the same state. Knows no peers, and not when to save.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgpack
import numpy as np
import structlog

from ciuic_p2p.core import wire
from ciuic_p2p.core.retention import Retention, Saved, kept
from ciuic_p2p.errors import MalformedMessage, MalformedPayload, ShardMissing, SnapshotDamaged, StoreUnusable
from ciuic_p2p.store import files
from ciuic_p2p.store.blobs import BlobManifest, read_blob, write_blob
from ciuic_p2p.store.safetensors import Tensor, header_bytes, make_header
from ciuic_p2p.store.shards import ShardStore
from ciuic_p2p.tensors.layout import Layout
from ciuic_p2p.tensors.outer import OuterState
from ciuic_p2p.tensors.state import StateManifest
from ciuic_p2p.tensors.tiles import Float32
from ciuic_p2p.terms import PeerId, ShardId, StateHash

_log = structlog.get_logger(__name__)

MOMENTUM = "ciuic.outer_momentum"
WHOLE = "ciuic.anchor"
"""The name of the one tensor where nobody knows the model's own."""
LARGEST_MANIFEST_BYTES = 32 << 20
_SUFFIX = ".snapshot"
_VALUES_AT_ONCE = 1 << 20
_FIELDS_AT_FIRST = 13
"""Of manifests that were written before there were quorums and ledgers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one is of."""

    run: str
    epoch: int
    state_hash: StateHash
    samples: int
    count: int
    parameter_count: int
    layout: str
    """Fingerprint of the model and of the outer settings, as peers tell each other."""
    tensors: bytes
    """`Layout.to_wire` as msgpack; empty where it was not known."""
    ancestors: tuple[str, ...]
    """Beginnings of the hashes of the states that led to it (core/ancestry.py)."""
    saved_at_s: int
    """By this peer's clock, since 1970."""
    witnesses: tuple[PeerId, ...]
    """Who said, signed, that it saved the same."""
    is_complete: bool
    """More than half of those in the mean did (core/snapshotting.py)."""
    blob: BlobManifest
    quorum: int = 0
    """So many witnesses make it complete; 0 where the version of this program that saved it did not keep that."""
    ledgers: bytes = b""
    """Which samples are used, as the state has it (core/ledgers.py)."""

    @property
    def size_bytes(self) -> int:
        return self.blob.size_bytes

    @property
    def name(self) -> str:
        """Of its file; the epoch first, so that names sort like epochs."""
        return f"{self.epoch:010d}-{self.state_hash[:16]}{_SUFFIX}"

    def model(self) -> Layout | None:
        """Raises MalformedMessage."""
        return Layout.from_wire(wire.unpack(self.tensors, LARGEST_MANIFEST_BYTES)) if self.tensors else None


class Snapshots:
    """Thread-safe as far as different snapshots are concerned."""

    def __init__(self, folder: Path, store: ShardStore, retention: Retention | None = None) -> None:
        self._folder = folder
        self._store = store
        self._retention = retention or Retention()

    def save(self, snapshot: Snapshot, state: OuterState) -> Snapshot:
        """Writes the state; returns the snapshot with its blob, on the disk. Raises StoreFull, StoreUnusable."""
        content = _content(snapshot, state)
        saved = replace(snapshot, blob=write_blob(self._store, content, dtype="float32", packing="never"))
        self.note(saved)
        return saved

    def note(self, snapshot: Snapshot) -> None:
        """Writes its manifest anew. Raises StoreFull, StoreUnusable."""
        folder = self._of_run(snapshot.run)
        with files.translated(self._folder):
            files.make_folder(folder)
            written = files.write_temporary(folder, memoryview(msgpack.packb(wire.to_wire(snapshot))))
            os.replace(written, folder / snapshot.name)
            files.sync_folder(folder)

    def runs(self) -> list[str]:
        """Those that have one, sorted."""
        if not self._folder.is_dir():
            return []
        return sorted(unquote(folder.name) for folder in self._folder.iterdir() if any(folder.glob(f"*{_SUFFIX}")))

    def of_run(self, run: str) -> list[Snapshot]:
        """The newest first. A manifest that does not read is named in the log and left out."""
        paths = sorted(self._of_run(run).glob(f"*{_SUFFIX}"), reverse=True)
        return [found for path in paths if (found := _read(path)) is not None]

    def load(self, snapshot: Snapshot) -> OuterState:
        """Raises SnapshotDamaged when a shard is missing or the state has not the hash that it should have."""
        state = OuterState.empty(snapshot.count, snapshot.parameter_count)
        try:
            _fill(state, read_blob(self._store.get, snapshot.blob))
            found = StateManifest.describe(state, snapshot.epoch, snapshot.samples, snapshot.ledgers).state_hash
        except (ShardMissing, StoreUnusable, MalformedPayload, ValueError) as error:
            raise SnapshotDamaged(snapshot.run, snapshot.epoch, str(error)) from error
        if found != snapshot.state_hash:
            raise SnapshotDamaged(snapshot.run, snapshot.epoch, "its values have another hash")
        return state

    def missing(self, snapshot: Snapshot) -> list[ShardId]:
        """Shards that this peer does not hold, by their names alone."""
        return [shard for shard in _distinct(snapshot) if not self._store.has(shard)]

    def verify(self, snapshot: Snapshot) -> list[ShardId]:
        """Shards that this peer does not hold: reads all, and has the store set aside those that are damaged.

        Raises StoreUnusable.
        """
        return [shard for shard in _distinct(snapshot) if not _can_read(self._store, shard)]

    def wanting(self) -> dict[ShardId, int]:
        """What all snapshots of this peer lack, with the bytes of each as it is kept."""
        known = (snapshot for run in self.runs() for snapshot in self.of_run(run))
        return {ref.shard: ref.stored_bytes for one in known for ref in one.blob.shards if not self._store.has(ref.shard)}

    def thin_out(self, run: str) -> list[Snapshot]:
        """Forgets the manifests that nobody needs any more, and returns them; their shards are the store's to collect."""
        found = {Saved(one.epoch, one.saved_at_s, one.is_complete): one for one in self.of_run(run)}
        unwanted = [found[each] for each in found.keys() - kept(found, self._retention)]
        for snapshot in unwanted:
            files.remove(self._of_run(run) / snapshot.name)
        return unwanted

    def forget(self, run: str, epoch: int | None = None) -> list[Snapshot]:
        """Removes the manifests of a run, or of one epoch of it, and returns them."""
        gone = [one for one in self.of_run(run) if epoch in (None, one.epoch)]
        for snapshot in gone:
            files.remove(self._of_run(run) / snapshot.name)
        return gone

    def reachable(self) -> set[ShardId]:
        """The shards of all snapshots: a collection of the store must keep them."""
        return {ref.shard for run in self.runs() for snapshot in self.of_run(run) for ref in snapshot.blob.shards}

    def export(self, snapshot: Snapshot, state: OuterState, folder: Path) -> Path:
        """Writes FOLDER/model.safetensors: the model's tensors as float32, under their own names. Raises StoreUnusable,
        StoreFull. state: as `load` gave it."""
        model = snapshot.model()
        tensors = _tensors_of(model, state.count)
        header = make_header(tensors, _metadata(snapshot) | {"format": "pt"})
        target = folder / "model.safetensors"
        temporary = target.with_suffix(".part")
        with files.translated(folder):
            files.make_folder(folder.absolute())
            with temporary.open("wb") as stream:
                stream.write(header)
                for piece in _pieces(state.anchor):
                    stream.write(piece)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
            files.sync_folder(folder)
        return target

    def _of_run(self, run: str) -> Path:
        return self._folder / quote(run, safe="").replace(".", "%2E")


def _distinct(snapshot: Snapshot) -> Iterable[ShardId]:
    """In the order of the state."""
    return dict.fromkeys(ref.shard for ref in snapshot.blob.shards)


def _can_read(store: ShardStore, shard: ShardId) -> bool:
    try:
        store.get(shard)
    except ShardMissing:
        return False
    return True


def _read(path: Path) -> Snapshot | None:
    try:
        data = files.read_whole(path, LARGEST_MANIFEST_BYTES)
        if data is None:
            raise MalformedMessage(None, "the disk does not give it back")
        fields = wire.unpack(data, LARGEST_MANIFEST_BYTES)
        if isinstance(fields, list) and len(fields) == _FIELDS_AT_FIRST:
            fields += [0, b""]
        found: Snapshot = wire.from_wire(Snapshot, fields)
    except (OSError, MalformedMessage) as error:
        _log.warning("snapshot.unreadable", file=str(path), error=str(error))
        return None
    return found


def _content(snapshot: Snapshot, state: OuterState) -> Iterator[bytes | memoryview]:
    model = Layout.from_wire(wire.unpack(snapshot.tensors, LARGEST_MANIFEST_BYTES)) if snapshot.tensors else None
    momentum = Tensor(MOMENTUM, (state.parameter_count,), state.count)
    yield make_header([*_tensors_of(model, state.count), momentum], _metadata(snapshot))
    yield from _pieces(state.anchor)
    yield from _pieces(state.momentum)


def _tensors_of(model: Layout | None, count: int) -> list[Tensor]:
    if model is None:
        return [Tensor(WHOLE, (count,), 0)]
    return [Tensor(entry.name, entry.shape, start) for entry, start in zip(model.entries, model.offsets, strict=True)]


def _metadata(snapshot: Snapshot) -> dict[str, str]:
    """Only what is the same on all replicas."""
    facts = {
        "run": snapshot.run,
        "epoch": snapshot.epoch,
        "samples": snapshot.samples,
        "state_hash": snapshot.state_hash,
        "parameter_count": snapshot.parameter_count,
    }
    return {f"ciuic.{key}": str(value) for key, value in facts.items()}


def _pieces(values: Float32) -> Iterator[memoryview]:
    """Little-endian; views where the machine is."""
    for start in range(0, len(values), _VALUES_AT_ONCE):
        yield np.ascontiguousarray(values[start : start + _VALUES_AT_ONCE], "<f4").data.cast("B")


def _fill(state: OuterState, pieces: Iterable[memoryview]) -> None:
    """Raises MalformedPayload when there are more or fewer bytes than the state has."""
    arrays = [array.view(np.uint8) for array in (state.anchor, state.momentum)]
    rest = _after_header(pieces)
    spare = memoryview(b"")
    for array in arrays:
        filled = 0
        while filled < len(array):
            spare = spare or next(rest, memoryview(b""))
            if not len(spare):
                raise MalformedPayload(None, "it has fewer values than its state")
            taken = spare[: len(array) - filled]
            array[filled : filled + len(taken)] = np.frombuffer(taken, np.uint8)
            filled, spare = filled + len(taken), spare[len(taken) :]
    if len(spare) or any(len(piece) for piece in rest):
        raise MalformedPayload(None, "it has more values than its state")
    if sys.byteorder == "big":
        state.anchor.byteswap(inplace=True)
        state.momentum.byteswap(inplace=True)


def _after_header(pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    beginning, length = bytearray(), None
    for piece in pieces:
        if length is None or len(beginning) < length:
            beginning += piece
            length = header_bytes(bytes(beginning[:8]))
            if len(beginning) >= length:
                yield memoryview(bytes(beginning[length:]))
            continue
        yield piece


def describe(snapshot: Snapshot, missing: int) -> dict[str, Any]:
    """As `ciuic-peer snapshot ls --json` prints it."""
    return {
        "run": snapshot.run,
        "epoch": snapshot.epoch,
        "state_hash": snapshot.state_hash,
        "samples": snapshot.samples,
        "size_bytes": snapshot.size_bytes,
        "saved_at_s": snapshot.saved_at_s,
        "complete": snapshot.is_complete,
        "witnesses": len(snapshot.witnesses),
        "missing_shards": missing,
    }
