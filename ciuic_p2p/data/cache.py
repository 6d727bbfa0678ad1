"""Files of records on this machine, ready to be read in any order: fetched, unpacked and indexed once.

All lies in one folder, named by a hash of where a file came from and how it is read. What is there is whole: it is written
under another name, and what says that it is whole comes last. Nothing is removed here; who wants the room removes the folder.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import logging
import os
import shutil
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from fsspec.implementations.local import LocalFileSystem

from ciuic_p2p.data.formats.access import (
    Batches,
    Opened,
    Rows,
    Streamed,
    count_rows,
    offsets_of,
    unpack_parquet,
)
from ciuic_p2p.data.formats.streams import decompressed
from ciuic_p2p.data.records import Broken, ReadFile
from ciuic_p2p.data.sources import COMPRESSIONS, Source, translated
from ciuic_p2p.errors import LocalError, Transient

log = logging.getLogger(__name__)

_VERSION = 1
"""Of what is written here."""
_SIGNS_OF_A_VERSION = ("size", "etag", "ETag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")
"""What file systems say of a file that is another when the file is."""
_ARRAYS = ("npy", "raw")
_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What is known of an indexed file, as it is kept beside it."""

    version: int
    count: int
    """Records in it."""
    digest: str
    """BLAKE3 of the file's bytes as they lie at their source; of an object its etag."""
    size_bytes: int
    """Of the file that is read here."""
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """A file of this machine, of which records may be read in any order. May be pickled."""

    name: str
    """At its source."""
    path: Path
    kind: str
    """Its format."""
    count: int
    """Records in it."""
    digest: str
    """BLAKE3 of the file's bytes as they lie at their source."""
    size_bytes: int
    modified_ns: int
    offsets: Path
    """Of its records, where the format needs them."""

    def open(self, source: Source) -> Opened:
        """Raises LocalError."""
        with _complaining(self.name, None):
            if self.kind == "parquet":
                return Batches(self.path)
            if self.kind in _ARRAYS:
                return Rows(self.path, source.dtype if self.kind == "raw" else None, source.row)
            offsets = np.load(self.offsets, mmap_mode="r", allow_pickle=False)
            return Streamed(self.path, offsets, source.reader_of(self.name))

    def is_the_same(self) -> bool:
        """As when it was indexed."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return (found.st_size, found.st_mtime_ns) == (self.size_bytes, self.modified_ns)


class Cache:
    """One folder, made where it is missing. Several processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def index(self, source: Source, name: str, info: dict[str, Any]) -> IndexedFile:
        """info: what the file system says of the file. Raises LocalError; Transient where time may help."""
        source.reader_of(name)
        is_local = isinstance(source.system, LocalFileSystem)
        signs = _signs_of_local(Path(name)) if is_local else _signs_of(info)
        slot = _Slot(self._folder, _key_of(source, name, signs), source, name, is_local=is_local)
        found = slot.look()
        if found is None:
            with self._alone():
                found = slot.look() or slot.fill(signs)
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time writes here; the others then find what it wrote."""
        with _keeping(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class _Slot:
    """The place in the folder for one file, read one way."""

    def __init__(self, folder: Path, key: str, source: Source, name: str, *, is_local: bool) -> None:
        self._folder, self._source, self._name, self._is_local = folder, source, name, is_local
        self._kind = source.kind_of(name)
        self._facts, self._offsets = folder / f"{key}.json", folder / f"{key}.npy"
        self._fetched, self._unpacked = folder / f"{key}.fetched", folder / f"{key}.data"
        self._is_packed = name.endswith(COMPRESSIONS) or self._kind == "parquet"
        self._data = self._unpacked if self._is_packed or not is_local else Path(name)

    def look(self) -> IndexedFile | None:
        """None where there is nothing, or something else than was written here."""
        try:
            facts = _Facts(**json.loads(self._facts.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        found = IndexedFile(
            name=self._name,
            path=self._data,
            kind=self._kind,
            count=facts.count,
            digest=facts.digest,
            size_bytes=facts.size_bytes,
            modified_ns=facts.modified_ns,
            offsets=self._offsets,
        )
        has_offsets = self._kind == "parquet" or self._kind in _ARRAYS or self._offsets.exists()
        return found if facts.version == _VERSION and found.is_the_same() and has_offsets else None

    def fill(self, signs: dict[str, str]) -> IndexedFile:
        """Raises LocalError, Transient."""
        original = Path(self._name) if self._is_local else self._fetch(signs)
        digest = _digest_of(original)
        count = self._take_in(original)
        if self._is_local and _signs_of_local(original) != signs:
            raise LocalError(f"{self._name} was changed while it was read", "try again when nobody writes to it")
        with _keeping(self._folder):
            at = self._data.stat()
            facts = _Facts(version=_VERSION, count=count, digest=digest, size_bytes=at.st_size, modified_ns=at.st_mtime_ns)
            _write(self._facts, json.dumps(asdict(facts)).encode())
        found = self.look()
        if found is None:
            raise LocalError(f"{self._name} was changed while it was read", "try again when nobody writes to it")
        return found

    def _fetch(self, signs: dict[str, str]) -> Path:
        """All of it, into the folder. An object's shards that were fetched before are not fetched again."""
        size_bytes = int(signs.get("size", 0))
        log.warning("dataset.fetching file=%s size_bytes=%d into=%s", self._name, size_bytes, self._folder)
        with translated(f"fetch {self._name}"), _keeping(self._folder):
            _require_room(self._folder, size_bytes)
            self._fetched.unlink(missing_ok=True)
            before = _signs_of(self._source.system.info(self._name))
            self._source.system.get_file(self._name, str(self._fetched))
            after = _signs_of(self._source.system.info(self._name))
        if before != after or before.get("etag") != signs.get("etag"):
            raise Transient(f"{self._name} was changed while it was fetched", "try again")
        return self._fetched

    def _take_in(self, original: Path) -> int:
        """Leaves data and offsets on the disk. Returns the number of records."""
        with _complaining(self._name, None):
            with _keeping(self._folder):
                rows = self._unpack(original)
            if rows is not None:
                return rows
            if self._kind in _ARRAYS:
                return count_rows(self._data, self._source.dtype if self._kind == "raw" else None, self._source.row)
        return self._scan(self._source.reader_of(self._name))

    def _unpack(self, original: Path) -> int | None:
        """Into the folder, where that is needed. Returns the number of records where it is known by then."""
        if self._data == original:
            return None
        rows = None
        if self._kind == "parquet":
            rows = unpack_parquet(original, self._partial, self._source.columns)
        elif self._is_packed:
            _decompress(original, self._partial, self._name)
        else:
            original.replace(self._partial)
        _publish(self._partial, self._unpacked)
        if not self._is_local:
            original.unlink(missing_ok=True)
        return rows

    @property
    def _partial(self) -> Path:
        return self._unpacked.with_suffix(".part")

    def _scan(self, read_file: ReadFile) -> int:
        found = array("q")
        with _complaining(self._name, found):
            found.extend(offsets_of(self._data, read_file))
        with _keeping(self._folder):
            partial = self._offsets.with_suffix(".part")
            with partial.open("wb") as written:
                np.save(written, np.frombuffer(found, dtype=np.int64), allow_pickle=False)
            _publish(partial, self._offsets)
        return len(found)


def _key_of(source: Source, name: str, signs: dict[str, str]) -> str:
    """Another one for another version of the file, and for another way to read it."""
    protocols = source.system.protocol
    where = protocols if isinstance(protocols, str) else "|".join(protocols)
    kind = source.kind_of(name)
    how = {"parquet": source.columns, "raw": (source.dtype, source.row)}.get(kind)
    return blake3(repr([where, name, sorted(signs.items()), kind, how]).encode(errors="surrogatepass")).hexdigest(length=16)


def _signs_of(info: dict[str, Any]) -> dict[str, str]:
    return {sign: str(info[sign]) for sign in _SIGNS_OF_A_VERSION if info.get(sign) is not None}


def _signs_of_local(path: Path) -> dict[str, str]:
    with translated(f"read {path}"):
        at = path.stat()
    return {"size": str(at.st_size), "mtime": str(at.st_mtime_ns), "inode": str(at.st_ino)}


def _digest_of(path: Path) -> str:
    with translated(f"read {path}"):
        return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def _decompress(original: Path, target: Path, name: str) -> None:
    with original.open("rb") as packed, target.open("wb") as written:
        shutil.copyfileobj(decompressed(packed, name), written, _COPY_BYTES)


def _require_room(folder: Path, size_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < size_bytes:
        what = f"{size_bytes:,} bytes do not fit into {folder}, which has {free_bytes:,} left"
        raise LocalError(what, "make room, or name another home")


@contextmanager
def _complaining(name: str, found: array[int] | None) -> Iterator[None]:
    """What formats raise, with the file and the record. found: the records so far, where they are counted."""
    try:
        yield
    except (Broken, EOFError, zlib.error, gzip.BadGzipFile) as error:
        where = name if found is None else f"{name}, after record {len(found)}"
        raise LocalError(f"{where}: {error}", "repair or remove the file") from error
    except FileNotFoundError:
        raise LocalError(f"{name} is not there any more", "make the dataset again") from None


@contextmanager
def _keeping(folder: Path) -> Iterator[None]:
    """What the disk refuses, as LocalError."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        what = f"cannot keep files of records in {folder}: {error.strerror}"
        raise LocalError(what, "make room there, or name another home") from error


def _write(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".part")
    partial.write_bytes(content)
    _publish(partial, path)


def _publish(partial: Path, path: Path) -> None:
    """Under its name, whole, also after a power failure."""
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
