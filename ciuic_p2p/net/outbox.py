"""Frames that wait to go to one peer, shared by its lanes, and what each lane has sent but not heard back about.

Every frame is in the queue or in one lane's share until it was acknowledged, so a broken lane loses nothing. Refuses to
know sockets.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.net.transport import OutgoingFrame
from ciuic_p2p.terms import PeerId

CREDIT_S = 0.02
"""What was not sent while nothing waited, or a thread woke late, may be made up for: so much, no more."""


class Outbox:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.most_mbps: float | None = None
        """Frames are given out no faster; None: as fast as lanes ask for them. Acknowledgements always are."""
        self._clock = clock
        self._next_at_s = clock()
        self._last_bytes = 0
        self._changed = threading.Condition()
        self._waiting: deque[OutgoingFrame] = deque()
        self._shares: set[LaneShare] = set()
        self._closed = False

    def put(self, frames: Iterable[OutgoingFrame]) -> bool:
        """False when closed."""
        with self._changed:
            if self._closed:
                return False
            self._waiting.extend(frames)
            self._changed.notify_all()
            return True

    def discard(self, unwanted: Callable[[FrameHeader], bool]) -> None:
        """Also what already left on a lane is not sent a second time."""
        with self._changed:
            self._waiting = deque(frame for frame in self._waiting if not unwanted(frame.header))
            for share in self._shares:
                share.forget(unwanted)

    def close(self) -> None:
        """Drops everything; the lanes find nothing more to do."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def share(self, peer: PeerId) -> LaneShare:
        """For a new lane."""
        return LaneShare(self, peer)

    def _take(self) -> OutgoingFrame | None:
        """The next frame, when its time has come. It is booked as if as large as the one before, until `spend`."""
        if not self._waiting or self._wait_s() > 0:
            return None
        self._next_at_s = max(self._next_at_s, self._clock() - CREDIT_S)
        self._book(self._last_bytes)
        return self._waiting.popleft()

    def _wait_s(self) -> float:
        return 0.0 if self.most_mbps is None else max(0.0, self._next_at_s - self._clock())

    def _book(self, size_bytes: int) -> None:
        if self.most_mbps is not None:
            self._next_at_s += size_bytes / (125_000 * self.most_mbps)

    def unacknowledged(self) -> int:
        """Frames that wait or are on their way."""
        with self._changed:
            return len(self._waiting) + sum(share.on_the_way() for share in self._shares)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a lane's sending thread does next: acknowledge so many frames, send a frame, or both."""

    acknowledge: int | None
    frame: OutgoingFrame | None


class LaneShare:
    """One lane's part in an outbox. Both threads of the lane use it."""

    def __init__(self, outbox: Outbox, peer: PeerId) -> None:
        self._outbox = outbox
        self._changed = outbox._changed
        self._peer = peer
        self._sent: deque[OutgoingFrame | None] = deque()
        self._confirmed_count = 0
        self._received_count = 0
        self._told_count = 0
        self._abandoned = False
        self._retired = False
        self._drained: Callable[[], None] | None = None
        with self._changed:
            outbox._shares.add(self)

    def wait_turn(self) -> Turn | None:
        """Blocks until there is something to send; None when the lane ends."""
        with self._changed:
            while True:
                if self._abandoned or self._outbox._closed:
                    return None
                turn = self._next_turn()
                if turn is not None:
                    return turn
                self._changed.wait(self._outbox._wait_s() if self._outbox._waiting and not self._retired else None)

    def spend(self, size_bytes: int) -> None:
        """So large was the frame taken last, sealed; nobody knew it before."""
        with self._changed:
            self._outbox._book(size_bytes - self._outbox._last_bytes)
            self._outbox._last_bytes = size_bytes or self._outbox._last_bytes

    def confirm_received(self) -> None:
        """One more frame from the peer was taken in; the sending thread tells it."""
        with self._changed:
            self._received_count += 1
            self._changed.notify_all()

    def confirmed(self, count: int) -> None:
        """The peer has taken in `count` frames of this lane. Raises MalformedMessage when that many were not sent."""
        with self._changed:
            fresh = count - self._confirmed_count
            if self._abandoned:
                return
            if not 0 <= fresh <= len(self._sent):
                raise MalformedMessage(self._peer, "it acknowledged frames that were not sent")
            for _ in range(fresh):
                self._sent.popleft()
            self._confirmed_count = count
            self._tell_if_drained()

    def drop(self, frame: OutgoingFrame) -> None:
        """The frame that was taken last cannot be sent at all."""
        with self._changed:
            if self._sent and self._sent[-1] is frame:
                self._sent.pop()
                self._tell_if_drained()

    def retire(self, drained: Callable[[], None]) -> None:
        """The lane takes no more frames. `drained` is called once when none is on its way, in any thread, under a lock."""
        with self._changed:
            self._retired = True
            self._drained = drained
            self._tell_if_drained()

    def abandon(self) -> bool:
        """The lane is broken: its frames go back to the head of the queue. False when that was done before."""
        with self._changed:
            if self._abandoned:
                return False
            self._abandoned = True
            self._outbox._shares.discard(self)
            if not self._outbox._closed:
                self._outbox._waiting.extendleft(frame for frame in reversed(self._sent) if frame is not None)
            self._sent.clear()
            self._changed.notify_all()
            self._tell_if_drained()
            return True

    def forget(self, unwanted: Callable[[FrameHeader], bool]) -> None:
        """The caller holds the outbox's lock. The places are kept, for acknowledgements count them."""
        self._sent = deque(None if frame is None or unwanted(frame.header) else frame for frame in self._sent)

    def on_the_way(self) -> int:
        """The caller holds the outbox's lock."""
        return len(self._sent)

    def _next_turn(self) -> Turn | None:
        acknowledge = self._received_count if self._received_count > self._told_count else None
        frame = self._outbox._take() if not self._retired else None
        if acknowledge is None and frame is None:
            return None
        self._told_count = self._received_count
        if frame is not None:
            self._sent.append(frame)
        return Turn(acknowledge, frame)

    def _tell_if_drained(self) -> None:
        if self._drained is not None and not self._sent:
            self._drained()
            self._drained = None
