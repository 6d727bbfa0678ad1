"""A wire:

one byte stream to another machine, a TCP connection or a relayed libp2p stream, before it is known what it is for.

A session turns it into asyncio streams, a lane into a blocking socket. Refuses to know what the bytes mean.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from ciuic_p2p.core.paths import DIRECT, RELAY
from ciuic_p2p.errors import AddressUnusable, PeerUnreachable
from ciuic_p2p.net.tasks import TaskSet

CONNECT_DEADLINE_S = 6.0
_PUMP_BYTES = 1 << 18
_DEAD_PATH_MS = 20_000
"""Unacknowledged data this old ends a connection; the kernel's own limit is about 15 minutes."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire(ABC):
    """Reads exactly what is asked for, so that whoever takes it over misses nothing."""

    path: str
    """As core/paths.py writes it: direct, relayed, or via a third peer."""
    source: str
    """Where it comes from, to limit strangers."""

    @abstractmethod
    async def read_exactly(self, size_bytes: int) -> bytes:
        """Raises PeerUnreachable when the stream ends before."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Raises PeerUnreachable."""

    @abstractmethod
    async def streams(self) -> Streams:
        """The wire must not be used any more by itself."""

    @abstractmethod
    async def blocking_socket(self) -> socket.socket:
        """The wire must not be used any more by itself."""

    @abstractmethod
    def close(self) -> None:
        """At once, unless somebody took the wire over."""


class TcpWire(Wire):
    """A connected TCP socket."""

    path = DIRECT

    def __init__(self, connected: socket.socket, source: str = "") -> None:
        connected.setblocking(False)
        tune(connected)
        self._socket = connected
        self._taken = False
        self.source = source

    async def read_exactly(self, size_bytes: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < size_bytes:
            try:
                piece = await loop.sock_recv(self._socket, size_bytes - len(data))
            except OSError as error:
                raise PeerUnreachable(f"the connection broke ({error})") from error
            if not piece:
                raise PeerUnreachable("the connection was closed")
            data += piece
        return data

    async def write(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError as error:
            raise PeerUnreachable(f"the connection broke ({error})") from error

    async def streams(self) -> Streams:
        self._taken = True
        try:
            return await asyncio.open_connection(sock=self._socket)
        except OSError as error:
            self._socket.close()
            raise PeerUnreachable(f"the connection broke ({error})") from error

    async def blocking_socket(self) -> socket.socket:
        self._taken = True
        self._socket.setblocking(True)
        return self._socket

    def close(self) -> None:
        if not self._taken:
            self._socket.close()


class StreamWire(Wire):
    """A relayed libp2p stream, given as asyncio streams."""

    path = RELAY

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tasks: TaskSet, source: str = "") -> None:
        self._reader = reader
        self._writer = writer
        self._tasks = tasks
        self._taken = False
        self.source = source

    async def read_exactly(self, size_bytes: int) -> bytes:
        try:
            return await self._reader.readexactly(size_bytes)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise PeerUnreachable("the relayed stream was closed") from error

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as error:
            raise PeerUnreachable(f"the relayed stream broke ({error})") from error

    async def streams(self) -> Streams:
        self._taken = True
        return self._reader, self._writer

    async def blocking_socket(self) -> socket.socket:
        """Lanes' threads want a socket: one end of a pair, whose other end is pumped to and from the stream."""
        self._taken = True
        ours, pumped = socket.socketpair()
        try:
            reader, writer = await asyncio.open_connection(sock=pumped)
        except BaseException:  # also when cancelled: nobody else knows of the sockets
            ours.close()
            pumped.close()
            self._writer.transport.abort()
            raise
        inward = self._tasks.spawn(_pump(self._reader, writer))
        outward = self._tasks.spawn(_pump(reader, self._writer))
        outward.add_done_callback(lambda _: inward.cancel())  # the lane is gone; the stream may never end by itself
        return ours

    def close(self) -> None:
        if not self._taken:
            self._writer.transport.abort()


Dial = Callable[[], Awaitable[Wire]]
"""Makes a new wire to the same peer in the same way. Raises Transient, RemoteError."""


async def connect(address: str) -> TcpWire:
    """address: "host:port". Raises PeerUnreachable; AddressUnusable when it is no such thing."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_DEADLINE_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return await _connect_socket(*found[0])
    except (OSError, TimeoutError) as error:
        raise PeerUnreachable(f"{address} cannot be reached ({error or 'no answer'})") from error


async def _connect_socket(family: int, kind: int, protocol: int, _name: str, where: tuple[object, ...]) -> TcpWire:
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, where)
    except BaseException:  # also when cancelled: nobody else knows of the socket
        connection.close()
        raise
    return TcpWire(connection)


def listen(address: str) -> socket.socket:
    """address: "host:port", port 0 for any free one. Raises AddressUnusable."""
    host, port = split_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        why = error.strerror or str(error)
        raise AddressUnusable(f"cannot listen on {address} ({why})", "choose another address or port with --listen") from error
    listening.setblocking(False)
    return listening


def split_address(address: str) -> tuple[str, int]:
    """ "1.2.3.4:5" or "[::1]:5" or "name:5". Raises AddressUnusable."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise AddressUnusable(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tune(connection: socket.socket) -> None:
    """No delay for small messages, and an end within half a minute when the path dies."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", _DEAD_PATH_MS)):
        if hasattr(socket, option):  # not every platform has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_PUMP_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the lane at the socket's other end reports the end of the stream
    finally:
        writer.close()
