"""`ciuic://` as a file system for fsspec, so that pandas, datasets and others read and write objects. Knows no peers.

An object is fetched whole into a temporary file when it is opened, and put whole when it is closed: it is there with all its
bytes or not at all. Folders exist while something is in them.
"""

from __future__ import annotations

import io
import os
import tempfile
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from ciuic_p2p.errors import ObjectMissing
from ciuic_p2p.train.client import Client


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
        rows: dict[str, dict[str, Any]] = {}
        for row in self._client.list(self._address(path)):
            name = row["address"].removeprefix("ciuic://")
            if name == path:
                rows[name] = _file(name, row)
            elif not path or name.startswith(f"{path}/"):
                start = len(path) + 1 if path else 0
                child, slash, _rest = name[start:].partition("/")
                inside = name[:start] + child
                rows.setdefault(inside, _folder(inside) if slash else _file(inside, row))
        if not rows and path:
            raise FileNotFoundError(path)
        return [rows[name] if detail else name for name in sorted(rows)]

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

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.IOBase:
        if mode == "rb":
            return self._fetched(path)
        if mode in ("wb", "xb", "ab"):
            if mode == "xb" and self.exists(path):
                raise FileExistsError(path)
            return _Written(self, path, self._fetched(path) if mode == "ab" and self.exists(path) else None)
        raise ValueError(f"mode {mode!r} is not supported; objects are read or written, not both")

    def _fetched(self, path: str) -> io.BufferedReader:
        """A file without a name, which goes when it is closed."""
        with tempfile.TemporaryDirectory(prefix="ciuic-") as folder:
            target = os.path.join(folder, "object")
            self.get_file(path, target)
            return open(target, "rb")

    def get_file(self, rpath: str, lpath: Any, **options: Any) -> None:
        """Raises FileNotFoundError."""
        if not isinstance(lpath, str | os.PathLike):
            super().get_file(rpath, lpath, **options)
            return
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        try:
            self._client.download_file(self._address(rpath), lpath)
        except ObjectMissing:
            raise FileNotFoundError(rpath) from None

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        if not os.path.isdir(lpath):
            self._client.upload_file(lpath, self._address(rpath))

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


class _Written(io.FileIO):
    """A temporary file that becomes an object when it is closed; not when what writes it fails."""

    def __init__(self, fs: CiuicFileSystem, path: str, before: io.BufferedReader | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ciuic-")
        self._target, self._fs = path, fs
        self._here = os.path.join(self._folder.name, "object")
        super().__init__(self._here, "wb")
        if before is not None:
            with before:
                while piece := before.read(1 << 20):
                    self.write(piece)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            self._fs.put_file(self._here, self._target)
        finally:
            self._folder.cleanup()

    def __del__(self) -> None:
        """Nobody closed it: what is there may be half of what was meant."""
        if not self.closed:
            super().close()
            self._folder.cleanup()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None and not self.closed:
            super().close()
            self._folder.cleanup()
        else:
            self.close()


def _file(name: str, row: dict[str, Any]) -> dict[str, Any]:
    created = datetime.fromtimestamp(min(row["created_at_ms"] / 1000, 253_402_300_799), UTC)
    return {"name": name, "size": row["size_bytes"], "type": "file", "etag": row["etag"], "created": created}


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}
