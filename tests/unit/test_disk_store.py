"""The store on a disk: killed, full, shared, tampered with."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from ciuic_p2p.errors import ShardDamaged, ShardMissing, StoreFull, StoreUnusable
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.shards import shard_id_of

MIB = 1 << 20
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def open_store(folder, **limits):
    return DiskStore(folder, **{"reserve_bytes": 0, **limits})


def file_of(store, shard):
    return store.folder / "shards" / shard[:2] / shard


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def child(script, folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder), *map(str, arguments)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )


def assert_sound(folder, promised):
    """What was promised is there, nothing there is wrong, and nothing is left over."""
    with open_store(folder) as store:
        assert set(promised) <= set(store.shards())
        for shard in store.shards():
            assert shard_id_of(store.get(shard)) == shard
        assert names_in(store.folder / "incoming") == names_in(store.folder / "damaged") == []
        assert store.used_bytes == sum(map(store.size_bytes, store.shards()))


PUT_FOR_EVER = r"""
import itertools, random, sys
from concurrent.futures import ThreadPoolExecutor
from ciuic_p2p.store.disk import DiskStore
store = DiskStore(sys.argv[1], reserve_bytes=0)
def put(number):
    shard = store.put(random.Random(f"{sys.argv[2]} {number}").randbytes(random.Random(number).randrange(300_000)))
    sys.stdout.write(shard + "\n")
    sys.stdout.flush()
for number in itertools.count():
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(put, range(8 * number, 8 * number + 8)))
"""


def test_kill_9_in_the_midst_of_puts_leaves_every_shard_whole_or_absent(tmp_path):
    rng = random.Random(5)
    promised = []
    for life in range(12):
        with child(PUT_FOR_EVER, tmp_path, life % 3) as process:  # Lives repeat, so that some shards are there already.
            lines = [process.stdout.readline() for _ in range(rng.randrange(1, 12))]
            time.sleep(rng.random() * 0.02)
            process.kill()
            lines += process.stdout.readlines()
        assert process.returncode == -signal.SIGKILL
        promised += [line.strip() for line in lines if line.endswith("\n")]
        assert_sound(tmp_path, promised)


DIE_AT_CALL = """
import os, signal, sys
from ciuic_p2p.store.disk import DiskStore
store = DiskStore(sys.argv[1], reserve_bytes=0, grace_s=0.0)
left = int(sys.argv[2])
def deadly(name, call):
    def dying(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            if name == "write":
                call(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return dying
for name in ("open", "write", "fsync", "close", "replace", "mkdir", "unlink", "lstat"):
    setattr(os, name, deadly(name, getattr(os, name)))
print(store.put(b"one" * 1000), flush=True)
print(store.put(b"two" * 1000), flush=True)
print(store.put(b"one" * 1000), flush=True)
store.collect([store.put(b"one" * 1000), store.put(b"two" * 1000)], 0.0)
lost = store.put(b"lost")
store.collect([], 0.0)
store.put(b"one" * 1000), store.put(b"two" * 1000)
store.collect([], 0.0)
"""


def test_kill_9_at_each_system_call_leaves_every_shard_whole_or_absent(tmp_path):
    for call in range(1, 200):
        folder = tmp_path / str(call)
        process = child(DIE_AT_CALL, folder, call)
        promised = process.communicate()[0].split()
        assert_sound(folder, promised)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
    assert 20 < call < 199


LARGE_BYTES = (1 << 20) + 5
DIE_AT_LARGE_CALL = DIE_AT_CALL.partition("print(")[0].replace('"write",', '"write", "pwrite", "preadv",') + (
    f"data = bytes(range(256)) * ({LARGE_BYTES} // 256) + bytes(5)\n"
    "print(store.put(data), flush=True)\n"
    "print(store.put(data), flush=True)\n"
)


def test_kill_9_at_each_system_call_leaves_every_large_shard_whole_or_absent(tmp_path):
    for call in range(1, 100):
        folder = tmp_path / str(call)
        process = child(DIE_AT_LARGE_CALL, folder, call)
        promised = process.communicate()[0].split()
        assert_sound(folder, promised)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
    assert 20 < call < 99


@pytest.mark.parametrize("place", [0, LARGE_BYTES // 2, LARGE_BYTES - 1])
def test_a_flipped_bit_of_a_large_shard_is_found(tmp_path, place):
    with open_store(tmp_path) as store:
        shard = store.put(random.Random(0).randbytes(LARGE_BYTES))
        with open(file_of(store, shard), "r+b") as file:
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(ShardDamaged):
            store.get(shard)
        assert not store.has(shard)


@pytest.mark.parametrize("kept_bytes", [LARGE_BYTES - 1, 1 << 20, 5])
def test_a_large_shard_that_was_cut_short_is_found(tmp_path, kept_bytes):
    with open_store(tmp_path) as store:
        shard = store.put(random.Random(0).randbytes(LARGE_BYTES))
        os.truncate(file_of(store, shard), kept_bytes)
        with pytest.raises(ShardDamaged):
            store.get(shard)


@pytest.mark.parametrize(
    ("call", "number", "reaction"),
    [
        ("pwrite", errno.ENOSPC, StoreFull),
        ("pwrite", errno.EIO, StoreUnusable),
        ("fsync", errno.EIO, StoreUnusable),
        ("open", errno.EMFILE, StoreUnusable),
    ],
)
def test_a_large_put_that_fails_says_why_and_leaves_nothing(tmp_path, monkeypatch, call, number, reaction):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    data = random.Random(0).randbytes(LARGE_BYTES)
    with open_store(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(reaction):
                store.put(data)
        assert names_in(tmp_path / "incoming") == []
        assert store.used_bytes == 0
        assert store.get(store.put(data)) == data


PUT_THESE = """
import random, sys
from ciuic_p2p.store.disk import DiskStore
store = DiskStore(sys.argv[1], reserve_bytes=0)
print("open", flush=True)
sys.stdin.readline()
for number in range(40):
    store.put(random.Random(number).randbytes(50_000))
"""


def test_two_processes_that_put_the_same_at_once_agree(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PUT_THESE, str(tmp_path)],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout.readline() == "open\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate() and process.returncode for process in processes] == [0, 0]
    assert_sound(tmp_path, [shard_id_of(random.Random(number).randbytes(50_000)) for number in range(40)])


def test_what_another_process_is_writing_is_no_leftover(tmp_path):
    with open_store(tmp_path) as first:
        (tmp_path / "incoming" / "half").write_bytes(b"half")
        with open_store(tmp_path):
            assert names_in(tmp_path / "incoming") == ["half"]
        assert not list(first.shards())
    with open_store(tmp_path):
        assert names_in(tmp_path / "incoming") == []


def test_what_another_process_put_or_removed_is_seen(tmp_path):
    with open_store(tmp_path) as one, open_store(tmp_path) as other:
        shard = one.put(b"shard")
        assert other.get(shard) == b"shard"
        assert other.has(shard)
        assert other.size_bytes(shard) == 5
        assert other.put(b"shard") == shard
        assert other.used_bytes == 5
        file_of(one, shard).unlink()
        for store in (one, other):
            assert not store.has(shard)
            with pytest.raises(ShardMissing):
                store.get(shard)
            assert store.used_bytes == 0


def test_a_store_that_starts_again_knows_what_is_there(tmp_path):
    with open_store(tmp_path) as store:
        shards = {store.put(bytes([number]) * number) for number in range(20)}
    with open_store(tmp_path, quota_bytes=190) as store:
        assert set(store.shards()) == shards
        assert store.used_bytes == sum(range(20)) == 190
        with pytest.raises(StoreFull):
            store.put(b"one more")


def test_what_is_no_shard_is_left_alone_and_not_counted(tmp_path):
    with open_store(tmp_path) as store:
        shard = store.put(b"shard")
    prefix = file_of(store, shard).parent
    (prefix / "notes.txt").write_text("of the user")
    (prefix / ("0" * 64 if shard[0] != "0" else "1" * 64)).write_text("in the wrong folder")
    (tmp_path / "shards" / "README").write_text("of the user")
    with open_store(tmp_path) as store:
        assert list(store.shards()) == [shard]
        assert store.used_bytes == 5
        store.collect([], 0.0)
    assert len(names_in(prefix)) == 3


@pytest.mark.parametrize("bit", [0, 7, 4000])
def test_a_flipped_bit_is_found_and_the_file_set_aside(tmp_path, bit):
    with open_store(tmp_path) as store:
        shard = store.put(bytes(1000))
        damaged = bytearray(1000)
        damaged[bit // 8] ^= 1 << bit % 8
        file_of(store, shard).write_bytes(damaged)
        with pytest.raises(ShardDamaged, match="was damaged on the disk and set aside; it must come from another holder"):
            store.get(shard)
        assert (tmp_path / "damaged" / shard).read_bytes() == damaged
        assert store.get(store.put(bytes(1000))) == bytes(1000)


def test_only_the_newest_few_damaged_files_are_kept(tmp_path):
    with open_store(tmp_path) as store:
        for number in range(10):
            shard = store.put(b"%d" % number)
            file_of(store, shard).write_bytes(b"?")
            with pytest.raises(ShardDamaged):
                store.get(shard)
        assert len(names_in(tmp_path / "damaged")) == 4
        assert shard in names_in(tmp_path / "damaged")


def as_link(path):
    path.symlink_to("/etc/passwd")


def as_pipe(path):
    os.mkfifo(path)


def as_folder(path):
    path.mkdir()


def as_huge_file(path):
    with open(path, "wb") as stream:
        stream.truncate(1 << 40)


def as_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # Names of sockets are at most 107 bytes long.
        listener.bind(path.name)


@pytest.mark.parametrize("make", [as_link, as_socket, as_pipe, as_folder, as_huge_file])
def test_what_somebody_put_in_a_shards_place_is_neither_followed_nor_read(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    with open_store(tmp_path) as store:
        shard = store.put(b"shard")
        file_of(store, shard).unlink()
        make(file_of(store, shard))
        with pytest.raises(ShardDamaged):
            store.get(shard)
        assert store.get(store.put(b"shard")) == b"shard"


def test_a_good_file_that_came_meanwhile_is_not_set_aside(tmp_path, monkeypatch):
    """Another thread puts the shard anew between the read of the damaged file and its removal."""
    with open_store(tmp_path) as store:
        shard = store.put(b"shard")
        file_of(store, shard).write_bytes(b"sheep")
        aside = store._set_aside

        def put_first(*arguments):
            monkeypatch.undo()
            store.put(b"shard")
            aside(*arguments)

        monkeypatch.setattr(store, "_set_aside", put_first)
        with pytest.raises(ShardDamaged):
            store.get(shard)
        assert store.get(shard) == b"shard"
        assert store.used_bytes == 5


def test_a_shard_that_is_put_again_while_it_expires_stays(tmp_path, monkeypatch):
    """Another thread finds it there between the decision to delete it and the deletion."""
    with open_store(tmp_path, grace_s=0.0) as store:
        shard = store.put(b"shard")
        store.collect([], 0.0)
        delete = store._delete_expired

        def put_first(expired):
            store.put(b"shard")
            return delete(expired)

        monkeypatch.setattr(store, "_delete_expired", put_first)
        assert store.collect([], 0.0) == 0
        assert store.get(shard) == b"shard"


@pytest.mark.parametrize(
    ("call", "number", "reaction", "says"),
    [
        ("write", errno.ENOSPC, StoreFull, "the disk of the store .* is full; free some space on it"),
        ("fsync", errno.ENOSPC, StoreFull, "is full"),
        ("fsync", errno.EDQUOT, StoreFull, "is full"),
        ("write", errno.EIO, StoreUnusable, "the disk of the store .* fails: Input/output error; look into the system's log"),
        ("fsync", errno.EIO, StoreUnusable, "fails"),
        ("replace", errno.EIO, StoreUnusable, "fails"),
        ("replace", errno.EROFS, StoreUnusable, "cannot be read or written; give this user the right to"),
        ("open", errno.EMFILE, StoreUnusable, "cannot be used: Too many open files"),
    ],
)
def test_a_put_that_fails_says_why_and_leaves_nothing(tmp_path, monkeypatch, call, number, reaction, says):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    with open_store(tmp_path) as store:
        there = store.put(b"there")
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(reaction, match=says):
                store.put(b"other")
        assert names_in(tmp_path / "incoming") == []
        assert list(store.shards()) == [there]
        assert store.used_bytes == 5
        assert store.get(store.put(b"other")) == b"other"


def test_writes_that_the_system_cuts_short_go_on(tmp_path, monkeypatch):
    write, read = os.write, os.read
    with open_store(tmp_path) as store:
        data = random.Random(0).randbytes(10_000)
        monkeypatch.setattr(os, "write", lambda descriptor, view: write(descriptor, view[:777]))
        monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 777)))
        assert store.get(store.put(data)) == data


@pytest.mark.parametrize(
    ("call", "number"), [("open", errno.EMFILE), ("open", errno.ENOMEM), ("open", errno.EACCES), ("lstat", errno.EIO)]
)
def test_a_read_that_fails_for_another_reason_than_damage_sets_nothing_aside(tmp_path, monkeypatch, call, number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    with open_store(tmp_path) as store:
        shard = store.put(b"shard")
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(StoreUnusable):
                store.get(shard)
        assert store.get(shard) == b"shard"


def test_a_disk_that_cannot_read_a_file_has_damaged_it(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with open_store(tmp_path) as store:
        shard = store.put(b"shard")
        with monkeypatch.context() as patch:
            patch.setattr(os, "read", fail)
            with pytest.raises(ShardDamaged):
                store.get(shard)
        assert not store.has(shard)


def test_the_reserve_of_the_disk_is_kept(tmp_path):
    counts = os.statvfs(tmp_path)
    with (
        open_store(tmp_path, reserve_bytes=counts.f_blocks * counts.f_frsize) as store,
        pytest.raises(StoreFull, match=r"are free, .* of which stay in reserve; free some space on it, or lower the reserve"),
    ):
        store.put(b"shard")
    assert names_in(tmp_path / "incoming") == []


def test_the_reserve_counts_what_is_being_put(tmp_path, monkeypatch):
    counts = os.statvfs(tmp_path)
    unit = counts.f_frsize
    like = os.statvfs_result((unit, unit, 100, 10, 10, *counts[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: like)
    with open_store(tmp_path, reserve_bytes=4 * unit) as store:
        with store._room.arriving(2 * unit):
            with pytest.raises(StoreFull):
                store.put(random.Random(1).randbytes(4 * unit + 1))
            store.put(random.Random(1).randbytes(4 * unit))
        store.put(random.Random(2).randbytes(6 * unit))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("needs root to mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(store):
    """Puts shards of 200 kB until nothing more goes in."""
    rng, put = random.Random(0), {}
    try:
        while True:
            data = rng.randbytes(200_000)
            put[store.put(data)] = data
    except StoreFull as error:
        says = str(error)
    assert len(put) > 5
    for shard, data in put.items():
        assert store.get(shard) == data
    assert names_in(store.folder / "incoming") == []
    assert store.used_bytes == 200_000 * len(put)
    return says


def test_a_disk_is_never_filled(small_disk):
    with open_store(small_disk / "store", reserve_bytes=MIB) as store:
        assert "stay in reserve" in fill(store)
    counts = os.statvfs(small_disk)
    assert MIB <= counts.f_bavail * counts.f_frsize < 2 * MIB
    assert_sound(small_disk / "store", [])


def test_a_disk_that_others_fill_in_the_midst_of_a_put_leaves_nothing_torn(small_disk, monkeypatch):
    with open_store(small_disk / "store") as store:
        plenty = os.statvfs("/")
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda _: plenty)
            assert "is full; free some space on it" in fill(store)
        largest = max((path for path in small_disk.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        largest.unlink()
        store.put(random.Random("later").randbytes(100_000))
    assert_sound(small_disk / "store", [])


def test_a_store_that_cannot_be_opened_says_why(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreUnusable, match="is not a folder; choose another one"):
            open_store(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_others_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreUnusable, match="cannot be read or written"):
        open_store(tmp_path / "store")


def test_files_and_folders_are_private(tmp_path):
    with open_store(tmp_path / "some" / "store") as store:
        path = file_of(store, store.put(b"shard"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_nothing_is_kept_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with open_store(tmp_path) as store:
            shard = store.put(b"shard")
            file_of(store, shard).write_bytes(b"?")
            with suppress(ShardDamaged):
                store.get(shard)
        store.close()
    assert len(os.listdir("/proc/self/fd")) == before
