"""Large files past the system's cache: the same bytes, whatever their size, their memory, and what the file system can."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from ciuic_p2p.store import files
from ciuic_p2p.store.buffers import BUFFER_BYTES, LEAST_BYTES, take_buffer
from ciuic_p2p.store.direct import open_direct, write_at

BLOCK = 4096
SIZES = [LEAST_BYTES, LEAST_BYTES + 1, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + BLOCK + 1]


def random_bytes(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


def in_aligned_memory(data: bytes) -> memoryview:
    buffer = take_buffer(len(data))
    buffer[:] = data
    return buffer


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("place", [memoryview, in_aligned_memory])
def test_what_is_written_is_read(tmp_path: Path, size_bytes: int, place) -> None:
    data = random_bytes(size_bytes)
    path = files.write_temporary(tmp_path, place(data))
    assert path.read_bytes() == data
    assert files.read_whole(path, size_bytes) == data


def test_what_was_read_is_changed_by_nobody(tmp_path: Path) -> None:
    first, second = (files.write_temporary(tmp_path, memoryview(random_bytes(size))) for size in SIZES[:2])
    data = files.read_whole(first, BUFFER_BYTES)
    assert files.read_whole(second, BUFFER_BYTES) == random_bytes(SIZES[1])
    assert data == random_bytes(SIZES[0])
    assert isinstance(data, memoryview)
    assert data.readonly


def test_a_file_that_others_wrote_through_the_cache_is_read_as_they_left_it(tmp_path: Path) -> None:
    path = files.write_temporary(tmp_path, memoryview(random_bytes(BUFFER_BYTES)))
    with path.open("r+b") as stream:
        stream.seek(BLOCK + 7)
        stream.write(b"changed")
    expected = bytearray(random_bytes(BUFFER_BYTES))
    expected[BLOCK + 7 : BLOCK + 14] = b"changed"
    assert files.read_whole(path, BUFFER_BYTES) == expected


def test_a_file_system_without_it_is_used_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_file, asked = os.open, []

    def refuse(path, flags, *mode, **options):
        if flags & os.O_DIRECT:
            asked.append(path)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return open_file(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", refuse)
    path = files.write_temporary(tmp_path, memoryview(random_bytes(BUFFER_BYTES)))
    assert files.read_whole(path, BUFFER_BYTES) == random_bytes(BUFFER_BYTES)
    assert len(asked) == 2


def test_a_disk_with_larger_blocks_is_used_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pwrite", "preadv"):
        monkeypatch.setattr(os, name, refusing_first(getattr(os, name)))
    path = files.write_temporary(tmp_path, memoryview(random_bytes(BUFFER_BYTES)))
    assert files.read_whole(path, BUFFER_BYTES) == random_bytes(BUFFER_BYTES)


def refusing_first(call):
    """As the kernel does for blocks that are too small."""
    calls = []

    def refuse(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return call(*arguments)

    return refuse


@pytest.mark.parametrize("most_bytes", [BLOCK + 777, 16 * BLOCK])
def test_reads_and_writes_that_the_system_cuts_short_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda descriptor, view, offset: write(descriptor, view[:most_bytes], offset))
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, offset: read(descriptor, [buffers[0][:most_bytes]], offset))
    path = files.write_temporary(tmp_path, memoryview(random_bytes(LEAST_BYTES + 99)))
    assert files.read_whole(path, LEAST_BYTES + 99) == random_bytes(LEAST_BYTES + 99)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="No space left"):
        files.write_temporary(tmp_path, memoryview(random_bytes(LEAST_BYTES)))
    assert list(tmp_path.iterdir()) == []


def test_another_file_of_that_name_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        path.rename(tmp_path / "ours")
        path.write_bytes(b"of somebody else")
        direct = open_direct(path, os.O_WRONLY, descriptor)
        assert direct is None
        write_at(descriptor, direct, memoryview(random_bytes(LEAST_BYTES)))
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"of somebody else"
    assert (tmp_path / "ours").read_bytes() == random_bytes(LEAST_BYTES)


@pytest.mark.parametrize("offset", [0, BLOCK, 1000])
def test_pieces_of_a_file_do_not_touch_their_neighbours(tmp_path: Path, offset: int) -> None:
    before, piece = bytearray(random_bytes(3 * LEAST_BYTES)), random_bytes(LEAST_BYTES + 5)
    path = tmp_path / "file"
    path.write_bytes(before)
    descriptor = os.open(path, os.O_RDWR)
    direct = open_direct(path, os.O_WRONLY, descriptor)
    try:
        write_at(descriptor, direct, memoryview(piece), offset)
    finally:
        os.close(descriptor)
        if direct is not None:
            os.close(direct)
    before[offset : offset + len(piece)] = piece
    assert path.read_bytes() == before
