"""A TCP proxy between two peers that sees, and may change, what they send. Knows the first bytes of a lane and nothing else of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from ciuic_p2p.net.lane_opening import LANE_MAGIC
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.wires import split_address

Tamper = Callable[[bytes], bytes | None]
"""Given what the dialling side of one lane sends, piece by piece, says what to send instead; None cuts the connection."""


class Proxy:
    """Each new lane takes the next of `tampers`; lanes after those, and sessions, pass unchanged."""

    def __init__(self, target: str) -> None:
        self._target = split_address(target)
        self._tasks = TaskSet()
        self._open: list[tuple[bool, asyncio.StreamWriter]] = []
        self.seen = bytearray()
        self.tampers: list[Tamper] = []
        self.lane_count = 0
        self.address = ""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut(lanes_only=False)
        await self._tasks.cancel()

    def cut(self, *, lanes_only: bool) -> None:
        """Breaks the open connections."""
        for is_lane, writer in self._open:
            if is_lane or not lanes_only:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first_bytes = await reader.readexactly(len(LANE_MAGIC))
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        is_lane = first_bytes == LANE_MAGIC
        self._open += [(is_lane, writer), (is_lane, far_writer)]
        tamper: Tamper = _leave
        if is_lane:
            self.lane_count += 1
            tamper = self.tampers.pop(0) if self.tampers else _leave
        far_writer.write(first_bytes)
        self._tasks.spawn(self._copy(reader, far_writer, tamper))
        self._tasks.spawn(self._copy(far_reader, writer, _leave))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tamper: Tamper) -> None:
        try:
            while data := await reader.read(65536):
                self.seen += data
                changed = tamper(data)
                if changed is None:
                    break
                writer.write(changed)
                await writer.drain()
        except OSError:
            pass  # one side is gone: so is the other, below
        finally:
            writer.close()


def _leave(data: bytes) -> bytes:
    return data
