"""Files that are written whole or not at all, and read with care. Knows neither hashes nor what a file means.

Raises OSError as the system does; `translated` turns that into what the store's callers react to.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ciuic_p2p.errors import StoreFull, StoreUnusable
from ciuic_p2p.store import direct as direct_io
from ciuic_p2p.store.buffers import LEAST_BYTES, take_buffer

_DAMAGE = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ELOOP, errno.ENXIO})
"""What failing disks and file systems say, and what a link or a socket in place of a file does."""


def write_temporary(folder: Path, data: memoryview) -> Path:
    """A new file, on the disk with all its bytes when this returns; when it raises, there is none."""
    path = folder / secrets.token_hex(16)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            if len(data) < LEAST_BYTES:
                _write_all(descriptor, data)
            else:
                _write_large(path, descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        remove(path)
        raise
    return path


def _write_all(descriptor: int, data: memoryview) -> None:
    written = 0
    while written < len(data):
        written += os.write(descriptor, data[written:])


def _write_large(path: Path, descriptor: int, data: memoryview) -> None:
    direct = direct_io.open_direct(path, os.O_WRONLY, descriptor)
    try:
        direct_io.write_at(descriptor, direct, data)
    finally:
        if direct is not None:
            os.close(direct)


def read_whole(path: Path, largest_bytes: int) -> bytes | memoryview | None:
    """None when the disk cannot give the bytes back, or no regular file of at most largest_bytes is what lies there.

    Nobody changes what is returned. Links are not followed. Raises OSError where there is nothing, and where rights, memory or
    descriptors are wanting.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > largest_bytes:
                return None
            if status.st_size < LEAST_BYTES:
                return _read_all(descriptor, status.st_size)
            return _read_large(path, descriptor, status.st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _DAMAGE:
            return None
        raise


def _read_all(descriptor: int, size_bytes: int) -> bytes:
    """Fewer bytes when the file ends earlier."""
    first = os.read(descriptor, size_bytes)
    if len(first) == size_bytes:
        return first  # The common case, without a copy.
    pieces = [first]
    while pieces[-1]:
        pieces.append(os.read(descriptor, size_bytes))
    return b"".join(pieces)[:size_bytes]


def _read_large(path: Path, descriptor: int, size_bytes: int) -> memoryview:
    """Fewer bytes when the file ends earlier."""
    buffer = take_buffer(direct_io.whole_blocks(size_bytes))
    direct = direct_io.open_direct(path, os.O_RDONLY, descriptor)
    try:
        filled = direct_io.read_into(descriptor, direct, buffer, size_bytes)
    finally:
        if direct is not None:
            os.close(direct)
    return buffer[:filled].toreadonly()


def forget_cached(path: Path) -> None:
    """The next read of it asks the disk, and what was read stays in nobody's way. Best effort: not every system can."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def size_of(path: Path) -> int | None:
    """In bytes; None where there is no regular file."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def make_folder(folder: Path) -> None:
    """Makes it (mode 0700) with all above it, durably; one that is there stays as it is."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """The names in it are on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Best effort: what cannot be removed now is a leftover that the next start removes."""
    with suppress(OSError):
        path.unlink()


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Raises StoreFull or StoreUnusable of the store in `folder` in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise _translate(folder, error) from error


def _translate(folder: Path, error: OSError) -> StoreFull | StoreUnusable:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StoreFull(
                f"the disk of the store {folder} is full", "free some space on it, or move the store to another one"
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return StoreUnusable(
                f"the store {folder} cannot be read or written", "give this user the right to, or choose another one"
            )
        case errno.ENOTDIR | errno.EEXIST:
            return StoreUnusable(f"the store {folder} is not a folder", "choose another one")
        case errno.EIO:
            return StoreUnusable(f"the disk of the store {folder} fails: {error.strerror}", "look into the system's log")
    return StoreUnusable(f"the store {folder} cannot be used: {error.strerror}", "choose another folder")
