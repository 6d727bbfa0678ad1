"""A lane: one socket that carries sealed frames both ways, with a sending and a receiving thread.

Refuses to know how it was opened.

Frames are acknowledged after the receiver has taken them in. The receiving thread never sends: it leaves acknowledgements
to the sending thread, so two peers that both send as fast as they can never wait for each other.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from ciuic_p2p.core.frames import HEADER_BYTES, FrameHeader
from ciuic_p2p.errors import FrameError, FrameTooLarge, FrameTruncated, MalformedMessage, PeerUnreachable, RemoteError
from ciuic_p2p.net.meters import Meter
from ciuic_p2p.net.outbox import LaneShare, Turn
from ciuic_p2p.net.sealing import HEAD_BYTES, FrameOpener, FrameSealer
from ciuic_p2p.net.tcpinfo import TcpInfo, is_near, limit_rate, read_tcp_info
from ciuic_p2p.net.transport import OutgoingFrame
from ciuic_p2p.terms import LARGEST_FRAME_BYTES, PeerId

_log = structlog.get_logger(__name__)
_ACKNOWLEDGEMENT = struct.Struct(f"!B3xQ{HEADER_BYTES - 12}x")
_ACKNOWLEDGEMENT_KIND = 0
"""First byte of a header; no FrameKind has it."""


class LaneOwner(Protocol):
    """Told from the lane's threads."""

    def frame_received(self, header: FrameHeader, payload: memoryview) -> None:
        """Returns when the frame has been taken in."""

    def lane_ended(self, lane: Lane, error: Exception) -> None:
        """Once, after both threads have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneParts:
    """What a lane is made of."""

    peer: PeerId
    number: int
    connection: socket.socket
    share: LaneShare
    sealer: FrameSealer
    opener: FrameOpener
    meter: Meter


class Lane:
    """Runs from `start` until the socket breaks, a frame is wrong, or `close`."""

    def __init__(self, parts: LaneParts, owner: LaneOwner) -> None:
        self.number = parts.number
        self._parts = parts
        self._owner = owner
        self._error: Exception = PeerUnreachable("the lane was closed")
        self._threads_left = 2
        self._lock = threading.Lock()
        self._head = memoryview(bytearray(HEAD_BYTES))

    def start(self) -> None:
        for work, name in ((self._send, "send"), (self._receive, "receive")):
            name = f"lane-{self.number}-{name}"
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True).start()

    def pace(self, most_mbps: float | None) -> None:
        """The kernel spreads a frame's packets over the time that it takes at this rate; None: as fast as it can.

        Not over a near path: once a socket was paced, the kernel goes on pacing it by its round trip, which after a rest is
        that of a delayed acknowledgement: a round then begins 0.2 s late.
        """
        if not is_near(self._parts.connection):
            limit_rate(self._parts.connection, most_mbps)

    def read(self) -> TcpInfo | None:
        """None where the kernel does not tell."""
        return read_tcp_info(self._parts.connection)

    def close(self) -> None:
        """Ends both threads soon, from any thread."""
        self._break(PeerUnreachable("the lane was closed"))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._break(PeerUnreachable(f"a lane broke ({error.strerror or error})"))
        except (RemoteError, PeerUnreachable) as error:
            self._break(error)
        except Exception as error:  # the supervisor of this thread: a defect ends the session, not silently the thread
            _log.exception("lane.failed", peer=self._parts.peer, lane=self.number)
            self._break(error)
        else:
            self._break(PeerUnreachable("the lane was closed"))
        with self._lock:
            self._threads_left -= 1
            last = self._threads_left == 0
        if last:
            self._parts.connection.close()
            self._owner.lane_ended(self, self._error)

    def _break(self, error: Exception) -> None:
        if self._parts.share.abandon():
            self._error = error
        with contextlib.suppress(OSError):  # closed already, by the other thread or the peer
            self._parts.connection.shutdown(socket.SHUT_RDWR)  # wakes both threads

    # ---- the sending thread

    def _send(self) -> None:
        while (turn := self._parts.share.wait_turn()) is not None:
            self._take_turn(turn)

    def _take_turn(self, turn: Turn) -> None:
        if turn.acknowledge is not None:
            self._transmit(self._parts.sealer.seal(_ACKNOWLEDGEMENT.pack(_ACKNOWLEDGEMENT_KIND, turn.acknowledge)))
        if turn.frame is not None:
            sealed = self._seal(turn.frame)
            self._parts.share.spend(0 if sealed is None else len(sealed))
            if sealed is not None:
                self._transmit(sealed)

    def _seal(self, frame: OutgoingFrame) -> memoryview | None:
        try:
            made = frame.make_payload()
        except Exception:  # the maker is the layer above: its defect costs this frame, not the lane
            _log.exception("frame.dropped", peer=self._parts.peer, kind=frame.header.kind, part=frame.header.part)
            made = None
        if made is None:
            self._parts.share.drop(frame)
            return None
        payload = memoryview(made).cast("B")
        if len(payload) > LARGEST_FRAME_BYTES:
            _log.error("frame.dropped", peer=self._parts.peer, size_bytes=len(payload), most_bytes=LARGEST_FRAME_BYTES)
            self._parts.share.drop(frame)
            return None
        return self._parts.sealer.seal(replace(frame.header, length=len(payload)).pack(), payload)

    def _transmit(self, sealed: memoryview) -> None:
        self._parts.connection.sendall(sealed)
        self._parts.meter.count_sent(len(sealed))

    # ---- the receiving thread

    def _receive(self) -> None:
        while self._fill(self._head, begins_frame=True):
            content = self._parts.opener.open_header(self._head)
            if content[0] == _ACKNOWLEDGEMENT_KIND:
                self._parts.share.confirmed(_ACKNOWLEDGEMENT.unpack(content)[1])
            else:
                self._take_in(content)
            self._parts.opener.advance()
        raise PeerUnreachable("the peer closed the lane")

    def _take_in(self, content: bytes) -> None:
        header = self._unpack(content)
        payload = memoryview(b"")
        if header.length:
            self._fill(self._parts.opener.payload_buffer(header.length), begins_frame=False)
            payload = self._parts.opener.open_payload(content, header.length)
        self._owner.frame_received(header, payload)
        self._parts.share.confirm_received()

    def _unpack(self, content: bytes) -> FrameHeader:
        try:
            return FrameHeader.unpack(content)
        except FrameTooLarge as error:
            raise FrameTooLarge(self._parts.peer, f"it announced a frame of more than {LARGEST_FRAME_BYTES} bytes") from error
        except MalformedMessage as error:
            raise MalformedMessage(self._parts.peer, "it sent a frame of an unknown kind") from error

    def _fill(self, buffer: memoryview, *, begins_frame: bool) -> bool:
        """False when the stream ended before a frame. Raises FrameTruncated when it ended inside one."""
        filled = 0
        while filled < len(buffer):
            count = self._parts.connection.recv_into(buffer[filled:], 0, socket.MSG_WAITALL)
            if count == 0:
                if begins_frame and filled == 0:
                    return False
                raise FrameTruncated(self._parts.peer, "a lane ended inside a frame")
            filled += count
        self._parts.meter.count_received(filled)
        return True


def breaks_only_the_lane(error: Exception) -> bool:
    """Whether what ended a lane leaves the session as it is."""
    return isinstance(error, FrameError | PeerUnreachable)
