"""What lies in a checkpoint of torch.distributed.checkpoint: which tensors, in which chunks, where in which rank file. Pure.

It comes from other peers: whatever the bytes are, `parse_contents` gives contents that hold together, or raises
CheckpointUnreadable. A field is checked where it is constructed. Knows neither torch nor where files are kept.

    {"format": 1,
     "files": [[name, size_bytes, etag], …],
     "tensors": {name: [dtype, shape, [[file, start, offsets, sizes], …]], …},
     "values": {name: plain data, …},
     "paths": {name: [key, …], …} or null}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ciuic_p2p.errors import CheckpointUnreadable, LocalError
from ciuic_p2p.train.boxes import check_filled
from ciuic_p2p.train.plain_data import dump_json, from_json, load_json, to_json
from ciuic_p2p.train.tensor_bytes import ITEM_BYTES

FORMAT = 1
LARGEST_CONTENTS_BYTES = 64 << 20
"""Half a million chunks."""
LARGEST_INTEGER = (1 << 63) - 1
MOST_DIMENSIONS = 64
"""As torch has it."""
MOST_ENTRIES = 1_000_000
"""Of a list in the state: whoever builds the state from the paths makes room up to the largest index."""
_FILE_NAME = re.compile(r"rank-[0-9]{5,10}-[0-9a-f]{16}\.safetensors")
_ETAG = re.compile(r"[0-9a-f]{64}")


def file_name(rank: int, token: str) -> str:
    """token: 16 hexadecimal digits of no other save, so that a save writes over no file of an earlier one."""
    return f"rank-{rank:05d}-{token}.safetensors"


@dataclass(frozen=True, slots=True)
class RankFile:
    """What one rank wrote: an object beside the contents. Raises ValueError at construction, as all below."""

    name: str
    size_bytes: int
    etag: str
    """BLAKE3 of its bytes."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _FILE_NAME.fullmatch(self.name):
            raise ValueError("the name of a rank file is none")
        _check_whole(self.size_bytes)
        if not isinstance(self.etag, str) or not _ETAG.fullmatch(self.etag):
            raise ValueError(f"{self.name} has no etag")


@dataclass(frozen=True, slots=True)
class SavedChunk:
    """A box of a tensor, in row-major order."""

    file: int
    """Index among the files."""
    start: int
    """Of its bytes in the file."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        for number in (self.file, self.start, *self.offsets, *self.sizes):
            _check_whole(number)

    @property
    def count(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """Its chunks fill it: each value is in exactly one."""

    dtype: str
    """As safetensors calls it."""
    shape: tuple[int, ...]
    chunks: tuple[SavedChunk, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in ITEM_BYTES:
            raise ValueError("it has no known dtype")
        if len(self.shape) > MOST_DIMENSIONS:
            raise ValueError(f"it has more than {MOST_DIMENSIONS} dimensions")
        for size in self.shape:
            _check_whole(size)
        check_filled(self.shape, [(chunk.offsets, chunk.sizes) for chunk in self.chunks])

    def bytes_of(self, chunk: SavedChunk) -> int:
        return chunk.count * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Contents:
    """Of one checkpoint. Each chunk's bytes are within its file, and no other chunk's."""

    files: tuple[RankFile, ...]
    tensors: Mapping[str, SavedTensor]
    values: Mapping[str, Any]
    """What is no tensor."""
    paths: Mapping[str, tuple[str | int, ...]] | None
    """The keys that lead to each in the nested state, where a planner has flattened it."""

    def __post_init__(self) -> None:
        if len({file.name for file in self.files}) != len(self.files):
            raise ValueError("a rank file is there twice")
        if self.tensors.keys() & self.values.keys():
            raise ValueError("a tensor and a value have the same name")
        self._check_bytes()
        for name, path in (self.paths or {}).items():
            if name not in self.tensors and name not in self.values:
                raise ValueError("there is a path to nothing")
            if ".".join(map(str, path)) != name:
                raise ValueError("a path does not make its name")

    def _check_bytes(self) -> None:
        taken: list[list[tuple[int, int]]] = [[] for _ in self.files]
        for tensor in self.tensors.values():
            for chunk in tensor.chunks:
                if chunk.file >= len(self.files):
                    raise ValueError("a chunk is in a file that is not there")
                if chunk.start % ITEM_BYTES[tensor.dtype]:
                    raise ValueError("a chunk is not aligned to its values")
                if chunk.count:
                    taken[chunk.file].append((chunk.start, chunk.start + tensor.bytes_of(chunk)))
        for file, ranges in zip(self.files, taken, strict=True):
            end = 0
            for start, stop in sorted(ranges):
                if start < end:
                    raise ValueError(f"two chunks share bytes of {file.name}")
                end = stop
            if end > file.size_bytes:
                raise ValueError(f"a chunk reaches beyond the end of {file.name}")


def encode_contents(contents: Contents) -> bytes:
    """Raises LocalError for more than a reader takes."""
    tensors = {
        name: [one.dtype, one.shape, [[chunk.file, chunk.start, chunk.offsets, chunk.sizes] for chunk in one.chunks]]
        for name, one in contents.tensors.items()
    }
    data = dump_json(
        {
            "format": FORMAT,
            "files": [[file.name, file.size_bytes, file.etag] for file in contents.files],
            "tensors": tensors,
            "values": {name: to_json(value) for name, value in contents.values.items()},
            "paths": contents.paths,
        }
    )
    if len(data) > LARGEST_CONTENTS_BYTES:
        raise LocalError(
            f"the checkpoint's contents are {len(data)} bytes, at most {LARGEST_CONTENTS_BYTES} are allowed",
            "save large values as tensors, or in fewer chunks",
        )
    return data


def parse_contents(data: bytes, where: str) -> Contents:
    """where: named in the error. Raises CheckpointUnreadable."""
    try:
        if len(data) > LARGEST_CONTENTS_BYTES:
            raise ValueError(f"it is larger than {LARGEST_CONTENTS_BYTES} bytes")
        return _contents_from(load_json(data))
    except ValueError as error:
        why = "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise CheckpointUnreadable(f"{where} does not describe a checkpoint: {why}", "load another checkpoint") from None


def _contents_from(found: Any) -> Contents:
    fields = ("format", "files", "tensors", "values", "paths")
    if not isinstance(found, dict) or found.get("format") != FORMAT or type(found["format"]) is not int:
        raise ValueError("it is not of a format that this version knows")
    if found.keys() != set(fields):
        raise ValueError(f"its fields are not {', '.join(fields)}")
    paths = found["paths"]
    return Contents(
        files=tuple(RankFile(*_list(row, 3)) for row in _list(found["files"])),
        tensors={name: _tensor_from(name, row) for name, row in _map(found["tensors"]).items()},
        values={name: from_json(value) for name, value in _map(found["values"]).items()},
        paths=None if paths is None else {name: _path_from(path) for name, path in _map(paths).items()},
    )


def _tensor_from(name: str, row: Any) -> SavedTensor:
    dtype, shape, chunks = _list(row, 3)
    try:
        return SavedTensor(dtype, tuple(_list(shape)), tuple(_chunk_from(each) for each in _list(chunks)))
    except ValueError as error:
        raise ValueError(f"tensor {name[:100]!r}: {error}") from None


def _chunk_from(row: Any) -> SavedChunk:
    file, start, offsets, sizes = _list(row, 4)
    return SavedChunk(file, start, tuple(_list(offsets, most=MOST_DIMENSIONS)), tuple(_list(sizes, most=MOST_DIMENSIONS)))


def _path_from(path: Any) -> tuple[str | int, ...]:
    for key in _list(path):
        if not isinstance(key, str):
            _check_whole(key, most=MOST_ENTRIES)
    if not path:
        raise ValueError("a path without keys")
    return tuple(path)


def _list(value: Any, length: int | None = None, most: int | None = None) -> list[Any]:
    if not isinstance(value, list) or length not in (None, len(value)) or (most is not None and len(value) > most):
        raise ValueError("a list is not there, or not of its length")
    return value


def _map(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a map is not there")
    return value


def _check_whole(number: Any, most: int = LARGEST_INTEGER) -> None:
    if type(number) is not int or not 0 <= number <= most:
        raise ValueError(f"a number is not a whole one from 0 to {most}")
