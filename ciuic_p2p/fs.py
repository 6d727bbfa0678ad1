"""`ciuic://` as a file system for fsspec, so that pandas, datasets and others read and write objects. Knows no peers.

An object is read block by block, all of the version that was current when it was opened. It is put whole when it is closed: it
is there with all its bytes or not at all. Folders exist while something is in them.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.spec import AbstractBufferedFile

from ciuic_p2p.errors import ObjectMissing, VersionGone
from ciuic_p2p.train.client import Client

BLOCK_BYTES = 1 << 20
"""Of one read, by default; a file that is open holds 32 such blocks at most."""
WHOLE_FROM_BYTES = 8 << 20
"""Who wants so much at once gets it past the blocks, in fewer and larger reads."""
LINE_BYTES = 8192
"""Lines are looked for in so many bytes at a time."""


class CiuicFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Options: home, of the daemon; default: CIUIC_HOME, else the user's data folder."""

    protocol = "ciuic"
    cachable = False
    """Of instances: another daemon may answer later. Listings are not cached either."""

    def __init__(self, home: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._client = Client(home)

    # -- looking ---------------------------------------------------------------------------------------------------------

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What is directly in a folder, or the file itself. Raises FileNotFoundError."""
        path = self._strip_protocol(path).rstrip("/")
        rows = self._tree(path, 1)
        if not rows and path:
            raise FileNotFoundError(path)
        return [rows[name] if detail else name for name in sorted(rows)]

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        """All files below, and the folders that they are in; in one listing, where fsspec's own asks folder by folder."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path).rstrip("/")
        rows = self._tree(path, maxdepth)
        if path and any(name != path for name in rows):
            rows.setdefault(path, _folder(path))
        found = {name: rows[name] for name in sorted(rows) if withdirs or rows[name]["type"] == "file"}
        return found if detail else list(found)

    def _tree(self, path: str, depth: int | None) -> dict[str, dict[str, Any]]:
        """The file of this path, and the files and folders below it so many levels deep; None: all."""
        rows: dict[str, dict[str, Any]] = {}
        for row in self._client.list(self._address(path)):
            name = row["address"].removeprefix("ciuic://")
            if name == path:
                rows[name] = _file(name, row)
            elif not path or name.startswith(f"{path}/"):
                levels = name[len(path) + 1 if path else 0 :].split("/")
                above = f"{path}/" if path else ""
                for level in range(1, len(levels) if depth is None else min(depth + 1, len(levels))):
                    inside = above + "/".join(levels[:level])
                    rows.setdefault(inside, _folder(inside))
                if depth is None or len(levels) <= depth:
                    rows[name] = _file(name, row)
        return rows

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Raises FileNotFoundError."""
        path = self._strip_protocol(path).rstrip("/")
        if "/" in path:
            try:
                return _file(path, self._client.stat(self._address(path)))
            except ObjectMissing:
                pass
        if not path or self.ls(path, detail=False):
            return _folder(path)
        raise FileNotFoundError(path)

    def created(self, path: str) -> datetime:
        """By the clock of the peer that wrote it."""
        found: datetime = self.info(path)["created"]
        return found

    modified = created

    def checksum(self, path: str) -> str:
        """BLAKE3 of the bytes."""
        return str(self.info(path)["etag"])

    # -- reading and writing ---------------------------------------------------------------------------------------------

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, autocommit: bool = True, **options: Any
    ) -> io.IOBase:
        """Options for reading: etag, of another version than the current one; cache_type and cache_options are fsspec's."""
        if mode == "rb":
            return _Opened(self, path, block_size, **options)
        if mode in ("wb", "xb", "ab"):
            if mode == "xb" and self.exists(path):
                raise FileExistsError(path)
            written = _Written(self, path, autocommit)
            if mode == "ab" and self.exists(path):
                written.begin_with(path)
            return written
        raise ValueError(f"mode {mode!r} is not supported; objects are read or written, not both")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Fetches no shards but those that the bytes are in. Raises FileNotFoundError."""
        if end is not None and end >= 0 and (start or 0) >= 0:
            return self.read_version(path, start or 0, end)
        found = self.version(path)
        start, end, _step = slice(start, end).indices(found["size"])
        return self.read_version(path, start, end, found["etag"])

    def read_version(self, path: str, start: int, end: int, etag: str = "") -> bytes:
        """Bytes of the version with this etag; "": of the current one. Raises FileNotFoundError, VersionGone."""
        try:
            return self._client.read_range(self._address(path), start, max(end - start, 0), etag)
        except ObjectMissing:
            raise self._no_file(path) from None

    def version(self, path: str, etag: str = "") -> dict[str, Any]:
        """What `info` says, of the version with this etag; "": of the current one. Raises FileNotFoundError, VersionGone."""
        try:
            row = self._client.stat(self._address(path))
        except ObjectMissing:
            raise self._no_file(path) from None
        for each in (row, *row["versions"]):
            if each["etag"] == etag or not etag:
                return _file(path, each)
        raise VersionGone(f"version {etag[:12]}… of {self._address(path)} is not known any more", "open it again")

    def _no_file(self, path: str) -> OSError:
        return IsADirectoryError(path) if self.isdir(path) else FileNotFoundError(path)

    def get_file(
        self, rpath: str, lpath: Any = None, callback: Callback = DEFAULT_CALLBACK, outfile: Any = None, **options: Any
    ) -> None:
        """Whole and verified, from several holders at once. Raises FileNotFoundError."""
        if outfile is not None or not isinstance(lpath, str | os.PathLike):
            super().get_file(rpath, lpath, callback, outfile, **options)
            return
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        try:
            self._client.download_file(self._address(rpath), lpath, _told(callback))
        except ObjectMissing:
            raise FileNotFoundError(rpath) from None

    def put_file(
        self, lpath: str, rpath: str, callback: Callback = DEFAULT_CALLBACK, mode: str = "overwrite", **_: Any
    ) -> None:
        """Raises FileExistsError with mode "create"."""
        if os.path.isdir(lpath):
            return
        if mode == "create" and self.exists(rpath):
            raise FileExistsError(rpath)
        self._client.upload_file(lpath, self._address(rpath), _told(callback))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if self.isdir(path1):
            return
        with tempfile.TemporaryDirectory(prefix="ciuic-") as folder:
            here = os.path.join(folder, "object")
            self.get_file(path1, here)
            self.put_file(here, path2)

    def rm_file(self, path: str) -> None:
        """Raises FileNotFoundError."""
        try:
            self._client.remove(self._address(path))
        except ObjectMissing:
            raise FileNotFoundError(path) from None

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Folders go with what is in them."""
        for each in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
            if not self.isdir(each) and self.exists(each):
                self.rm_file(each)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Nothing: a folder is there once something is in it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing, like mkdir."""

    def rmdir(self, path: str) -> None:
        """Nothing, like mkdir."""

    def _address(self, path: str) -> str:
        stripped = self._strip_protocol(path)
        return f"ciuic://{stripped}" if stripped else ""


class _Opened(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An object that is read by ranges. May be pickled: it stays at its version."""

    DEFAULT_BLOCK_SIZE = BLOCK_BYTES

    def __init__(
        self,
        fs: CiuicFileSystem,
        path: str,
        block_size: int | None,
        *,
        cache_type: str = "blockcache",
        cache_options: dict[str, Any] | None = None,
        etag: str = "",
        **_: Any,
    ) -> None:
        """Raises FileNotFoundError, VersionGone."""
        self._details = fs.version(path, etag)
        self._etag = self._details["etag"]
        super().__init__(
            fs,
            path,
            block_size=block_size,
            cache_type=cache_type,
            cache_options=cache_options,
            size=self._details["size"],
            etag=self._etag,  # which fsspec opens a pickled one with
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.read_version(self.path, start, end, self._etag)
        return data

    def read(self, length: int | None = -1) -> bytes:
        wanted = self.size - self.loc if length is None or length < 0 else min(length, self.size - self.loc)
        if self.closed or wanted < WHOLE_FROM_BYTES:
            few: bytes = super().read(length)
            return few
        data = self._fetch_range(self.loc, self.loc + wanted)
        self.loc += len(data)
        return data

    def readline(self, size: int | None = -1) -> bytes:
        start = self.loc
        line: bytes = self.readuntil(b"\n", LINE_BYTES)
        if size is not None and 0 <= size < len(line):
            line = line[:size]
            self.seek(start + size)
        return line


class _Written(io.FileIO):
    """A temporary file that becomes an object when it is closed, or `commit` is called; not when what writes it fails."""

    def __init__(self, fs: CiuicFileSystem, path: str, autocommit: bool) -> None:
        """autocommit: false where fsspec calls `commit` or `discard`, at the end of a transaction."""
        self._folder = tempfile.TemporaryDirectory(prefix="ciuic-")
        self._target, self._fs, self._autocommit = path, fs, autocommit
        self._is_discarded = False
        self._here = os.path.join(self._folder.name, "object")
        super().__init__(self._here, "wb")

    def begin_with(self, path: str) -> None:
        with self._fs.open(path, "rb") as before:
            while piece := before.read(WHOLE_FROM_BYTES):
                self.write(piece)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._autocommit:
            self.commit()

    def commit(self) -> None:
        try:
            if not self._is_discarded:
                self._fs.put_file(self._here, self._target)
        finally:
            self._folder.cleanup()

    def discard(self) -> None:
        self._is_discarded = True
        super().close()
        self._folder.cleanup()

    def __del__(self) -> None:
        """Nobody closed it: what is there may be half of what was meant."""
        if not self.closed:
            self.discard()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None and not self.closed:
            self.discard()
        else:
            self.close()


def _told(callback: Callback) -> Callable[[int, int], None] | None:
    """How a transfer tells fsspec's callback of its progress."""
    if callback is DEFAULT_CALLBACK:
        return None

    def moved(done_bytes: int, total_bytes: int) -> None:
        callback.set_size(total_bytes)
        callback.absolute_update(done_bytes)

    return moved


def _file(name: str, row: dict[str, Any]) -> dict[str, Any]:
    created = datetime.fromtimestamp(min(row["created_at_ms"] / 1000, 253_402_300_799), UTC)
    return {"name": name, "size": row["size_bytes"], "type": "file", "etag": row["etag"], "created": created}


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}
