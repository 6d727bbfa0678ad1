"""The object store for scripts: files into the swarm and out of it, through the daemon of this machine. Knows no peers.

Each call is a conversation of its own with the daemon, so that one client may be used by several threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciuic_p2p.config import home_from
from ciuic_p2p.errors import LocalError
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import (
    LONGEST_READ_BYTES,
    GetObject,
    ListObjects,
    ObjectRequest,
    PutObject,
    ReadObject,
    RemoveObject,
    StatObject,
    View,
)
from ciuic_p2p.train.checkpoints import SAVE_WAIT_S, load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    import torch

READING_THREADS = 4
"""For a range of several messages: as many as the daemon reads at once."""

Moved = Callable[[int, int], None]
"""Is told how many bytes of how many are done."""


class Client:
    """Objects `ciuic://bucket/key`. Every method raises NoDaemon, naming the command that starts one, when none answers."""

    def __init__(self, home: str | PathLike[str] | None = None) -> None:
        """home: of the daemon; default: CIUIC_HOME, else the user's data folder. Connects to nothing yet."""
        self._home = home_from(None if home is None else Path(home))

    def upload_file(
        self,
        path: str | PathLike[str],
        address: str,
        moved: Moved | None = None,
        *,
        erasure: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """Returns what `stat` does, once enough peers hold the file. Raises LocalError, StoreFull, TooFewCopies.

        erasure: (k, m) instead of copies: any k of k + m peers give the file back, each holds 1/k of it.
        """
        data_shards, parity_shards = erasure or (0, 0)
        request = PutObject(path=_absolute(path), address=address, data_shards=data_shards, parity_shards=parity_shards)
        return dict(self._ask(request, moved))

    def download_file(self, address: str, path: str | PathLike[str], moved: Moved | None = None) -> dict[str, Any]:
        """The file is there whole when this returns, or is as it was before. path: a folder takes the last part of the key.

        Raises ObjectMissing, ObjectUnreadable, LocalError, StoreFull.
        """
        return dict(self._ask(GetObject(address=address, path=_absolute(path)), moved))

    def read_range(self, address: str, offset: int, length: int, etag: str = "") -> bytes:
        """Bytes from the middle: fetches no shards but those that they are in. Fewer where the object ends before.

        etag: of the version to read, as `stat` gave it; else the one that is current at the beginning. All bytes are of one
        version. Raises ObjectMissing, ObjectUnreadable, VersionGone, LocalError.
        """
        if offset < 0 or length < 0:
            raise LocalError(f"{length} bytes from {offset} on", "give numbers that are not negative")
        first = self._read(address, offset, min(length, LONGEST_READ_BYTES), etag)
        stop = min(offset + length, first["size_bytes"])
        offsets = range(offset + LONGEST_READ_BYTES, stop, LONGEST_READ_BYTES)
        if not offsets:
            return bytes(first["data"])

        def read(start: int) -> bytes:
            return bytes(self._read(address, start, min(stop - start, LONGEST_READ_BYTES), first["etag"])["data"])

        with ThreadPoolExecutor(READING_THREADS, thread_name_prefix="read") as pool:
            return b"".join((first["data"], *pool.map(read, offsets)))

    def list(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """The objects whose addresses begin with `prefix`, `ciuic://bucket/…`, in order; all without one."""
        after, more = "", True
        while more:
            page = self._ask(ListObjects(prefix=prefix, after=after))
            yield from page["objects"]
            more = page["more"]
            after = page["objects"][-1]["address"] if page["objects"] else ""

    def stat(self, address: str) -> dict[str, Any]:
        """Size, etag (BLAKE3 of the bytes), copies, versions and conflicts. Raises ObjectMissing."""
        return dict(self._ask(StatObject(address=address)))

    def remove(self, address: str) -> None:
        """Raises ObjectMissing."""
        self._ask(RemoveObject(address=address))

    def save_checkpoint(self, run: str, wait_s: float = SAVE_WAIT_S) -> dict[str, Any]:
        """All peers of the run save the next state that they hold alike; see `train.checkpoints.save_checkpoint`."""
        return save_checkpoint(run, self._home, wait_s)

    def load_checkpoint(self, run: str, model: torch.nn.Module, epoch: int | None = None) -> int:
        """A saved state into the model, in place; returns its epoch. See `train.checkpoints.load_checkpoint`."""
        return load_checkpoint(run, model, self._home, epoch)

    # -- the same for event loops; each takes a thread meanwhile -----------------------------------------------------------

    async def upload_file_async(
        self,
        path: str | PathLike[str],
        address: str,
        moved: Moved | None = None,
        *,
        erasure: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """moved: called in another thread."""
        return await asyncio.to_thread(self.upload_file, path, address, moved, erasure=erasure)

    async def download_file_async(self, address: str, path: str | PathLike[str], moved: Moved | None = None) -> dict[str, Any]:
        """moved: called in another thread."""
        return await asyncio.to_thread(self.download_file, address, path, moved)

    async def save_checkpoint_async(self, run: str, wait_s: float = SAVE_WAIT_S) -> dict[str, Any]:
        return await asyncio.to_thread(self.save_checkpoint, run, wait_s)

    async def load_checkpoint_async(self, run: str, model: torch.nn.Module, epoch: int | None = None) -> int:
        """The model must not be used meanwhile."""
        return await asyncio.to_thread(self.load_checkpoint, run, model, epoch)

    async def read_range_async(self, address: str, offset: int, length: int, etag: str = "") -> bytes:
        return await asyncio.to_thread(self.read_range, address, offset, length, etag)

    async def list_async(self, prefix: str = "") -> tuple[dict[str, Any], ...]:
        return await asyncio.to_thread(lambda: tuple(self.list(prefix)))

    async def stat_async(self, address: str) -> dict[str, Any]:
        return await asyncio.to_thread(self.stat, address)

    async def remove_async(self, address: str) -> None:
        await asyncio.to_thread(self.remove, address)

    def _read(self, address: str, offset: int, length: int, etag: str) -> dict[str, Any]:
        return dict(self._ask(ReadObject(address=address, offset=offset, length=length, etag=etag)))

    def _ask(self, request: ObjectRequest, moved: Moved | None = None) -> Any:
        with open_channel(self._home) as channel:
            return channel.ask(request, View, moved).value


def _absolute(path: str | PathLike[str]) -> str:
    """The daemon has another working folder."""
    return str(Path(path).expanduser().absolute())
