"""The home folder of one daemon: made, checked and locked; files in it are replaced whole. Knows no meaning of any file."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from ciuic_p2p.errors import HomeUnusable

_LOCK = "lock"


class Home:
    """An open home: this process alone uses the folder until `close`."""

    def __init__(self, folder: Path, lock: int) -> None:
        """lock: descriptor of the locked file. Use `Home.open`."""
        self.folder = folder
        self._lock = lock

    @classmethod
    def open(cls, path: Path | str) -> Home:
        """Makes the folder (mode 0700) where there is none. Raises HomeUnusable with the reason and the remedy."""
        folder = Path(path).expanduser().absolute()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(folder, error) from None
        home = cls(folder, lock)
        try:
            home._take()
            home.write("probe", b"\0" * 4096)
            os.unlink(folder / "probe")
        except OSError as error:
            os.close(lock)
            raise _unusable(folder, error) from None
        except HomeUnusable:
            os.close(lock)
            raise
        return home

    @staticmethod
    def holder_of(path: Path | str) -> int | None:
        """The process id of the daemon that uses this home now; None when none does."""
        try:
            descriptor = os.open(Path(path).expanduser() / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_pid(descriptor)
        except OSError:
            return None
        else:
            return None
        finally:
            os.close(descriptor)

    def file(self, name: str) -> Path:
        return self.folder / name

    def write(self, name: str, data: bytes, mode: int = 0o600) -> None:
        """Replaces the file whole or not at all, and only when it is on the disk. Raises HomeUnusable."""
        temporary = self.file(f"{name}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(descriptor)
            os.replace(temporary, self.file(name))
            _sync_folder(self.folder)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _unusable(self.folder, error) from None

    def close(self) -> None:
        """Another daemon may use the folder from now on. The lock file stays: removing it would race with the next daemon."""
        if self._lock >= 0:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> None:
        if not _locked(self._lock):
            holder = _read_pid(self._lock)
            raise HomeUnusable(
                f"another daemon{f' (process {holder})' if holder else ''} uses the home {self.folder}",
                "end it with `ciuic-peer stop`, or choose another folder with --home",
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)


def _locked(descriptor: int) -> bool:
    """Tries a few times within 50 ms, because `Home.holder_of` of another process holds the lock for an instant."""
    for _ in range(5):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return True
    return False


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 20, 0).strip()
    return int(text) if text.isdigit() else None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(folder: Path, error: OSError) -> HomeUnusable:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return HomeUnusable(f"the disk of the home {folder} is full", "free some space, or choose another one with --home")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return HomeUnusable(f"the home {folder} cannot be written", "choose another folder with --home")
        case errno.ENOTDIR | errno.EEXIST:
            return HomeUnusable(f"the home {folder} is not a folder", "choose another one with --home")
    return HomeUnusable(f"the home {folder} cannot be used: {error.strerror}", "choose another folder with --home")
