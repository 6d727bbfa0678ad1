"""A `Transport` inside one process, for tests of what is built on it. Knows no sockets, keys or tokens.

Payloads are made, copied and delivered in a thread for each pair and direction, as lanes do it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.errors import PeerUnreachable, RemoteError
from ciuic_p2p.net.transport import OutgoingFrame, Receiver, Traffic, Transport
from ciuic_p2p.terms import LARGEST_MESSAGE_BYTES, PeerId


class MemoryNetwork:
    """Joins the transports of one event loop; `connect` and `cut` play what happens to sessions."""

    def __init__(self) -> None:
        self._transports: dict[PeerId, MemoryTransport] = {}
        self._loop = asyncio.get_running_loop()

    def add(self, peer: PeerId, receiver: Receiver) -> MemoryTransport:
        self._transports[peer] = MemoryTransport(peer, receiver, self._loop)
        return self._transports[peer]

    def connect(self, one: PeerId, other: PeerId) -> None:
        """Opens a session between the two."""
        for here, there in ((one, other), (other, one)):
            self._transports[here]._open(self._transports[there])
        for here, there in ((one, other), (other, one)):
            self._transports[here].receiver.session_opened(there, "direct")

    def cut(self, one: PeerId, other: PeerId, error: Exception | None) -> None:
        """Closes their session. error: what both are told; None as if one had said goodbye."""
        for here, there in ((one, other), (other, one)):
            self._transports[here]._close(there, error)

    def leave(self, peer: PeerId) -> None:
        """The peer says goodbye to all."""
        for other in self._transports[peer].connected():
            self.cut(peer, other, None)


class MemoryTransport(Transport):
    """Made by `MemoryNetwork.add`."""

    def __init__(self, peer: PeerId, receiver: Receiver, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = peer
        self.receiver = receiver
        self._loop = loop
        self._lock = threading.Lock()
        self._pipes: dict[PeerId, _Pipe] = {}
        self._sent = 0
        self._received = 0

    def connected(self) -> frozenset[PeerId]:
        with self._lock:
            return frozenset(self._pipes)

    def send_message(self, peer: PeerId, message: bytes) -> None:
        if len(message) > LARGEST_MESSAGE_BYTES:
            raise ValueError(f"a control message of {len(message)} bytes; the most is {LARGEST_MESSAGE_BYTES}")
        pipe = self._pipe(peer)
        self._count(sent=len(message))
        self._loop.call_soon_threadsafe(pipe.deliver_message, message)

    def send_frames(self, peer: PeerId, frames: Iterable[OutgoingFrame]) -> None:
        if not self._pipe(peer).put(tuple(frames)):
            raise PeerUnreachable(f"the session with peer {peer} has just ended")

    def prepare(self, peer: PeerId) -> None:
        """Frames need nothing here."""

    def discard_frames(self, unwanted: Callable[[PeerId, FrameHeader], bool]) -> None:
        with self._lock:
            pipes = dict(self._pipes)
        for peer, pipe in pipes.items():
            pipe.discard(peer, unwanted)

    def traffic(self) -> Traffic:
        with self._lock:
            return Traffic(self._sent, self._received)

    def _pipe(self, peer: PeerId) -> _Pipe:
        with self._lock:
            pipe = self._pipes.get(peer)
        if pipe is None:
            raise PeerUnreachable(f"there is no session with peer {peer}")
        return pipe

    def _open(self, other: MemoryTransport) -> None:
        pipe = _Pipe(_Ends(self, other))
        with self._lock:
            self._pipes[other.peer] = pipe
        threading.Thread(target=pipe.run, name=f"memory-{self.peer}-{other.peer}", daemon=True).start()

    def _close(self, peer: PeerId, error: Exception | None) -> None:
        with self._lock:
            pipe = self._pipes.pop(peer, None)
        if pipe is not None:
            pipe.close()
            self.receiver.session_closed(peer, error)

    def _blame(self, sender: MemoryTransport, error: RemoteError) -> None:
        """What came from `sender` was refused by the receiver."""
        self._close(sender.peer, error)
        sender._close(self.peer, PeerUnreachable(f"the session with peer {self.peer} broke"))

    def _count(self, *, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self._sent += sent
            self._received += received


@dataclass(frozen=True, slots=True)
class _Ends:
    sender: MemoryTransport
    taker: MemoryTransport


class _Pipe:
    """One direction between two transports."""

    def __init__(self, ends: _Ends) -> None:
        self._ends = ends
        self._changed = threading.Condition()
        self._waiting: deque[OutgoingFrame] = deque()
        self._closed = False

    def put(self, frames: tuple[OutgoingFrame, ...]) -> bool:
        with self._changed:
            if self._closed:
                return False
            self._waiting.extend(frames)
            self._changed.notify()
            return True

    def discard(self, peer: PeerId, unwanted: Callable[[PeerId, FrameHeader], bool]) -> None:
        with self._changed:
            self._waiting = deque(frame for frame in self._waiting if not unwanted(peer, frame.header))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()

    def deliver_message(self, message: bytes) -> None:
        if not self._closed:
            self._ends.taker._count(received=len(message))
            self._ends.taker.receiver.message_received(self._ends.sender.peer, message)

    def run(self) -> None:
        while (frame := self._next()) is not None:
            made = frame.make_payload()
            if made is None:
                continue
            payload = bytes(memoryview(made).cast("B"))
            self._ends.sender._count(sent=len(payload))
            self._ends.taker._count(received=len(payload))
            header = replace(frame.header, length=len(payload))
            try:
                self._ends.taker.receiver.frame_received(self._ends.sender.peer, header, memoryview(payload))
            except RemoteError as error:
                taker = self._ends.taker
                taker._loop.call_soon_threadsafe(taker._blame, self._ends.sender, error)
                return

    def _next(self) -> OutgoingFrame | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return None if self._closed else self._waiting.popleft()
