"""Takes in connections: accepts them, tells what they are for by their first bytes, and bounds what strangers get."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import structlog

from ciuic_p2p.errors import PeerUnreachable, RemoteError
from ciuic_p2p.net.lane_opening import LANE_MAGIC, PATH_MAGIC
from ciuic_p2p.net.linking import Linker, Origin
from ciuic_p2p.net.splice_messages import SPLICE_MAGIC
from ciuic_p2p.net.strangers import Antechamber, StrangerLimits
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.wires import TcpWire, Wire, address_of, listen
from ciuic_p2p.terms import PeerId

_log = structlog.get_logger(__name__)
_TLS_HANDSHAKE = b"\x16\x03"
"""A TLS record of type handshake (RFC 8446 section 5.1)."""
_ACCEPT_PAUSE_S = 0.1


class Reception:
    """Owns the listening sockets."""

    def __init__(self, linker: Linker, limits: StrangerLimits, tasks: TaskSet) -> None:
        self._linker = linker
        self.accept_splice: Callable[[Wire], Awaitable[None]] = _refuse
        """Takes a connection for a splice between two others. Raises PeerUnreachable."""
        self._limits = limits
        self._antechamber = Antechamber(limits)
        self._tasks = tasks
        self._listening: list[socket.socket] = []

    def open(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Returns where it listens. Raises AddressUnusable; then it listens nowhere."""
        try:
            for address in addresses:
                self._listening.append(listen(address))
        except BaseException:
            self.close()
            raise
        for listening in self._listening:
            self._tasks.spawn(self._accept_all(listening))
        return tuple(address_of(listening) for listening in self._listening)

    @property
    def is_open(self) -> bool:
        """Whether it listens anywhere."""
        return bool(self._listening)

    def close(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()

    async def receive(self, wire: Wire, expected: PeerId | None = None) -> None:
        """Finds out what a wire is for and gives it there. Never raises for what a stranger does."""
        try:
            with self._antechamber.place(wire.source):
                async with asyncio.timeout(self._limits.deadline_s):
                    await self._sort(wire, expected)
        except (PeerUnreachable, RemoteError) as error:
            _log.info("connection.refused", source=wire.source, kind=type(error).__name__, error=str(error))
        except TimeoutError:
            _log.info("connection.refused", source=wire.source, error="it took too long")
        finally:
            wire.close()

    async def _sort(self, wire: Wire, expected: PeerId | None) -> None:
        first_bytes = await wire.read_exactly(len(LANE_MAGIC))
        if first_bytes == LANE_MAGIC:
            await self._linker.accept_lane(wire, first_bytes)
        elif first_bytes == PATH_MAGIC:
            await self._linker.accept_path(wire, first_bytes)
        elif first_bytes == SPLICE_MAGIC:
            await self.accept_splice(wire)
        elif first_bytes.startswith(_TLS_HANDSHAKE):
            await self._linker.link(wire, Origin(expected=expected, first_bytes=first_bytes))
        else:
            raise PeerUnreachable("it speaks another protocol")

    async def _accept_all(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, source = await loop.sock_accept(listening)
                wire = TcpWire(connection, source[0])
            except OSError as error:  # no file descriptors left, or the connection is gone again
                _log.warning("connection.not_accepted", error=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            self._tasks.spawn(self.receive(wire))


async def _refuse(_wire: Wire) -> None:
    raise PeerUnreachable("this peer forwards nothing")
