"""One client's socket in the event loop: bytes and descriptors in, queued bytes out. Knows no messages.

asyncio's transports drop the descriptors that come with bytes, so this reads the raw socket; it runs on asyncio and
uvloop alike.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

_RECEIVE_BYTES = 1 << 18
_DESCRIPTOR_BYTES = array.array("i").itemsize
MOST_WAITING_BYTES = 32 << 20
"""Queued for a client that does not read; more and it is hung up on. Room for two of the largest messages."""
FLUSH_S = 2.0
"""How long a client that is about to be hung up on may take to read why; longer and it is not reading."""


class Stream:
    """Owns the socket. `write` must run as a task for what `send` queues to leave."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting_bytes = 0
        self._broken = False
        self._descriptor: int | None = None

    async def receive(self) -> bytes:
        """Some bytes; none at the end of the stream. A descriptor that came along waits in `take_descriptor`."""
        while True:
            await self._readable()
            try:
                data, ancillary, _, _ = self._connection.recvmsg(
                    _RECEIVE_BYTES, socket.CMSG_SPACE(_DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC
                )
                break
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                return b""
        for descriptor in _descriptors_in(ancillary):
            self._keep_only(descriptor)
        return data

    def take_descriptor(self) -> int | None:
        """The last descriptor that came; the caller closes it."""
        taken, self._descriptor = self._descriptor, None
        return taken

    def send(self, data: bytes) -> None:
        """Queues bytes. A client that lets too many wait is cut off, which `receive` reports as the end."""
        if self._broken:
            return
        if self._waiting_bytes + len(data) > MOST_WAITING_BYTES:
            self._broken = True
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            return
        self._waiting_bytes += len(data)
        self._outgoing.put_nowait(data)

    async def write(self) -> None:
        """Sends what is queued; returns when the client is gone."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                data = await self._outgoing.get()
                await loop.sock_sendall(self._connection, data)
                self._waiting_bytes -= len(data)
                self._outgoing.task_done()
        self._broken = True
        self._outgoing.task_done()
        while not self._outgoing.empty():
            self._outgoing.get_nowait()
            self._outgoing.task_done()

    async def flush(self) -> None:
        """Returns when all is sent, or the client does not read. `write` must still run."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._outgoing.join()

    def close(self) -> None:
        self._broken = True
        self._keep_only(None)
        self._connection.close()

    def _keep_only(self, descriptor: int | None) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._connection, _finish, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._connection)


def _finish(ready: asyncio.Future[None]) -> None:
    if not ready.done():  # the loop may call once more before the reader is removed
        ready.set_result(None)


def _descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> Iterator[int]:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % _DESCRIPTOR_BYTES
            yield from array.array("i", data[:whole])
