"""A store of shards in a folder. A file's name is the hash of its bytes, so there is no index that could be wrong.

    FOLDER/shards/ab/ab12…   a shard, mode 0600, in one of 256 folders by the first two digits of its name
    FOLDER/incoming/…        what is being written; leftovers are removed at the next start
    FOLDER/damaged/…         the newest few that were read and found wrong, for a person to look at
    FOLDER/lock              shared by the processes that have the store open

Knows neither blobs nor peers, and not what is reachable.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from ciuic_p2p.errors import ShardDamaged, ShardMissing
from ciuic_p2p.store import files
from ciuic_p2p.store.grace import Grace
from ciuic_p2p.store.room import Room
from ciuic_p2p.store.shards import GRACE_S, is_shard_id, require_shard_id, shard_bytes, shard_id_of
from ciuic_p2p.terms import LARGEST_SHARD_BYTES, ShardId

RESERVE_BYTES = 1 << 30
"""Default: what the disk keeps free."""

INCOMING = "incoming"

_DAMAGED_KEPT = 4


class DiskStore:
    """A `ShardStore`. Several processes may put and get; one of them at most should collect.

    What another process puts is found by its name at once, but listed and counted only when it is put here too, or at the next
    start.
    """

    def __init__(
        self, folder: Path | str, quota_bytes: int | None = None, reserve_bytes: int = RESERVE_BYTES, grace_s: float = GRACE_S
    ) -> None:
        """Makes the folder where there is none, removes leftovers, and reads names and sizes of what is there.

        quota_bytes: sum of all shards at most; None: only the disk limits it. reserve_bytes: free space, for users without
        privileges, below which nothing is put. grace_s: see `collect`. Raises StoreUnusable and StoreFull.
        """
        self.folder = Path(folder).expanduser().absolute()
        self._shards = self.folder / "shards"
        self._incoming = self.folder / INCOMING
        self._damaged = self.folder / "damaged"
        self._room = Room(f"the store {self.folder}", quota_bytes, reserve_bytes=reserve_bytes, disk=self.folder)
        self._grace = Grace(grace_s)
        self._lock = threading.Lock()
        """Held while a name comes or goes, so that nothing is deleted that was just found to be there."""
        self._sizes: dict[ShardId, int] = {}
        with files.translated(self.folder):
            for below in (self._shards, self._incoming, self._damaged):
                files.make_folder(below)
            self._lock_file = self._share()
            self._rebuild()

    @property
    def used_bytes(self) -> int:
        return self._room.used_bytes

    def put(self, data: bytes | memoryview, name: ShardId | None = None) -> ShardId:
        view = shard_bytes(data)
        shard = shard_id_of(view) if name is None else require_shard_id(name)
        with files.translated(self.folder):
            if not self._renew(shard):
                self._write(shard, view)
        return shard

    def get(self, shard: ShardId) -> bytes | memoryview:
        require_shard_id(shard)
        with files.translated(self.folder):
            return self._read(shard)

    def verify(self, shard: ShardId) -> None:
        """Like `get`, of what is on the disk itself and not in the system's memory. Raises ShardMissing, ShardDamaged."""
        path = self._path(shard)
        with files.translated(self.folder):
            files.forget_cached(path)
            self._read(shard)
            files.forget_cached(path)

    def has(self, shard: ShardId) -> bool:
        path = self._path(shard)
        with files.translated(self.folder):
            return files.size_of(path) is not None

    def size_bytes(self, shard: ShardId) -> int:
        path = self._path(shard)
        with files.translated(self.folder):
            size_bytes = files.size_of(path)
        if size_bytes is None:
            raise ShardMissing(shard)
        return size_bytes

    def shards(self) -> Iterator[ShardId]:
        with self._lock:
            return iter(list(self._sizes))

    def collect(self, keep: Collection[ShardId], now_s: float) -> int:
        with self._lock:
            expired = self._grace.expired(self._sizes, keep, now_s)
        with files.translated(self.folder):
            return sum(map(self._delete_expired, expired))

    def close(self) -> None:
        """The next process that opens the store may remove leftovers again. Nothing else needs an end."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def __enter__(self) -> DiskStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _path(self, shard: ShardId) -> Path:
        """Raises ValueError for a name that is none: nothing else ever becomes part of a path."""
        require_shard_id(shard)
        return self._shards / shard[:2] / shard

    def _read(self, shard: ShardId) -> bytes | memoryview:
        """Raises OSError only where that says nothing of the shard."""
        path = self._path(shard)
        try:
            inode = os.lstat(path).st_ino
            data = files.read_whole(path, LARGEST_SHARD_BYTES)
        except FileNotFoundError:
            self._forget(shard)
            raise ShardMissing(shard) from None
        if data is None or shard_id_of(data) != shard:
            self._set_aside(shard, inode)
            raise ShardDamaged(shard)
        return data

    def _renew(self, shard: ShardId) -> bool:
        """Whether the shard is there, undamaged; then it is durable too, and its grace begins anew."""
        path = self._path(shard)
        try:
            data = self._read(shard)
        except ShardMissing:
            return False
        files.sync_folder(path.parent)  # Whoever put it may be before that point still.
        with self._lock:
            if files.size_of(path) is None:
                return False
            self._room.find(len(data) - self._sizes.get(shard, 0))
            self._sizes[shard] = len(data)
            self._grace.forgive(shard)
        return True

    def _write(self, shard: ShardId, view: memoryview) -> None:
        path = self._path(shard)
        with self._room.arriving(len(view)):
            temporary = files.write_temporary(self._incoming, view)
            try:
                files.make_folder(path.parent)
                self._place(temporary, shard, len(view))
            except BaseException:
                files.remove(temporary)
                raise
        files.sync_folder(path.parent)

    def _place(self, temporary: Path, shard: ShardId, size_bytes: int) -> None:
        with self._lock:
            os.replace(temporary, self._path(shard))
            self._room.leave(self._sizes.get(shard, 0))  # Another thread put the same meanwhile.
            self._sizes[shard] = size_bytes
            self._grace.forgive(shard)

    def _set_aside(self, shard: ShardId, inode: int) -> None:
        """Unless another file has its name by now, which somebody put there meanwhile."""
        path = self._path(shard)
        with self._lock:
            try:
                if os.lstat(path).st_ino != inode:
                    return
                os.replace(path, self._damaged / shard)
            except FileNotFoundError:
                return
            self._drop(shard)
            self._thin_damaged()

    def _thin_damaged(self) -> None:
        with suppress(FileNotFoundError):  # Another process may thin them too.
            newest_first = sorted(self._damaged.iterdir(), key=lambda kept: os.lstat(kept).st_ctime_ns, reverse=True)
            for old in newest_first[_DAMAGED_KEPT:]:
                files.remove(old)

    def _forget(self, shard: ShardId) -> None:
        """Of a file that somebody else removed."""
        with self._lock:
            if files.size_of(self._path(shard)) is None:
                self._drop(shard)

    def _delete_expired(self, shard: ShardId) -> int:
        """The freed bytes; 0 when the shard was put again since it was found to be expired."""
        with self._lock:
            if not self._grace.is_running(shard):
                return 0
            self._path(shard).unlink(missing_ok=True)
            return self._drop(shard)

    def _drop(self, shard: ShardId) -> int:
        size_bytes = self._sizes.pop(shard, 0)
        self._room.leave(size_bytes)
        self._grace.forgive(shard)
        return size_bytes

    def _share(self) -> int:
        """The locked descriptor that tells other processes that the store is open. Who opens it alone removes leftovers."""
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for leftover in self._incoming.iterdir():
                    files.remove(leftover)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _rebuild(self) -> None:
        """Names and sizes of what is there; nothing is read. What is no shard is left alone."""
        for folder in self._shards.iterdir():
            if not folder.is_dir():
                continue
            for name in os.listdir(folder):
                size_bytes = files.size_of(folder / name)
                if is_shard_id(name) and name[:2] == folder.name and size_bytes is not None:
                    self._sizes[ShardId(name)] = size_bytes
        self._room.find(sum(self._sizes.values()))
