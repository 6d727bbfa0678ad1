"""An open session: control messages in order both ways, pings, goodbye.

Refuses to know how it was opened, and what messages mean.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ciuic_p2p.errors import MalformedMessage, PeerUnreachable, RemoteError
from ciuic_p2p.net.envelopes import Envelope, Kind
from ciuic_p2p.net.introduction import Acquaintance
from ciuic_p2p.net.lane_opening import LaneKeys
from ciuic_p2p.net.secure_stream import SecureStream
from ciuic_p2p.net.wires import Streams
from ciuic_p2p.terms import LARGEST_MESSAGE_BYTES, PeerId

_PING_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """When a peer is given up."""

    backlog_bytes: int = 8 << 20
    """Control messages that the peer does not read; more ends the session."""
    tick_s: float = 5.0
    silent_ticks: int = 4
    """So many ticks without a byte end the session; a peer that lives answers a ping every tick."""


class Session:
    """`send` is thread-safe, all else belongs to the event loop's thread."""

    def __init__(self, acquaintance: Acquaintance, stream: SecureStream, path: str, limits: SessionLimits) -> None:
        self.acquaintance = acquaintance
        self.peer: PeerId = acquaintance.peer
        self.path = path
        self.lane_keys = LaneKeys.of(stream.channel)
        self.round_trip_s: float | None = None
        self._stream = stream
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._outgoing: deque[tuple[Kind, bytes]] = deque()
        self._outgoing_bytes = 0
        self._quiet_ticks = 0
        self._ping_sent_ns = 0
        self._ended = False
        self._error: Exception | None = None

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Queues. Raises ValueError over LARGEST_MESSAGE_BYTES. A peer that does not read is given up, not waited for."""
        if len(body) > LARGEST_MESSAGE_BYTES:
            raise ValueError(f"a control message of {len(body)} bytes; the most is {LARGEST_MESSAGE_BYTES}")
        with self._lock:
            wake = not self._outgoing
            self._outgoing.append((kind, body))
            self._outgoing_bytes += len(body)
            overflow = self._outgoing_bytes > self._limits.backlog_bytes
        if wake or overflow:
            self._loop.call_soon_threadsafe(self._send_queued)

    async def converse(self, message_received: Callable[[bytes], None], told: Callable[[Envelope], None]) -> Exception | None:
        """Until the session ends; returns why, None when either side said goodbye. `told` hears of lanes, moves and ways."""
        self._ticking = self._loop.call_later(self._limits.tick_s, self._tick)
        try:
            while (envelope := await self._stream.receive()) is not None:
                if not self._ended:
                    self._take(envelope, message_received, told)
            self.end(PeerUnreachable(f"the session with peer {self.peer} broke"))
        except RemoteError as error:
            self.end(error)
        finally:
            self._ticking.cancel()
            self._stream.abort()
        return self._error

    @property
    def is_over(self) -> bool:
        """Nothing is sent any more."""
        return self._ended

    def send_over(self, streams: Streams, path: str, last: bytes) -> None:
        """All that follows goes over these; the old connection carries a MOVE with this body as its last envelope."""
        self._stream.send(Kind.MOVE, last)
        self._stream.send_over(streams)
        self.path = path

    def receive_over(self, streams: Streams) -> None:
        """The peer's MOVE came: all that follows it comes over these."""
        self._stream.receive_over(streams)

    def say_goodbye(self) -> None:
        """Ends the session after what was queued has left; the peer then closes the connection."""
        self._send_queued()
        if not self._ended:
            self._stream.send(Kind.GOODBYE)
            self._ended = True
            self._stream.end_sending()

    def end(self, error: Exception | None) -> None:
        """At once; the first reason counts."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._stream.abort()

    def _take(self, envelope: Envelope, message_received: Callable[[bytes], None], told: Callable[[Envelope], None]) -> None:
        self._quiet_ticks = 0
        match envelope.kind:
            case Kind.MESSAGE:
                message_received(envelope.body)
            case Kind.GOODBYE:
                self.end(None)
            case Kind.LANES | Kind.REACHED | Kind.MOVE | Kind.DRAINED | Kind.WAY | Kind.GIVEN | Kind.CALLED | Kind.STEER:
                told(envelope)
            case Kind.PING if len(envelope.body) == _PING_BYTES:
                self.send(Kind.PONG, envelope.body)
            case Kind.PONG if len(envelope.body) == _PING_BYTES:
                self._take_pong(int.from_bytes(envelope.body))
            case _:
                raise MalformedMessage(self.peer, f"it sent {envelope.kind.name} in an open session")

    def _take_pong(self, ping_sent_ns: int) -> None:
        if ping_sent_ns == self._ping_sent_ns:
            self.round_trip_s = (time.monotonic_ns() - ping_sent_ns) / 1e9

    def _send_queued(self) -> None:
        with self._lock:
            queued, self._outgoing, self._outgoing_bytes = self._outgoing, deque(), 0
        for kind, body in queued:
            if self._ended:
                return
            if self._stream.backlog_bytes + len(body) > self._limits.backlog_bytes:
                self.end(RemoteError(self.peer, "it does not read its messages"))
                return
            self._stream.send(kind, body)

    def _tick(self) -> None:
        """Counts ticks, not time: a stall of this process then looks like one tick and no peer is given up for it."""
        self._quiet_ticks += 1
        if self._quiet_ticks > self._limits.silent_ticks:
            self.end(PeerUnreachable(f"peer {self.peer} is silent"))
            return
        self._ping_sent_ns = time.monotonic_ns()
        self.send(Kind.PING, self._ping_sent_ns.to_bytes(_PING_BYTES))
        self._ticking = self._loop.call_later(self._limits.tick_s, self._tick)
