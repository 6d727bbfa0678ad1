"""What the daemon asks of a transport: control messages and bulk frames between authenticated peers.

One contract, several ways: `net/sessions.py` (TLS sessions and AES-256-GCM lanes), `testing/memory.py` (in one process).
A transport knows nothing of rounds; it reports what came and when a peer is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.terms import PeerId

Payload = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class OutgoingFrame:
    """A frame that waits for a lane. The payload is made when its turn comes, in a lane's thread, and made again if the
    lane breaks before the receiver acknowledged it: `make_payload` must be safe to call twice and from any thread.
    None: the frame is not wanted any more."""

    header: FrameHeader
    make_payload: Callable[[], Payload | None]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes on the sockets of sessions and lanes, everything included, since the daemon started."""

    bytes_sent: int
    bytes_received: int


class Receiver(Protocol):
    """Who is told. All but `frame_received` are called in the event loop's thread and must return at once."""

    def session_opened(self, peer: PeerId, path: str) -> None:
        """A session is up; `path` is written as in core/paths.py. Messages may be sent from now on."""

    def session_moved(self, peer: PeerId, path: str) -> None:
        """The session goes on over another path, both ways; nothing was lost."""

    def lanes_moved(self, peer: PeerId, path: str) -> None:
        """Frames go over another path than the session, or over the same again; nothing was lost."""

    def session_closed(self, peer: PeerId, error: Exception | None) -> None:
        """The session is down; None when the peer said goodbye. Frames not acknowledged are dropped."""

    def message_received(self, peer: PeerId, message: bytes) -> None:
        """One whole control message, in the order sent."""

    def frame_received(self, peer: PeerId, header: FrameHeader, payload: memoryview) -> None:
        """Called in a lane's thread, several at once for several lanes. `payload` is valid only until this returns.
        A RemoteError raised here closes the session and blames the peer. A frame may come twice (after a lane broke)."""


class Transport(ABC):
    """Thread-safe, except that sessions are opened and closed in the event loop's thread."""

    @abstractmethod
    def connected(self) -> frozenset[PeerId]:
        """The peers with an open session."""

    @abstractmethod
    def send_message(self, peer: PeerId, message: bytes) -> None:
        """Queues one control message, never behind bulk frames. Raises PeerUnreachable without a session."""

    @abstractmethod
    def send_frames(self, peer: PeerId, frames: Iterable[OutgoingFrame]) -> None:
        """Queues bulk frames; each goes to whichever lane is free. Raises PeerUnreachable without a session."""

    @abstractmethod
    def prepare(self, peer: PeerId) -> None:
        """Frames will soon go there or come from there: what they need is opened meanwhile. Nothing without a session."""

    @abstractmethod
    def discard_frames(self, unwanted: Callable[[PeerId, FrameHeader], bool]) -> None:
        """Drops queued frames that match and have not started to leave."""

    @abstractmethod
    def traffic(self) -> Traffic:
        """Bytes so far."""
