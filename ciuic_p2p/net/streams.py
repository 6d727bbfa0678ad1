"""Incoming binary streams of peers not yet authenticated: how many, and for how long. Knows nothing of what runs inside."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import structlog
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from ciuic_p2p.terms import PeerId

log = structlog.get_logger()

SESSION_PROTOCOL = "/ciuic/session/1"
MOST_UNAUTHENTICATED = 64
MOST_UNAUTHENTICATED_OF_ONE_PEER = 8
AUTHENTICATION_LIMIT_S = 30.0

StreamCallback = Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""(peer as libp2p authenticated it, reader, writer). Returns as soon as the stream is authenticated, keeping reader and writer,
or closes it. Until it returns, the stream counts against the limits, and is closed when that takes too long."""


class StreamDoor:
    """Hands incoming streams to the callback, within the limits."""

    def __init__(self, callback: StreamCallback) -> None:
        self._callback = callback
        self._waiting: Counter[PeerId] = Counter()

    async def enter(self, info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """p2pd's handler of SESSION_PROTOCOL."""
        peer = PeerId(info.peer_id.to_base58())
        if self._waiting.total() >= MOST_UNAUTHENTICATED or self._waiting[peer] >= MOST_UNAUTHENTICATED_OF_ONE_PEER:
            log.warning("p2p.stream_refused", peer=peer, reason="too many that are not authenticated")
            writer.close()
            return
        self._waiting[peer] += 1
        try:
            async with asyncio.timeout(AUTHENTICATION_LIMIT_S):
                await self._callback(peer, reader, writer)
        except TimeoutError:
            log.warning("p2p.stream_refused", peer=peer, reason="not authenticated in time")
            writer.close()
        except BaseException:
            writer.close()
            raise
        finally:
            self._waiting[peer] -= 1
            self._waiting += Counter()  # drops zeros, or the map would grow with every stranger
