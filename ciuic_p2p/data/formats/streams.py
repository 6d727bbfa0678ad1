"""Byte streams: decompression without surprises, going ahead in them, and lines of limited length. Knows no format."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from typing import IO, cast

import zstandard

from ciuic_p2p.data.records import LARGEST_RECORD_BYTES, Broken

_BUFFER_BYTES = 1 << 20
_COMPRESSED_BYTES = 1 << 12
"""Read at once of a zstd stream: a block of 128 KiB may be 4 bytes, so what hostile ones become at once is limited by it."""


def decompressed(stream: IO[bytes], name: str) -> IO[bytes]:
    """By the ending of `name`: `.gz`, `.zst`, or as it is. Raises Broken, or EOFError where the stream ends too early."""
    raw: io.RawIOBase = cast("io.RawIOBase", stream)
    if name.endswith(".zst"):
        raw = ZstdStream(stream)
    elif name.endswith(".gz"):
        raw = cast("io.RawIOBase", gzip.GzipFile(fileobj=stream, mode="rb"))
    return io.BufferedReader(raw, _BUFFER_BYTES)


class ZstdStream(io.RawIOBase):
    """All frames of a zstd file, one after the other. zstandard's own reader takes a torn file for a short one."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._rest = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # Buffer has no length to slice by
        while not self._ready and self._advance():
            pass
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _advance(self) -> bool:
        """Whether the file goes on. Raises Broken, or EOFError inside a frame."""
        data = self._rest or self._source.read(_COMPRESSED_BYTES)
        self._rest = b""
        if not data:
            if self._frame is not None:
                raise EOFError("the file ends inside a zstd frame")
            return False
        if self._frame is None:
            self._frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(data))
        except zstandard.ZstdError as error:
            raise Broken(f"no zstd: {error}") from None
        if self._frame.eof:
            self._rest, self._frame = self._frame.unused_data, None
        return True


def go_to(stream: IO[bytes], offset: int) -> None:
    """From the first byte to `offset`, by a seek where that is possible. Raises Broken past the end."""
    if offset == 0:
        return
    if stream.seekable():
        stream.seek(offset)
        return
    while offset:
        passed = len(stream.read(min(offset, _BUFFER_BYTES)))
        if not passed:
            raise Broken("the file is shorter than when it was read before")
        offset -= passed


def lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    """With their ends. Raises Broken for one that is too long."""
    while line := stream.readline(LARGEST_RECORD_BYTES + 1):
        if len(line) > LARGEST_RECORD_BYTES:
            raise Broken(f"a line is longer than {LARGEST_RECORD_BYTES >> 20} MiB")
        yield line


def text_of(data: bytes) -> str:
    """Raises Broken for what is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Broken(f"no UTF-8: byte {error.start} of {len(data)}") from None
