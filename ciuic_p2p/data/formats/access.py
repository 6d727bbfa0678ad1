"""Single records of a file of this machine, in any order. Knows nothing of how the file came here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np

from ciuic_p2p.data.formats.arrays import read_header
from ciuic_p2p.data.optional import load
from ciuic_p2p.data.records import Broken, Place, ReadFile, Record

_SCAN_BYTES = 1 << 20


class Opened(ABC):
    """A file that is open. By one thread at a time, and in one process: a forked one would share its place in the file."""

    @abstractmethod
    def read(self, number: int) -> Record:
        """The record of this number, counted from 0. Raises Broken."""

    def close(self) -> None:  # noqa: B027  # what the kernel pages in goes with the last reference
        """Nothing is read afterwards."""


class Streamed(Opened):
    """Of a format that is read from the front, by the offsets at which its records begin."""

    def __init__(self, path: Path, offsets: Any, read_file: ReadFile) -> None:
        """offsets: [records] int64."""
        self._offsets, self._read_file = offsets, read_file
        self._file: IO[bytes] = path.open("rb")

    def read(self, number: int) -> Record:
        self._file.seek(0)
        for found in self._read_file(self._file, Place(record=number, offset=int(self._offsets[number]))):
            return found.record
        raise Broken("the file is shorter than when it was read before")

    def close(self) -> None:
        self._file.close()


def offsets_of(path: Path, read_file: ReadFile) -> Iterator[int]:
    """Where each record begins, by reading all of them. Raises Broken."""
    with path.open("rb", buffering=_SCAN_BYTES) as file:
        begins = 0
        for found in read_file(file, Place()):
            yield begins
            begins = found.offset


class Rows(Opened):
    """Of an array, which the kernel pages in."""

    def __init__(self, path: Path, dtype: str | None, row: int) -> None:
        """dtype: of a raw array, with `row` values in a record; None: it is a .npy. Raises Broken."""
        shape, kind, header_bytes = _layout(path, dtype, row)
        self._rows = np.memmap(path, dtype=kind, mode="r", offset=header_bytes, shape=shape)

    def read(self, number: int) -> Record:
        return {"row": np.array(self._rows[number])}


def count_rows(path: Path, dtype: str | None, row: int) -> int:
    """Without reading them. Raises Broken."""
    return int(_layout(path, dtype, row)[0][0])


def _layout(path: Path, dtype: str | None, row: int) -> tuple[tuple[int, ...], Any, int]:
    size_bytes = path.stat().st_size
    if dtype is not None:
        kind = np.dtype(dtype)
        return (size_bytes // (kind.itemsize * row), row), kind, 0
    with path.open("rb") as file:
        shape, kind, header_bytes = read_header(file)
    row_bytes = int(np.prod(shape[1:], dtype=object)) * kind.itemsize
    if not row_bytes:
        raise Broken("rows of 0 bytes")
    there = (size_bytes - header_bytes) // row_bytes
    if there < shape[0]:
        raise Broken(f"the file ends {shape[0] - there} rows too early")
    return shape, kind, header_bytes


class Batches(Opened):
    """Of an Arrow stream, as `unpack_parquet` wrote it. The kernel pages it in."""

    def __init__(self, path: Path) -> None:
        """Raises Broken, and LocalError without pyarrow."""
        pyarrow = load("pyarrow")
        try:
            with load("pyarrow.ipc").open_stream(pyarrow.memory_map(str(path))) as stream:
                self._batches = list(stream)
        except (pyarrow.ArrowException, OSError) as error:
            raise Broken(f"no Arrow stream: {error}") from error
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))

    def read(self, number: int) -> Record:
        at = bisect_right(self._ends, number)
        first = self._ends[at] - self._batches[at].num_rows
        record: Record = self._batches[at].slice(number - first, 1).to_pylist()[0]
        return record


def unpack_parquet(path: Path, target: Path, columns: tuple[str, ...] | None) -> int:
    """Writes its rows as an Arrow stream, for a row of parquet costs its whole row group. Returns how many there are.

    Raises Broken, and LocalError without pyarrow.
    """
    pyarrow, parquet, ipc = load("pyarrow"), load("pyarrow.parquet"), load("pyarrow.ipc")
    chosen = list(columns) if columns is not None else None
    count = 0
    try:
        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(columns=chosen)
            first = next(batches, None)
            schema = first.schema if first is not None else file.schema_arrow
            with pyarrow.OSFile(str(target), "wb") as written, ipc.new_stream(written, schema) as stream:
                while first is not None:
                    stream.write_batch(first)
                    count += first.num_rows
                    first = next(batches, None)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's; pyarrow has no number for what it cannot read
        raise Broken(f"no parquet: {error}") from error
    return count
