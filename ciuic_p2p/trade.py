"""Objects to other file systems, and files from there: what is there already, and equal, is left alone. Knows no peers.

One file after the other, each through a file of this machine where it is not one itself, so that nothing is held in memory and
what arrives is whole and verified. What was broken off goes on when it is called again: what is copied is there then.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ciuic_p2p.core.objects import SCHEME, parse_address
from ciuic_p2p.elsewhere import Elsewhere
from ciuic_p2p.errors import HomeUnusable, LocalError, ObjectMissing
from ciuic_p2p.train.client import Client, Moved

FOLDER = "trade"

Told = Callable[[int], None]
"""Is told how many bytes of one file are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traded:
    """One object and the file that is equal to it now."""

    address: str
    url: str
    size_bytes: int
    copied: bool
    """False: it was there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deal:
    """What may have to be copied."""

    address: str
    file: Elsewhere
    size_bytes: int
    is_there: Callable[[], bool]
    copy: Callable[[Path, Told], dict[str, Any]]
    """By way of a folder of this machine; returns the object's row."""


def export_objects(address: str, url: str, home: Path, *, force: bool = False, moved: Moved | None = None) -> list[Traded]:
    """The object, or all objects below the address, to files under the URL. A URL with "/" at its end is a folder.

    force: also what is there and equal. moved: told how many bytes of all are done. Raises NoDaemon, ObjectMissing,
    ObjectUnreadable, StoreFull, and LocalError that names the file where something else fails.
    """
    _require_bucket(address)
    client, there = Client(home), Elsewhere(url)
    rows = _objects_at(client, address)
    if "" in rows and there.is_folder():
        rows = {rows[""]["address"].rpartition("/")[2]: rows[""]}
    files = {name: there.below(name) if name else there for name in rows}
    known = {} if force else _known(there, files)

    def deal(name: str, row: dict[str, Any]) -> _Deal:
        return _Deal(
            address=row["address"],
            file=files[name],
            size_bytes=row["size_bytes"],
            is_there=lambda: name in known and _is_equal(files[name], known[name], row, _was_exported),
            copy=lambda scratch, told: _export(client, row["address"], files[name], scratch, told),
        )

    return _trade([deal(name, row) for name, row in rows.items()], home, moved)


def import_files(url: str, address: str, home: Path, *, force: bool = False, moved: Moved | None = None) -> list[Traded]:
    """The file, or all files below the URL, as objects below the address. An address with "/" at its end is a folder.

    Raises NoDaemon, TooFewCopies, StoreFull, and LocalError that names the file where something else fails; before anything is
    copied where a name cannot be an object's.
    """
    _require_bucket(address)
    client, there = Client(home), Elsewhere(url)
    known = {row["address"]: row for row in client.list(address.rstrip("/"))}
    infos = there.files()
    if not infos:
        raise LocalError(f"there is no file at {url}", "check the URL")

    def deal(name: str, info: dict[str, Any]) -> _Deal:
        file, target = there.below(name) if name else there, _target(address, name, url)
        _check(target, file.url)
        row = None if force else known.get(target)
        return _Deal(
            address=target,
            file=file,
            size_bytes=info["size"] or 0,
            is_there=lambda: row is not None and _is_equal(file, info, row, _was_imported),
            copy=lambda scratch, told: _import(client, file, target, scratch, told),
        )

    return _trade([deal(name, info) for name, info in infos.items()], home, moved)


def _trade(deals: list[_Deal], home: Path, moved: Moved | None) -> list[Traded]:
    total_bytes = sum(deal.size_bytes for deal in deals)
    ended_bytes = 0
    traded = []

    def told(done_bytes: int) -> None:
        if moved is not None:
            moved(min(ended_bytes + done_bytes, total_bytes), total_bytes)

    with _scratch(home) as scratch:
        for deal in deals:
            is_there = deal.is_there()
            size_bytes = deal.size_bytes if is_there else deal.copy(scratch, told)["size_bytes"]
            ended_bytes += deal.size_bytes
            told(0)
            traded.append(Traded(address=deal.address, url=deal.file.url, size_bytes=size_bytes, copied=not is_there))
    return traded


def _require_bucket(address: str) -> None:
    if not address.startswith(SCHEME) or not address.removeprefix(SCHEME).strip("/"):
        raise LocalError(f"{address!r} names no bucket", f"write it as {SCHEME}BUCKET/PREFIX")


def _objects_at(client: Client, address: str) -> dict[str, dict[str, Any]]:
    """By the part of the address that is below it; "": the object of this very address. Raises ObjectMissing."""
    if not address.endswith("/") and _has_key(address):
        with suppress(ObjectMissing):
            return {"": client.stat(address)}
    folder = address.rstrip("/") + "/"
    rows = {row["address"].removeprefix(folder): row for row in client.list(folder)}
    if not rows:
        raise ObjectMissing(f"there is no object {address}, and none below it", "`ciuic-peer ls` shows those there are")
    return rows


def _known(there: Elsewhere, files: dict[str, Elsewhere]) -> dict[str, dict[str, Any]]:
    """What is said of the files that are there: of one it is asked alone, of many the whole folder is listed."""
    if len(files) > 1:
        return there.files()
    found = {name: file.info() for name, file in files.items()}
    return {name: info for name, info in found.items() if info is not None}


def _target(address: str, name: str, url: str) -> str:
    """The address of the file that has this name below the URL; "": of the URL itself."""
    if name or address.endswith("/") or not _has_key(address):
        return f"{address.rstrip('/')}/{name or url.rstrip('/').rpartition('/')[2]}"
    return address


def _has_key(address: str) -> bool:
    return "/" in address.removeprefix(SCHEME)


def _check(address: str, url: str) -> None:
    try:
        parse_address(address)
    except ValueError as error:
        raise LocalError(f"{url} cannot be the object {address} ({error})", "rename it, or choose another address") from None


# -- what is equal -----------------------------------------------------------------------------------------------------------


def _is_equal(file: Elsewhere, info: dict[str, Any], row: dict[str, Any], was_copied: Callable[[int, int], bool]) -> bool:
    """By size and bytes; where the bytes are not at hand, by size and by which of the two was written later."""
    if info["size"] != row["size_bytes"]:
        return False
    etag = file.etag(info)
    if etag is not None:
        return bool(etag == row["etag"])
    modified_ms = file.modified_ms()
    return modified_ms is not None and was_copied(modified_ms, row["created_at_ms"])


def _was_exported(file_ms: int, object_ms: int) -> bool:
    return file_ms >= object_ms


def _was_imported(file_ms: int, object_ms: int) -> bool:
    """Of a file's time the part of a second may be missing: it could have been written again within that second."""
    return object_ms >= file_ms + 1000


# -- one file ----------------------------------------------------------------------------------------------------------------


def _export(client: Client, address: str, file: Elsewhere, scratch: Path, told: Told) -> dict[str, Any]:
    local = file.local_path()
    if local is not None:
        file.make_room()
        return client.download_file(address, local, lambda done_bytes, _: told(done_bytes))
    copy = scratch / "object"
    row = client.download_file(address, copy, lambda done_bytes, _: told(done_bytes // 2))
    try:
        file.store(copy, lambda done_bytes: told((row["size_bytes"] + done_bytes) // 2))
    finally:
        copy.unlink()
    return row


def _import(client: Client, file: Elsewhere, address: str, scratch: Path, told: Told) -> dict[str, Any]:
    local = file.local_path()
    if local is not None:
        return client.upload_file(local, address, lambda done_bytes, _: told(done_bytes))
    copy = scratch / "file"
    try:
        file.fetch(copy, lambda done_bytes: told(done_bytes // 2))
        return client.upload_file(copy, address, lambda done_bytes, total_bytes: told((total_bytes + done_bytes) // 2))
    finally:
        copy.unlink(missing_ok=True)


@contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """A folder for files on their way. What a command that was killed left is removed first; a locked one is in use."""
    above = home / FOLDER
    try:
        above.mkdir(mode=0o700, exist_ok=True)
        with _locked(above):
            for left in above.iterdir():
                if not _is_in_use(left):
                    shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(dir=above))
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise HomeUnusable(
            f"{above} cannot be used ({error.strerror})", "check its rights, and the space on its disk"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_in_use(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
