"""The exchange: one float32 vector in memory that the trainer and its daemon share, passed as a descriptor over the socket.

A memfd, because containers cap /dev/shm. It is sealed against any change of size, so that neither side can make the
other's reads fault. Knows nothing of what the values mean.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
import psutil
from numpy.typing import NDArray

from ciuic_p2p.errors import LocalError, MalformedMessage

BYTES_PER_VALUE = 4
_MAKE_ROOM = "free memory or use a smaller model"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NEEDED_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_UNWANTED_SEALS = fcntl.F_SEAL_WRITE | 0x10  # F_SEAL_FUTURE_WRITE, without a name in Python 3.11 (linux/fcntl.h)


class Exchange:
    """The trainer's side: makes the memory and owns its descriptor until `close`."""

    def __init__(self, count: int) -> None:
        """Sets aside `count` float32 values, all 0. Raises LocalError when the machine has no room for them."""
        size_bytes = count * BYTES_PER_VALUE
        _check_room(size_bytes)
        try:
            self.descriptor = os.memfd_create("ciuic-exchange", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise LocalError(f"no shared memory for the exchange: {error}") from None
        try:
            # Allocated now: running out of memory later would be a signal (SIGBUS), not an exception.
            os.posix_fallocate(self.descriptor, 0, size_bytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self.values = _map(self.descriptor, count)
        except OSError as error:
            os.close(self.descriptor)
            raise LocalError(f"no room for an exchange of {size_bytes} bytes: {error}", _MAKE_ROOM) from None

    def close(self) -> None:
        """Closes the descriptor; the memory goes when the last array over it goes."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.values = np.empty(0, np.float32)


def map_received(descriptor: int, count: int) -> NDArray[np.float32]:
    """The daemon's side: [count] float32 over the memory behind a descriptor that came from another process.

    Raises MalformedMessage unless it is exactly that large and can never be made smaller. The caller closes the descriptor.
    """
    if count < 1:
        raise MalformedMessage(None, "an exchange of no values")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size_bytes = os.fstat(descriptor).st_size
    except OSError:
        raise MalformedMessage(None, "the exchange is not memory that can be sealed") from None
    if seals & _NEEDED_SEALS != _NEEDED_SEALS:
        raise MalformedMessage(None, "the exchange is not sealed against shrinking and growing")
    if seals & _UNWANTED_SEALS:
        raise MalformedMessage(None, "the exchange is sealed against writing")
    if size_bytes != count * BYTES_PER_VALUE:
        raise MalformedMessage(None, f"the exchange has {size_bytes} bytes, the layout needs {count * BYTES_PER_VALUE}")
    try:
        return _map(descriptor, count)
    except OSError as error:
        raise MalformedMessage(None, f"the exchange cannot be mapped: {error}") from None


def _check_room(size_bytes: int) -> None:
    """Asking the kernel for more than there is would not fail: it would kill a process, likely this one."""
    available_bytes = psutil.virtual_memory().available
    if size_bytes > available_bytes:
        what = f"no room for an exchange of {size_bytes} bytes: {available_bytes} bytes of memory are available"
        raise LocalError(what, _MAKE_ROOM)


def _map(descriptor: int, count: int) -> NDArray[np.float32]:
    memory = mmap.mmap(descriptor, count * BYTES_PER_VALUE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    return np.frombuffer(memory, np.float32)
