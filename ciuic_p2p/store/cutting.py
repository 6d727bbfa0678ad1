"""A stream of bytes in pieces of any size, cut into pieces of one size. Knows neither shards nor hashes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

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
    gathered = bytearray()
    for piece in _pieces(source, size_bytes):
        rest = memoryview(piece).cast("B")
        if isinstance(piece, bytes) and not gathered:  # Nobody can change these, so they need not be copied.
            while len(rest) >= size_bytes:
                yield rest[:size_bytes]
                rest = rest[size_bytes:]
        while len(rest):
            taken = rest[: size_bytes - len(gathered)]
            gathered += taken
            rest = rest[len(taken) :]
            if len(gathered) == size_bytes:
                yield memoryview(gathered)
                gathered = bytearray()
    if gathered:
        yield memoryview(gathered)


def _pieces(source: Source, size_bytes: int) -> Iterator[bytes | memoryview]:
    file = _as_file(source)
    if file is None:
        yield from source
        return
    while piece := file.read(size_bytes):
        yield piece


def _as_file(source: Source) -> BinaryIO | None:
    """A file is iterable too, by lines, which is not what is wanted."""
    return cast(BinaryIO, source) if hasattr(source, "read") else None
