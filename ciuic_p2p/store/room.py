"""How much more a store may take: its quota, and what the disk under it must keep free. Knows no file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ciuic_p2p.errors import StoreFull
from ciuic_p2p.wording import in_bytes


class Room:
    """Counts what is there and what is on its way. Every method may be called from any thread."""

    def __init__(self, whose: str, quota_bytes: int | None, *, reserve_bytes: int = 0, disk: Path | None = None) -> None:
        """whose: subject of the messages. quota_bytes: None for no limit. disk: a folder on the disk that keeps the reserve;
        None: there is none."""
        self._whose = whose
        self._quota_bytes = quota_bytes
        self._reserve_bytes = reserve_bytes
        self._disk = disk
        self._used_bytes = 0
        self._arriving_bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @contextmanager
    def arriving(self, size_bytes: int) -> Iterator[None]:
        """Counts so many bytes as used from now on, unless the body fails. Raises StoreFull, and OSError of statvfs."""
        with self._lock:
            self._require(size_bytes)
            self._used_bytes += size_bytes
            self._arriving_bytes += size_bytes
        try:
            yield
        except BaseException:
            self.leave(size_bytes)
            raise
        finally:
            with self._lock:
                self._arriving_bytes -= size_bytes

    def find(self, size_bytes: int) -> None:
        """Counts what was there without having been put through this object, whatever the quota."""
        with self._lock:
            self._used_bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= size_bytes

    def _require(self, size_bytes: int) -> None:
        if self._quota_bytes is not None and self._used_bytes + size_bytes > self._quota_bytes:
            raise StoreFull(
                f"{self._whose} is full: {in_bytes(self._used_bytes)} of its quota of {in_bytes(self._quota_bytes)} are used",
                "raise its quota, or delete objects that nobody needs",
            )
        if self._disk is not None:
            self._require_reserve(self._disk, size_bytes)

    def _require_reserve(self, disk: Path, size_bytes: int) -> None:
        """What is on its way counts in full, for nobody knows how much of it has reached the disk."""
        counts = os.statvfs(disk)
        free_bytes = counts.f_bavail * counts.f_frsize
        if free_bytes - self._arriving_bytes - size_bytes < self._reserve_bytes:
            raise StoreFull(
                f"the disk of {self._whose} is full: {in_bytes(free_bytes)} are free, {in_bytes(self._reserve_bytes)} of"
                " which stay in reserve",
                "free some space on it, or lower the reserve",
            )
