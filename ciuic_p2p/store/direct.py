"""Large reads and writes past the system's page cache, where the file system has such a thing; through it where not.

What is stored or fetched is seldom read soon, and copying it into the cache costs more time than all else that is done with it,
and the memory of what the user's process reads. (why: docs/decisions/0022)
"""

from __future__ import annotations

import errno
import os

import numpy as np

from ciuic_p2p.store.buffers import LEAST_BYTES, take_buffer

_BLOCK_BYTES = 4096
"""What offset, length and memory must be multiples of: no disk asks for more."""
_O_DIRECT = getattr(os, "O_DIRECT", 0)
"""Linux has it."""
_REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
"""Of a file system that cannot, or of a disk with larger blocks."""


def open_direct(path: str | os.PathLike[str], flags: int, same_as: int) -> int | None:
    """A second descriptor of an open file, for reads and writes past the cache.

    None where that cannot be, or where another file has that name now."""
    if not _O_DIRECT:
        return None
    try:
        direct = os.open(path, flags | _O_DIRECT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _REFUSALS or isinstance(error, FileNotFoundError):
            return None
        raise
    if os.path.samestat(os.fstat(direct), os.fstat(same_as)):
        return direct
    os.close(direct)
    return None


def write_at(descriptor: int, direct: int | None, data: memoryview, offset: int = 0) -> None:
    """All of it. Both descriptors are of the same file. What has no whole blocks goes through the cache."""
    written = 0
    if direct is not None and len(data) >= LEAST_BYTES and offset % _BLOCK_BYTES == 0:
        data = _aligned(data)
        written = _write_blocks(direct, data[: len(data) // _BLOCK_BYTES * _BLOCK_BYTES], offset)
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], offset + written)


def _write_blocks(direct: int, blocks: memoryview, offset: int) -> int:
    """So many bytes of them were written: all, unless the file system refuses."""
    written = 0
    try:
        while written < len(blocks) and written % _BLOCK_BYTES == 0:
            written += os.pwrite(direct, blocks[written:], offset + written)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
    return written


def read_into(descriptor: int, direct: int | None, buffer: memoryview, size_bytes: int) -> int:
    """The first bytes of a file; how many there were, fewer when it ends earlier. Both descriptors are of the same file.

    buffer: of `take_buffer`, with room for all blocks that have some of these bytes."""
    filled = 0 if direct is None else min(_read_blocks(direct, buffer[: whole_blocks(size_bytes)]), size_bytes)
    while filled < size_bytes:
        count = os.preadv(descriptor, [buffer[filled:size_bytes]], filled)
        if count == 0:
            break
        filled += count
    return filled


def _read_blocks(direct: int, blocks: memoryview) -> int:
    """So many bytes were read: all that the file has, unless the file system refuses."""
    filled = 0
    try:
        while filled < len(blocks) and filled % _BLOCK_BYTES == 0:
            count = os.preadv(direct, [blocks[filled:]], filled)
            if count == 0:
                break
            filled += count
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
    return filled


def whole_blocks(size_bytes: int) -> int:
    """The bytes of all blocks that have some of these."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def _aligned(data: memoryview) -> memoryview:
    """The same bytes where a disk takes them from: copying them there costs less than the cache would."""
    if np.frombuffer(data, np.uint8).ctypes.data % _BLOCK_BYTES == 0:
        return data
    buffer = take_buffer(len(data))
    buffer[:] = data
    return buffer
