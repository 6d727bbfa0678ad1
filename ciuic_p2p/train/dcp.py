"""torch.distributed.checkpoint over the swarm's objects: sharded states straight to the peers and back. Knows no peers.

    dcp.save(state, storage_writer=ciuic.CiuicWriter("ciuic://models/step-100"))
    dcp.load(state, storage_reader=ciuic.CiuicReader("ciuic://models/step-100"))

Each rank puts one object with its tensors, in the safetensors layout; then the coordinator puts the contents, which name them
all. Without contents there is no checkpoint, and no save writes over another one's objects: whatever dies when, a reader finds
the old checkpoint whole, or the new one, or none. Nothing is pickled, and nothing that was got is unpickled.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ciuic_p2p.errors import CheckpointUnreadable, LocalError, ObjectMissing, StoreFull, SwarmError, Transient
from ciuic_p2p.train.client import Client
from ciuic_p2p.train.contents import (
    LARGEST_CONTENTS_BYTES,
    Contents,
    RankFile,
    SavedChunk,
    SavedTensor,
    encode_contents,
    file_name,
    parse_contents,
)
from ciuic_p2p.train.log import get_log
from ciuic_p2p.train.plain_data import from_json, to_json
from ciuic_p2p.train.tensor_bytes import Entry, bytes_of, dtype_name, dtype_named, lay_out, tensor_from

log = get_log(__name__)

CONTENTS = "checkpoint.json"
SPREAD_S = 60.0
"""Until the coordinator's daemon has heard of what ranks on other machines put; it takes seconds."""
_LOOK_EVERY_S = 0.1
_SCHEME = "ciuic://"


@dataclass(frozen=True)
class _Stored:
    """Where one item went, as a rank tells the coordinator."""

    file: RankFile | None = None
    start: int = 0
    value: Any = None
    """Of an item that is no tensor, as JSON."""


class CiuicWriter(StorageWriter):  # type: ignore[misc]  # torch has no types here
    """Saves to `ciuic://bucket/prefix`. What is there already is replaced once the new checkpoint is whole."""

    def __init__(self, address: str, home: str | os.PathLike[str] | None = None) -> None:
        """home: of the daemon; default: CIUIC_HOME, else the user's data folder. Raises LocalError for no such address."""
        self._prefix = _prefix_of(address)
        self._client = Client(home)

    @property
    def checkpoint_id(self) -> str:
        return self._prefix

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _is_address(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._prefix = _prefix_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raises LocalError where each rank would write contents of its own."""
        if kwargs.get("use_collectives", True) is False:
            raise LocalError("a checkpoint without collectives has no common contents", "leave out use_collectives=False")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Raises LocalError for tensors that cannot be saved, before anything is put."""
        for item in plan.items:
            if item.type != WriteItemType.BYTE_IO:
                _dtype_of(item)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """One object with this rank's tensors, none where it has none. Raises LocalError for values that are no plain data,
        and what `Client.upload_file` does."""
        values = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
        tensors = [item for item in plan.items if item.type != WriteItemType.BYTE_IO and _chunk_count(item)]
        results = [_result(item, _Stored(value=_plain(item, planner))) for item in values]
        if tensors:
            results += self._put_tensors(tensors, planner, plan.storage_data)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The coordinator: the contents, when all that they name is there. Raises Transient when some of it stays away."""
        contents = _contents_of(metadata, [result for rank in results for result in rank])
        for file in contents.files:
            self._await(file)
        before = self._files_before()
        with _temporary("contents") as path:
            path.write_bytes(_readable(contents, self._prefix))
            self._client.upload_file(path, f"{self._prefix}/{CONTENTS}")
        self._remove(before - {file.name for file in contents.files})

    def _put_tensors(self, items: list[WriteItem], planner: SavePlanner, rank: int) -> list[WriteResult]:
        plan = lay_out([_entry_of(item) for item in items])
        with _temporary("rank") as path:
            with path.open("wb") as stream:
                stream.write(plan.header)
                for i in plan.order:
                    stream.write(_resolved(items[i], planner))
            name = file_name(rank, secrets.token_hex(8))
            put = self._client.upload_file(path, f"{self._prefix}/{name}")
        file = RankFile(name, put["size_bytes"], put["etag"])
        return [_result(item, _Stored(file, start)) for item, start in zip(items, plan.starts, strict=True)]

    def _await(self, file: RankFile) -> None:
        """Ranks on other machines put at other daemons. A peer that hears of the contents from this one can get the files."""
        address, deadline_s = f"{self._prefix}/{file.name}", time.monotonic() + SPREAD_S
        while True:
            with suppress(ObjectMissing):
                if self._client.stat(address)["etag"] == file.etag:
                    return
            if time.monotonic() > deadline_s:
                raise Transient(
                    f"this daemon has not heard of {address} after {SPREAD_S:g} s",
                    "check with `ciuic-peer peers` that the daemons of all ranks are in one swarm, and save again",
                )
            time.sleep(_LOOK_EVERY_S)

    def _files_before(self) -> set[str]:
        """Of the checkpoint that is replaced, if it can be read: one that cannot is no reason not to save."""
        with suppress(SwarmError):
            return {file.name for file in _read_contents(self._client, self._prefix).files}
        return set()

    def _remove(self, names: set[str]) -> None:
        """The new checkpoint is there: what cannot be removed only takes up room."""
        for name in sorted(names):
            try:
                self._client.remove(f"{self._prefix}/{name}")
            except ObjectMissing:
                pass
            except SwarmError as error:
                log.warning("checkpoint.remains", address=f"{self._prefix}/{name}", error=str(error))


class CiuicReader(StorageReader):  # type: ignore[misc]  # torch has no types here
    """Loads from `ciuic://bucket/prefix`, into whatever sharding the state has."""

    def __init__(self, address: str, home: str | os.PathLike[str] | None = None) -> None:
        """As for the writer."""
        self._prefix = _prefix_of(address)
        self._client = Client(home)
        self._contents: Contents | None = None

    @property
    def checkpoint_id(self) -> str:
        return self._prefix

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _is_address(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._contents = None
        if checkpoint_id is not None:
            self._prefix = _prefix_of(checkpoint_id)

    def read_metadata(self) -> Metadata:
        """Raises ObjectMissing, CheckpointUnreadable, and what `Client.download_file` does."""
        self._contents = contents = _read_contents(self._client, self._prefix)
        tensors = {name: _metadata_of(tensor) for name, tensor in contents.tensors.items()}
        return Metadata(
            state_dict_metadata={**tensors, **{name: BytesStorageMetadata() for name in contents.values}},
            planner_data=None if contents.paths is None else dict(contents.paths),
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """Nothing: the contents are known from reading the metadata."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Each rank file that this rank needs something of, one after the other. Raises CheckpointUnreadable when one is lost
        or is another one, and what `Client.download_file` does."""
        contents = self._contents
        assert contents is not None, "torch reads the metadata first"
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                _give_value(item, contents.values[item.storage_index.fqn], planner)
        for index, wanted in _by_file(contents, plan.items).items():
            with self._mapped(contents.files[index]) as data:
                for item, tensor, chunk in wanted:
                    _give_tensor(item, tensor_from(data, chunk.start, tensor.dtype, chunk.sizes), planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @contextmanager
    def _mapped(self, file: RankFile) -> Iterator[Any]:
        """The bytes of a rank file, which are those that the contents name."""
        address = f"{self._prefix}/{file.name}"
        with _temporary("rank") as path:
            try:
                self._client.download_file(address, path)
            except ObjectMissing:
                raise CheckpointUnreadable(
                    f"{address}, a part of the checkpoint, is not there",
                    "load another checkpoint; if this one was saved or replaced just now, try again",
                ) from None
            # The etag that the daemon tells is its author's word; the one in the contents is that of whoever saved them.
            if (
                path.stat().st_size != file.size_bytes
                or blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest() != file.etag
            ):
                raise CheckpointUnreadable(f"{address} is not what was saved", "load another checkpoint")
            yield np.memmap(path, np.uint8, mode="c")  # torch wants bytes that may be written


# -- addresses and files -----------------------------------------------------------------------------------------------------


def _is_address(checkpoint_id: str | os.PathLike[str]) -> bool:
    bucket, _, prefix = str(checkpoint_id).removeprefix(_SCHEME).partition("/")
    return str(checkpoint_id).startswith(_SCHEME) and bool(bucket) and bool(prefix.strip("/"))


def _prefix_of(address: str | os.PathLike[str]) -> str:
    if not _is_address(address):
        raise LocalError(f"{str(address)!r} is no place for a checkpoint", f"write it as {_SCHEME}BUCKET/PREFIX")
    return str(address).rstrip("/")


@contextmanager
def _temporary(name: str) -> Iterator[Path]:
    """A file that is gone afterwards. Raises StoreFull or LocalError where its disk fails."""
    try:
        with tempfile.TemporaryDirectory(prefix="ciuic-") as folder:
            yield Path(folder) / name
    except OSError as error:
        kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else LocalError
        what = f"the temporary folder {tempfile.gettempdir()} cannot be used ({error.strerror})"
        raise kind(what, "set TMPDIR to a folder with room for what one rank saves") from None


def _read_contents(client: Client, prefix: str) -> Contents:
    address = f"{prefix}/{CONTENTS}"
    try:
        if client.stat(address)["size_bytes"] > LARGEST_CONTENTS_BYTES:
            raise CheckpointUnreadable(f"{address} is larger than any contents", "load another checkpoint")
        with _temporary("contents") as path:
            client.download_file(address, path)
            return parse_contents(path.read_bytes(), address)
    except ObjectMissing:
        raise ObjectMissing(
            f"there is no checkpoint at {prefix}, or none that was saved to its end",
            f"look for {CONTENTS} in what `ciuic-peer ls {prefix}` shows",
        ) from None


# -- saving ------------------------------------------------------------------------------------------------------------------


def _result(item: WriteItem, stored: _Stored) -> WriteResult:
    return WriteResult(
        index=item.index, size_in_bytes=0 if stored.file is None else _entry_of(item).size_bytes, storage_data=stored
    )


def _plain(item: WriteItem, planner: SavePlanner) -> Any:
    """As JSON. The planner's own bytes would be a pickle."""
    lookup = getattr(planner, "lookup_object", None)
    if lookup is None:
        raise LocalError(f"{type(planner).__name__} does not give {item.index.fqn!r}", "derive it from DefaultSavePlanner")
    try:
        return to_json(lookup(item.index))
    except ValueError as error:
        raise LocalError(
            f"{item.index.fqn!r} cannot be saved: {error}",
            "leave it out of the state, or make it a tensor, a number, a text, or lists and maps of these",
        ) from None


def _dtype_of(item: WriteItem) -> str:
    assert item.tensor_data is not None, "a planner describes each tensor"
    properties = item.tensor_data.properties
    dtype = dtype_name(properties.dtype) if properties.layout == torch.strided else None
    if dtype is None:
        raise LocalError(
            f"tensor {item.index.fqn!r} is {properties.dtype} in {properties.layout}, which has no place in a checkpoint",
            "convert it to a dense tensor of a common dtype",
        )
    return dtype


def _chunk_of(item: WriteItem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and sizes."""
    chunk = item.tensor_data.chunk
    return tuple(chunk.offsets), tuple(chunk.sizes)


def _chunk_count(item: WriteItem) -> int:
    """A tensor that has fewer rows than there are ranks leaves some of them with none."""
    return int(np.prod(_chunk_of(item)[1], dtype=object))


def _entry_of(item: WriteItem) -> Entry:
    """A chunk that is not the whole tensor is named like a slice of it, for whoever looks into the file with other means."""
    offsets, sizes = _chunk_of(item)
    name = item.index.fqn
    if sizes != tuple(item.tensor_data.size):
        name += f"[{','.join(f'{start}:{start + size}' for start, size in zip(offsets, sizes, strict=True))}]"
    return Entry(name, _dtype_of(item), sizes)


def _resolved(item: WriteItem, planner: SavePlanner) -> memoryview:
    tensor, entry = planner.resolve_data(item), _entry_of(item)
    if tuple(tensor.shape) != entry.shape or dtype_name(tensor.dtype) != entry.dtype:
        planned = f"{list(entry.shape)} of {entry.dtype}"
        raise LocalError(
            f"tensor {item.index.fqn!r} is {list(tensor.shape)} of {tensor.dtype}, planned was {planned}",
            "do not change the state while it is saved",
        )
    return bytes_of(tensor)


def _contents_of(metadata: Metadata, results: Sequence[WriteResult]) -> Contents:
    stored: dict[MetadataIndex, _Stored] = {result.index: result.storage_data for result in results}
    files = sorted({each.file for each in stored.values() if each.file is not None}, key=lambda file: file.name)
    index_of = {file: index for index, file in enumerate(files)}

    def tensor_of(name: str, found: TensorStorageMetadata) -> SavedTensor:
        chunks = []
        for chunk in found.chunks:
            where = stored.get(MetadataIndex(name, chunk.offsets))
            if where is not None and where.file is not None and np.prod(chunk.sizes, dtype=object):
                chunks.append(SavedChunk(index_of[where.file], where.start, tuple(chunk.offsets), tuple(chunk.sizes)))
        return SavedTensor(dtype_name(found.properties.dtype) or "", tuple(found.size), tuple(chunks))

    described = metadata.state_dict_metadata.items()
    try:
        return Contents(
            files=tuple(files),
            tensors={name: tensor_of(name, each) for name, each in described if isinstance(each, TensorStorageMetadata)},
            values={
                name: from_json(stored[MetadataIndex(name)].value)
                for name, each in described
                if isinstance(each, BytesStorageMetadata)
            },
            paths=_paths_of(metadata),
        )
    except (ValueError, KeyError) as error:
        raise LocalError(f"what the ranks wrote does not make a checkpoint: {error}", "give all ranks the same state") from None


def _paths_of(metadata: Metadata) -> dict[str, tuple[str | int, ...]] | None:
    """The default planner's; what another one keeps beside is its own and not saved."""
    found = metadata.planner_data
    if not isinstance(found, dict) or not all(isinstance(path, tuple) for path in found.values()):
        return None
    return found


def _readable(contents: Contents, prefix: str) -> bytes:
    """What no reader would take is not written."""
    data = encode_contents(contents)
    parse_contents(data, prefix)
    return data


# -- loading -----------------------------------------------------------------------------------------------------------------


def _metadata_of(tensor: SavedTensor) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in tensor.chunks]
    return TensorStorageMetadata(TensorProperties(dtype=dtype_named(tensor.dtype)), torch.Size(tensor.shape), chunks)


def _by_file(contents: Contents, items: Sequence[ReadItem]) -> dict[int, list[tuple[ReadItem, SavedTensor, SavedChunk]]]:
    """What is wanted of each rank file."""
    names = {item.storage_index.fqn for item in items if item.type == LoadItemType.TENSOR}
    tensors = {name: contents.tensors[name] for name in names}
    chunks = {(name, chunk.offsets): chunk for name, each in tensors.items() for chunk in each.chunks if chunk.count}
    found: dict[int, list[tuple[ReadItem, SavedTensor, SavedChunk]]] = {}
    for item in items:
        if item.type == LoadItemType.TENSOR:
            name = item.storage_index.fqn
            chunk = chunks[name, tuple(item.storage_index.offset)]
            found.setdefault(chunk.file, []).append((item, tensors[name], chunk))
    return found


def _give_value(item: ReadItem, value: Any, planner: LoadPlanner) -> None:
    """A planner takes bytes that it unpickles: these were made here, of plain data, a moment ago."""
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    planner.load_bytes(item, stream)


def _give_tensor(item: ReadItem, chunk: torch.Tensor, planner: LoadPlanner) -> None:
    for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        chunk = chunk.narrow(dimension, start, length)
    target = planner.resolve_tensor(item).detach()
    if target.shape != chunk.shape:
        raise LocalError(f"{item.storage_index.fqn!r} has another shape than was planned", "use a planner that fits the state")
    target.copy_(chunk)
    planner.commit_tensor(item, target)
