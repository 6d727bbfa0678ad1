"""Memory for shards, aligned to pages and used again as soon as nobody refers to it. Knows neither shards nor files.

Memory that is new costs more than what is done with it: the system clears each page, and under a hypervisor it may have to get
the page first.
"""

from __future__ import annotations

import mmap
import time
import weakref
from collections import deque
from contextlib import suppress

import numpy as np

BUFFER_BYTES = 8 << 20
"""What is kept to be used again; more is asked for rarely."""
LEAST_BYTES = 1 << 20
"""Less is not worth a buffer of its own."""
MOST_IDLE = 24
IDLE_S = 5.0
"""So long idle memory is kept, if `trim` is called."""

_idle: deque[tuple[float, mmap.mmap]] = deque()
"""Since when; the newest last."""


def take_buffer(size_bytes: int) -> memoryview:
    """So many writable bytes, whatever is in them. They are the caller's until no view of them is left."""
    if size_bytes < LEAST_BYTES:
        return memoryview(bytearray(size_bytes))
    memory = _take_idle() if size_bytes <= BUFFER_BYTES else None
    if memory is None:
        memory = _map(max(size_bytes, BUFFER_BYTES))
    owner = np.frombuffer(memory, np.uint8)  # every view refers to it, and so does nothing else
    weakref.finalize(owner, _give_back, memory).atexit = False
    return owner.data[:size_bytes]


def trim() -> None:
    """Gives memory that was idle for IDLE_S back to the system."""
    before_s = time.monotonic() - IDLE_S
    while _idle and _idle[0][0] < before_s:
        try:
            _idle.popleft()
        except IndexError:  # another thread took it
            return


def _take_idle() -> mmap.mmap | None:
    try:
        return _idle.pop()[1]
    except IndexError:
        return None


def _give_back(memory: mmap.mmap) -> None:
    if len(memory) == BUFFER_BYTES and len(_idle) < MOST_IDLE:
        _idle.append((time.monotonic(), memory))


def _map(size_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
