"""A splice: what comes from one of two connections goes out on the other, both ways, until one of them ends.

The bytes do not pass through this process where the kernel moves them (splice(2), Linux); no more is taken from one side than
the other has room for. Refuses to know whose connections they are and what the bytes mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial

from ciuic_p2p.net.tcpinfo import prepare_for_bulk

PIECE_BYTES = 256 << 10
"""Taken from one side at a time, and what one direction holds at most; a loop that carries many is not held up by one."""
_PARTING_S = 3.0
"""After one direction has ended in order, so long the other may go on: it carries the answer to a goodbye."""
_HAS_SPLICE = hasattr(os, "splice")
_FILES = 6
"""Open files of one splice: two sockets and the two ends of two pipes."""
_SHARE_OF_FILES = 0.25


def most_splices() -> int:
    """At once, so that the others' connections leave this process files enough for its own."""
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most_files == resource.RLIM_INFINITY else int(most_files * _SHARE_OF_FILES / _FILES)


class Allowance:
    """What all splices together may carry: pieces leave one after the other at that rate, whoever's they are."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.most_mbps: float | None = None
        """None: as fast as they can."""
        self._clock = clock
        self._next_at_s = clock()

    def book(self, size_bytes: int) -> float:
        """Seconds to wait before a piece of this size may leave."""
        now = self._clock()
        if self.most_mbps is None:
            self._next_at_s = now
            return 0.0
        wait_s = max(0.0, self._next_at_s - now)
        self._next_at_s = max(self._next_at_s, now) + size_bytes / (125_000 * self.most_mbps)
        return wait_s


async def splice(one: socket.socket, other: socket.socket, allowance: Allowance, carried: Callable[[int], None]) -> None:
    """Returns when both directions have ended, or one broke; closes neither. `carried` is told of each piece."""
    for connection in (one, other):
        connection.setblocking(False)
        prepare_for_bulk(connection)
    directions = [
        asyncio.ensure_future(_carry(source, target, allowance, carried)) for source, target in ((one, other), (other, one))
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        if not any(each.done() and each.exception() for each in directions):
            await asyncio.wait(directions, timeout=_PARTING_S)
    finally:
        for each in directions:
            each.cancel()
        for outcome in await asyncio.gather(*directions, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, OSError):
                raise outcome


async def _carry(source: socket.socket, target: socket.socket, allowance: Allowance, carried: Callable[[int], None]) -> None:
    """Until `source` ends; then `target` is told so. Raises OSError."""
    with _Tank() as tank:
        while (held := await tank.fill(source)) > 0:
            await asyncio.sleep(allowance.book(held))  # also for 0 s: others are to have their turn
            await tank.empty(target)
            carried(held)
    with contextlib.suppress(OSError):  # it is closed already
        target.shutdown(socket.SHUT_WR)


class _Tank:
    """Holds a piece between two sockets: a pipe of the kernel's, or memory where there is no splice(2)."""

    def __init__(self) -> None:
        self._pipe = os.pipe() if _HAS_SPLICE else None
        self._memory = b""
        self._held = 0

    def __enter__(self) -> _Tank:
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # the user's pipes hold as much as they may; this one stays at 64 KiB
                fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, PIECE_BYTES)
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._pipe or ():
            os.close(end)

    async def fill(self, source: socket.socket) -> int:
        """The bytes that are held now; 0 at the end of the stream."""
        self._held = await _when_ready(partial(self._take, source), source, reads=True)
        return self._held

    async def empty(self, target: socket.socket) -> None:
        while self._held:
            self._held -= await _when_ready(partial(self._give, target), target, reads=False)

    def _take(self, source: socket.socket) -> int:
        if self._pipe is not None:
            return os.splice(source.fileno(), self._pipe[1], PIECE_BYTES, flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK)
        self._memory = source.recv(PIECE_BYTES)
        return len(self._memory)

    def _give(self, target: socket.socket) -> int:
        if self._pipe is not None:
            return os.splice(self._pipe[0], target.fileno(), self._held, flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK)
        sent = target.send(self._memory)
        self._memory = self._memory[sent:]
        return sent


async def _when_ready(move: Callable[[], int], connection: socket.socket, *, reads: bool) -> int:
    """What `move` returns, as soon as the socket lets it. Raises OSError."""
    while True:
        try:
            return move()
        except BlockingIOError:
            await _until_ready(connection, reads=reads)


async def _until_ready(connection: socket.socket, *, reads: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    add, remove = (loop.add_reader, loop.remove_reader) if reads else (loop.add_writer, loop.remove_writer)
    add(connection, _set, ready)
    try:
        await ready
    finally:
        remove(connection)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
