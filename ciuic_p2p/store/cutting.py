"""A stream of bytes in pieces of any size, cut into pieces of one size. Knows neither shards nor hashes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

from ciuic_p2p.store.buffers import take_buffer

Source = Iterable[bytes | memoryview] | BinaryIO
"""A binary file, read from where it stands, or anything that gives pieces."""


def rest_of(source: Source) -> int | None:
    """How many bytes a file still has; None where that cannot be known."""
    file = _as_file(source)
    if file is None or not file.seekable():
        return None
    here = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(here)
    return end - here


def cut(source: Source, size_bytes: int) -> Iterator[memoryview]:
    """Pieces of size_bytes, but for the last, which is not empty. They stay, whatever `source` does with its own memory."""
    file = _as_file(source)
    return _cut_pieces(source, size_bytes) if file is None else _cut_file(file, size_bytes)


def _cut_file(file: BinaryIO, size_bytes: int) -> Iterator[memoryview]:
    while True:
        buffer = take_buffer(size_bytes)
        filled = _fill(buffer, file)
        if filled:
            yield buffer[:filled]
        if filled < size_bytes:
            return


def _fill(buffer: memoryview, file: BinaryIO) -> int:
    """How many bytes it still had, the buffer's size at most."""
    filled = 0
    while filled < len(buffer):
        count = _read_into(buffer[filled:], file)
        if count == 0:
            break
        filled += count
    return filled


def _read_into(buffer: memoryview, file: BinaryIO) -> int:
    if hasattr(file, "readinto"):
        return int(file.readinto(buffer))
    piece = file.read(len(buffer))
    buffer[: len(piece)] = piece
    return len(piece)


def _cut_pieces(pieces: Iterable[bytes | memoryview], size_bytes: int) -> Iterator[memoryview]:
    gathered, filled = memoryview(b""), 0
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        if isinstance(piece, bytes) and not filled:  # Nobody can change these, so they need not be copied.
            while len(rest) >= size_bytes:
                yield rest[:size_bytes]
                rest = rest[size_bytes:]
        while len(rest):
            gathered = gathered if filled else take_buffer(size_bytes)
            taken = rest[: size_bytes - filled]
            gathered[filled : filled + len(taken)] = taken
            filled, rest = filled + len(taken), rest[len(taken) :]
            if filled == size_bytes:
                yield gathered
                gathered, filled = memoryview(b""), 0
    if filled:
        yield gathered[:filled]


def _as_file(source: Source) -> BinaryIO | None:
    """A file is iterable too, by lines, which is not what is wanted."""
    return cast(BinaryIO, source) if hasattr(source, "read") else None
