"""Files of other file systems, under any URL that fsspec knows; what they raise becomes errors of ours. Knows no addresses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
from blake3 import blake3
from fsspec.callbacks import Callback
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations

from ciuic_p2p.errors import LocalError, SwarmError
from ciuic_p2p.fs import CiuicFileSystem

OBJECT_STORES = frozenset({"ciuic", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "r2", "hf"})
"""There is nothing to make before a file is put, and what they make for a folder may be a bucket."""

_READ_BYTES = 8 << 20


class Elsewhere:
    """What is under one URL: a file, or a folder with all that is below it. Every method raises LocalError, which names it."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self._translated():
            self._fs, path = fsspec.core.url_to_fs(_expanded(url))
        self._path = path.rstrip("/")
        protocols = self._fs.protocol
        self._protocols = {protocols} if isinstance(protocols, str) else set(protocols)

    def is_folder(self) -> bool:
        with self._translated():
            return self.url.endswith("/") or bool(self._fs.isdir(self._path or "/"))

    def below(self, name: str) -> Elsewhere:
        """The same with another part behind it."""
        other = object.__new__(Elsewhere)
        other.url, other._path = f"{self.url.rstrip('/')}/{name}", f"{self._path}/{name}"
        other._fs, other._protocols = self._fs, self._protocols
        return other

    def files(self) -> dict[str, dict[str, Any]]:
        """What fsspec says of each file, by the path below this URL; "" where the URL is one file. Empty: there is nothing.

        Links to files count as files; links to folders, and what is no file, are left out.
        """
        with self._translated():
            try:
                if self._path and self._fs.isfile(self._path):
                    return {"": self._fs.info(self._path)}
                strictly = {"on_error": "raise"} if isinstance(self._fs, LocalFileSystem) else {}  # else it leaves folders out
                found = self._fs.find(self._path or "/", detail=True, **strictly)
            except FileNotFoundError:
                return {}
        below = {name.removeprefix(self._path).lstrip("/"): info for name, info in sorted(found.items()) if _is_file(info)}
        return {name: info for name, info in below.items() if name}

    # -- one file --------------------------------------------------------------------------------------------------------

    def local_path(self) -> Path | None:
        """Where it is a file of this machine, which needs no copy of its own."""
        return Path(self._path) if isinstance(self._fs, LocalFileSystem) else None

    def info(self) -> dict[str, Any] | None:
        """None where there is no file."""
        with self._translated():
            try:
                info: dict[str, Any] = self._fs.info(self._path)
            except FileNotFoundError:
                return None
        return info if _is_file(info) else None

    def etag(self, info: dict[str, Any]) -> str | None:
        """BLAKE3 of the bytes, where they are at hand; None elsewhere: to fetch them costs as much as to copy them."""
        with self._translated():
            if isinstance(self._fs, CiuicFileSystem):
                return str(info["etag"])
            return self._hash() if isinstance(self._fs, LocalFileSystem | MemoryFileSystem) else None

    def modified_ms(self) -> int | None:
        """Since 1970, by the clock of whoever keeps the file; None where that is not known."""
        with self._translated():
            try:
                modified: datetime = self._fs.modified(self._path)
            except (NotImplementedError, KeyError):
                return None
        return int((modified if modified.tzinfo else modified.replace(tzinfo=UTC)).timestamp() * 1000)

    def fetch(self, file: Path, moved: Callable[[int], None]) -> None:
        """Into a file of this machine."""
        with self._translated():
            self._fs.get_file(self._path, str(file), callback=_Told(moved))

    def store(self, file: Path, moved: Callable[[int], None]) -> None:
        """From a file of this machine; with the folders that it needs."""
        with self._translated():
            if self._protocols.isdisjoint(OBJECT_STORES):
                self._fs.makedirs(self._fs._parent(self._path), exist_ok=True)
            self._fs.put_file(str(file), self._path, callback=_Told(moved))

    def make_room(self) -> None:
        """The folders that a file of this machine needs. Raises LocalError where a folder has its name."""
        path = Path(self._path)
        if path.is_dir():
            raise LocalError(f"{path} is a folder, and an object would be a file there", "choose another place")
        with self._translated():
            path.parent.mkdir(parents=True, exist_ok=True)

    def _hash(self) -> str:
        whole = blake3(max_threads=blake3.AUTO)
        with self._fs.open(self._path, "rb") as file:
            while piece := file.read(_READ_BYTES):
                whole.update(piece)
        return whole.hexdigest()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SwarmError:
            raise
        except ImportError as error:
            raise LocalError(f"{self.url} needs a package that is not installed ({error})", _remedy(self.url)) from None
        except Exception as error:  # file systems of all makers raise what they like, and some of it is no OSError
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise LocalError(f"{self.url} failed ({what})", "check the URL, and the rights to what it names") from error


class _Told(Callback):  # type: ignore[misc]  # fsspec has no types
    """Tells how many bytes are done."""

    def __init__(self, moved: Callable[[int], None]) -> None:
        super().__init__()
        self._moved = moved

    def call(self, hook_name: str | None = None, **_: Any) -> None:
        self._moved(self.value)


def _is_file(info: dict[str, Any]) -> bool:
    return info["type"] == "file" or bool(info.get("islink") and os.path.isfile(info["name"]))


def _expanded(url: str) -> str:
    """A path as a shell would take it."""
    return os.path.expanduser(url) if "://" not in url else url


def _remedy(url: str) -> str:
    """What to install. fsspec names the packages of its own file systems by the scheme."""
    scheme = url.partition("://")[0]
    package = str(known_implementations.get(scheme, {}).get("class", "fsspec")).partition(".")[0]
    return f"`pip install {package}`" if package != "fsspec" else f"`pip install 'fsspec[{scheme}]'`"
