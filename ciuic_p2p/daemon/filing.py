"""Files of this machine ⇄ shards: cut for a put, put together for a get, whole or not at all. Knows no peers.

A file that is got grows under another name beside its target, and is renamed when all its bytes are right and on the disk. What
a get that was broken off left there is looked through first, so that nothing is fetched twice.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from blake3 import blake3

from ciuic_p2p.core.stripes import Stripe
from ciuic_p2p.errors import LocalError, StoreFull
from ciuic_p2p.store.blobs import SHARD_BYTES, BlobManifest, open_shard, write_blob
from ciuic_p2p.store.coding import add_parity, coded_shard_bytes
from ciuic_p2p.store.direct import open_direct, write_at
from ciuic_p2p.store.manifests import ShardRef
from ciuic_p2p.store.shards import ShardStore, shard_id_of
from ciuic_p2p.tensors.erasure import Code
from ciuic_p2p.terms import LARGEST_SHARD_BYTES, ShardId

MOST_OBJECT_SHARDS = 6000
"""Their manifest fits into a version, which fits into one message."""
_READ_BYTES = 8 << 20
_MOST_KEPT_BYTES = 64 << 20
"""Of what came before its turn to be hashed."""


class Cutting:
    """One file that is put into a store."""

    def __init__(
        self,
        store: ShardStore,
        path: Path,
        put: Callable[[ShardId, bytes | memoryview], None],
        code: Code | None = None,
        coded: Callable[[Stripe], None] = lambda _: None,
    ) -> None:
        """put: told of each shard that is durable, and its bytes, which nobody changes; in threads.

        code: also makes parity; coded: told of each stripe then.
        """
        self._store = store
        self._path = path
        self._put = put
        self._code = code
        self._coded = coded
        self._is_wanted = True
        self.size_bytes = 0
        """Of the file; 0 until it was opened."""

    def cut(self) -> BlobManifest:
        """In a thread. Raises LocalError, StoreFull, StoreUnusable."""
        with reading(self._path) as descriptor, open(descriptor, "rb", closefd=False) as file:
            before = os.fstat(descriptor)
            self.size_bytes = before.st_size
            manifest = write_blob(
                cast(ShardStore, self), file, size_bytes=before.st_size, shard_bytes=self._shard_bytes(before.st_size)
            )
            after = os.fstat(descriptor)
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise LocalError(f"{self._path} was changed while it was read", "put it again when nobody writes it")
        if self._code is None:
            return manifest
        return add_parity(cast(ShardStore, self), manifest, self._code, self._coded)

    def _shard_bytes(self, size_bytes: int) -> int:
        """Raises LocalError."""
        if self._code is None:
            return shard_bytes_for(size_bytes)
        with_parity = size_bytes * (self._code.k + self._code.m) // self._code.k
        return coded_shard_bytes(size_bytes, self._code, shard_bytes_for(with_parity))

    def stop(self) -> None:
        """From another thread: nobody wants it any more."""
        self._is_wanted = False

    def put(self, data: bytes | memoryview, name: ShardId | None = None) -> ShardId:
        """What `write_blob` puts, it puts here."""
        if not self._is_wanted:
            raise LocalError(f"the put of {self._path} was given up")
        shard = self._store.put(data, name)
        self._put(shard, data)
        return shard

    def get(self, shard: ShardId) -> bytes | memoryview:
        """What `add_parity` reads."""
        return self._store.get(shard)


def shard_bytes_for(size_bytes: int) -> int:
    """Raises LocalError for a file that is too large for one object."""
    for shard_bytes in (SHARD_BYTES, 2 * SHARD_BYTES, LARGEST_SHARD_BYTES):
        if size_bytes <= shard_bytes * MOST_OBJECT_SHARDS:
            return shard_bytes
    raise LocalError(
        f"a file of {size_bytes} bytes, an object has at most {LARGEST_SHARD_BYTES * MOST_OBJECT_SHARDS}", "split it"
    )


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """A descriptor of a regular file. Raises LocalError that names it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise LocalError(f"{path} cannot be read ({error.strerror})", "check the path, and the rights of the daemon") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LocalError(f"{path} is no file", "give the path of a regular file")
        yield descriptor
    except OSError as error:
        raise LocalError(f"{path} cannot be read ({error.strerror})", "check the disk it is on") from None
    finally:
        os.close(descriptor)


class Partial:
    """A file that is got, while not all of it is here. Every method blocks."""

    def __init__(self, target: Path, manifest: BlobManifest, name: str) -> None:
        """name: of the file, where the target is a folder. Raises LocalError when the target cannot be written, or another
        get writes it."""
        self._target = target
        with self._translated():
            self._target = target = target / name if target.is_dir() else target
        self._manifest = manifest
        self._places: dict[ShardId, list[tuple[int, ShardRef]]] = {}
        offset = 0
        for ref in manifest.shards:
            self._places.setdefault(ref.shard, []).append((offset, ref))
            offset += ref.size_bytes
        growing = blake3(f"{target.name}\0{manifest.blob}".encode()).hexdigest()[:32]
        self._path = target.parent / f".ciuic-{growing}.part"
        self._changed = threading.Condition()
        self._writers = 0
        self._direct: int | None = None
        """Of the same file, past the system's cache."""
        self._descriptor = -1
        self._whole = _WholeHash()
        with self._translated():
            if target.is_dir():
                raise LocalError(f"{target} is a folder", "give the path of a file")
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self._take()
            self._direct = open_direct(self._path, os.O_WRONLY, self._descriptor)

    def found(self) -> set[ShardId]:
        """What an earlier get left. Packed shards are not looked for: their content alone does not tell their name."""
        with self._translated():
            size_bytes = os.fstat(self._descriptor).st_size
            os.ftruncate(self._descriptor, self._manifest.size_bytes)
            return {shard for shard, places in self._places.items() if size_bytes and self._has(shard, places)}

    def take(self, shard: ShardId, data: bytes | memoryview) -> None:
        """Any thread. The bytes are those of the shard. Raises LocalError; MalformedPayload where the manifest lies."""
        places = self._places[shard]
        content = memoryview(open_shard(places[0][1], data))
        with self._translated():
            for offset, _ in places:
                self._write(offset, content)
                self._whole.add(offset, content)

    def give(self, shard: ShardId) -> bytes | None:
        """In a thread: the bytes of a shard that was taken; None for one that was not, and for a packed one."""
        places = self._places.get(shard)
        if places is None or places[0][1].packed:
            return None
        offset, ref = places[0]
        with self._translated():
            data = os.pread(self._descriptor, ref.size_bytes, offset)
        return data if shard_id_of(data) == shard else None

    def finish(self) -> None:
        """The target is there, whole and on the disk. Raises LocalError."""
        with self._translated():
            if self._whole.finish(self._descriptor, self._manifest.size_bytes) != self._manifest.blob:
                raise LocalError(
                    f"the shards of {self._target} are not what its author's manifest says", "ask the author to put it again"
                )
            os.fsync(self._descriptor)
            os.replace(self._path, self._target)
            folder = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def discard(self) -> None:
        with suppress(OSError):
            os.unlink(self._path)

    def close(self) -> None:
        """Waits for writes under way: the descriptor's number may be another file's afterwards."""
        with self._changed:
            open_ones = [descriptor for descriptor in (self._descriptor, self._direct) if descriptor not in (None, -1)]
            self._descriptor, self._direct = -1, None
            self._changed.wait_for(lambda: not self._writers)
        for descriptor in open_ones:
            os.close(descriptor)

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise LocalError(f"{self._target} is being written by another get", "wait for that one") from None

    def _has(self, shard: ShardId, places: list[tuple[int, ShardRef]]) -> bool:
        def is_there(offset: int, ref: ShardRef) -> bool:
            if ref.packed:
                return False
            data = os.pread(self._descriptor, ref.size_bytes, offset)
            is_right = shard_id_of(data) == shard
            if is_right:
                self._whole.add(offset, memoryview(data))
            return is_right

        return all(is_there(offset, ref) for offset, ref in places)

    def _write(self, offset: int, content: memoryview) -> None:
        """Nothing after `close`."""
        with self._changed:
            descriptor, direct = self._descriptor, self._direct
            if descriptor < 0:
                return
            self._writers += 1
        try:
            write_at(descriptor, direct, content, offset)
        finally:
            with self._changed:
                self._writers -= 1
                self._changed.notify_all()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(f"the disk of {self._target} is full", "free some space on it, or get it elsewhere") from None
            raise LocalError(
                f"{self._target} cannot be written ({error.strerror})", "check its folder, and the rights of the daemon"
            ) from None


class _WholeHash:
    """The hash of a file that comes piece by piece, nearly in order: what comes in its turn is not read again. Thread-safe."""

    def __init__(self) -> None:
        self._hash = blake3()
        self._lock = threading.Lock()
        self._hashed_bytes = 0
        self._kept: dict[int, memoryview] = {}
        """Offset → what came before its turn."""
        self._kept_bytes = 0

    def add(self, offset: int, piece: memoryview) -> None:
        """It is in the file. Perhaps not for the first time."""
        with self._lock:
            if offset == self._hashed_bytes:
                self._update(piece)
                self._update_with_kept()
            elif offset > self._hashed_bytes and self._kept_bytes + len(piece) <= _MOST_KEPT_BYTES:
                self._kept_bytes += len(piece) - len(self._kept.get(offset, b""))
                self._kept[offset] = piece

    def finish(self, descriptor: int, size_bytes: int) -> str:
        """All of the file is there."""
        with self._lock:
            while self._hashed_bytes < size_bytes:
                until = min([size_bytes, self._hashed_bytes + _READ_BYTES, *self._kept])
                piece = os.pread(descriptor, until - self._hashed_bytes, self._hashed_bytes)
                if not piece:
                    break
                self._update(memoryview(piece))
                self._update_with_kept()
            return self._hash.hexdigest()

    def _update(self, piece: memoryview) -> None:
        self._hash.update(piece)
        self._hashed_bytes += len(piece)

    def _update_with_kept(self) -> None:
        """A piece whose beginning was hashed meanwhile is left out."""
        while (piece := self._kept.pop(self._hashed_bytes, None)) is not None:
            self._kept_bytes -= len(piece)
            self._update(piece)
