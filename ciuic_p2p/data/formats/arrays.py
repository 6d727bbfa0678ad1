"""Rows of .npy files and of raw arrays, such as tokens written by numpy's memmap. Nothing is ever unpickled."""

from __future__ import annotations

import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from ciuic_p2p.data.formats.streams import go_to
from ciuic_p2p.data.records import LARGEST_RECORD_BYTES, Broken, Place, Read

_BLOCK_BYTES = 1 << 20


def read_npy(stream: IO[bytes], place: Place) -> Iterator[Read]:
    """`row`: each entry along the first axis. Raises Broken; so does an array of Python objects, which would be a pickle."""
    shape, dtype, header_bytes = read_header(stream)
    yield from _rows(stream, place, shape[1:], dtype, header_bytes, shape[0])


def read_raw(stream: IO[bytes], place: Place, dtype: str, row: int) -> Iterator[Read]:
    """`row`: each `row` values of `dtype` from a file without a header; an incomplete last one is no record."""
    yield from _rows(stream, place, (row,), np.dtype(dtype), 0, None)


def map_rows(path: str | Path, dtype: str | None = None, row: int = 1) -> Any:  # [rows, …], read-only
    """A local .npy, or with `dtype` a raw file, as a map-style dataset that the kernel pages in. Raises Broken."""
    try:
        if dtype is None:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        rows = Path(path).stat().st_size // (np.dtype(dtype).itemsize * row)
        return np.memmap(path, dtype=dtype, mode="r", shape=(rows, row))
    except ValueError as error:
        raise Broken(f"no array: {error}") from None


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], Any, int]:
    """Of a .npy: shape, dtype, and the bytes before the first row. Raises Broken."""
    try:
        version = npy.read_magic(stream)
        if version == (1, 0):
            shape, is_fortran, dtype = npy.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, is_fortran, dtype = npy.read_array_header_2_0(stream)
        else:
            raise Broken(f"version {version} of .npy is only for names of fields, which rows do not have here")
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError) as error:  # numpy reads the header as Python
        raise Broken(f"no .npy: {error}") from None
    if dtype.hasobject:
        raise Broken("an array of Python objects is a pickle, which may run code")
    if is_fortran or not shape:
        raise Broken(f"an array of shape {shape} in {'Fortran' if is_fortran else 'C'} order has no rows one after the other")
    return shape, dtype, stream.tell()


def _rows(
    stream: IO[bytes], place: Place, shape: tuple[int, ...], dtype: Any, header_bytes: int, count: int | None
) -> Iterator[Read]:
    """count: rows there must be; None for as many as there are whole."""
    row_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if not 0 < row_bytes <= LARGEST_RECORD_BYTES:
        raise Broken(f"rows of {row_bytes} bytes")
    start = header_bytes + place.record * row_bytes
    go_to(stream, start)
    done, wanted = place.record, max(1, _BLOCK_BYTES // row_bytes)
    while count is None or done < count:
        data = stream.read(wanted * row_bytes)
        whole = len(data) // row_bytes
        if whole == 0:
            break
        rows = np.frombuffer(data[: whole * row_bytes], dtype=dtype).reshape(whole, *shape)
        for row in rows if count is None else rows[: count - done]:
            yield Read({"row": row}, 0)
        done += whole
    if count is not None and done < count:
        raise Broken(f"the file ends {count - done} rows too early")
