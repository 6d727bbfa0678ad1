"""Frames that wait to go to one peer, shared by its lanes, and what each lane has sent but not heard back about.

Every frame is in the queue or in one lane's share until it was acknowledged, so a broken lane loses nothing. Refuses to
know sockets.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.net.transport import OutgoingFrame
from ciuic_p2p.terms import PeerId

TELL_FRAMES = 8
TELL_AFTER_S = 0.1
"""Received frames are acknowledged so many at a time, or when the last acknowledgement is so old: nobody waits for one, they
only let the sender forget."""
CREDIT_S = 0.1
"""What was not sent while nothing waited, or a thread woke late, may be made up for: so much, no more."""


class Outbox:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.most_mbps: float | None = None
        """Frames are given out no faster; None: as fast as lanes ask for them. Acknowledgements always are."""
        self._clock = clock
        self._next_at_s = clock()
        self._last_bytes = 0
        self._lock = threading.Lock()
        self._idle: deque[LaneShare] = deque()
        """Whose sending threads wait: one is woken for each thing to do."""
        self._keeper: LaneShare | None = None
        """The idle one that waits for the next frame's time."""
        self._waiting: deque[OutgoingFrame] = deque()
        self._shares: set[LaneShare] = set()
        self._closed = False

    def pace(self, most_mbps: float | None) -> None:
        """Sets `most_mbps`; who waits for a time by the old rate looks again."""
        with self._lock:
            self.most_mbps = most_mbps
            longest_s = 0.0 if most_mbps is None else self._last_bytes / (125_000 * most_mbps)
            self._next_at_s = min(self._next_at_s, self._clock() + longest_s)
            if self._keeper is not None:
                self._keeper._wake.notify()

    def put(self, frames: Iterable[OutgoingFrame]) -> bool:
        """False when closed."""
        with self._lock:
            if self._closed:
                return False
            before = len(self._waiting)
            self._waiting.extend(frames)
            for _ in range(len(self._waiting) - before if self.most_mbps is None else 1):
                self._wake_one()
            return True

    def discard(self, unwanted: Callable[[FrameHeader], bool]) -> None:
        """Also what already left on a lane is not sent a second time."""
        with self._lock:
            self._waiting = deque(frame for frame in self._waiting if not unwanted(frame.header))
            for share in self._shares:
                share.forget(unwanted)

    def close(self) -> None:
        """Drops everything; the lanes find nothing more to do."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            for share in self._shares:
                share._wake.notify()

    def share(self, peer: PeerId) -> LaneShare:
        """For a new lane."""
        return LaneShare(self, peer)

    def _wake_one(self) -> None:
        """For a frame that waits; nobody when one waits for its time already."""
        if self._idle and self._keeper is None:
            self._idle.popleft()._wake.notify()

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
        with self._lock:
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
        self._lock = outbox._lock
        self._wake = threading.Condition(outbox._lock)
        self._peer = peer
        self._sent: deque[OutgoingFrame | None] = deque()
        self._booked_bytes = 0
        """For the frame taken last: other lanes may learn of other sizes before this one does."""
        self._confirmed_count = 0
        self._received_count = 0
        self._told_count = 0
        self._told_at_s = float("-inf")
        self._abandoned = False
        self._retired = False
        self._drained: Callable[[], None] | None = None
        with self._lock:
            outbox._shares.add(self)

    def wait_turn(self) -> Turn | None:
        """Blocks until there is something to send; None when the lane ends."""
        with self._lock:
            while True:
                if self._abandoned or self._outbox._closed:
                    return None
                turn = self._next_turn()
                if turn is not None:
                    return turn
                self._sleep()

    def _sleep(self) -> None:
        """Until there may be something to do. The caller holds the outbox's lock."""
        outbox, waits_s = self._outbox, []
        if self._received_count > self._told_count:
            waits_s.append(max(0.0, self._told_at_s + TELL_AFTER_S - outbox._clock()))
        if outbox._waiting and not self._retired and outbox._keeper is None:
            outbox._keeper = self
            waits_s.append(outbox._wait_s())
        if not self._retired:
            outbox._idle.append(self)
        self._wake.wait(min(waits_s, default=None))
        if outbox._keeper is self:
            outbox._keeper = None
        with contextlib.suppress(ValueError):  # whoever woke it has taken it out
            outbox._idle.remove(self)

    def spend(self, size_bytes: int) -> None:
        """So large was the frame taken last, sealed; nobody knew it before."""
        with self._lock:
            self._outbox._book(size_bytes - self._booked_bytes)
            self._outbox._last_bytes = size_bytes or self._outbox._last_bytes

    def confirm_received(self) -> None:
        """One more frame from the peer was taken in; the sending thread tells it."""
        with self._lock:
            self._received_count += 1
            untold = self._received_count - self._told_count
            if untold in (1, TELL_FRAMES):  # the first sets the clock, if it does not tell at once
                self._wake.notify()

    def confirmed(self, count: int) -> None:
        """The peer has taken in `count` frames of this lane. Raises MalformedMessage when that many were not sent."""
        with self._lock:
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
        with self._lock:
            if self._sent and self._sent[-1] is frame:
                self._sent.pop()
                self._tell_if_drained()

    def retire(self, drained: Callable[[], None]) -> None:
        """The lane takes no more frames. `drained` is called once when none is on its way, in any thread, under a lock."""
        with self._lock:
            self._retired = True
            self._drained = drained
            self._hand_over()
            self._tell_if_drained()

    def abandon(self) -> bool:
        """The lane is broken: its frames go back to the head of the queue. False when that was done before."""
        with self._lock:
            if self._abandoned:
                return False
            self._abandoned = True
            self._outbox._shares.discard(self)
            if not self._outbox._closed:
                self._outbox._waiting.extendleft(frame for frame in reversed(self._sent) if frame is not None)
            self._sent.clear()
            self._hand_over()
            self._tell_if_drained()
            return True

    def _hand_over(self) -> None:
        """What this lane was woken for, or waits for, is another's now. The caller holds the outbox's lock."""
        with contextlib.suppress(ValueError):
            self._outbox._idle.remove(self)
        if self._outbox._keeper is self:
            self._outbox._keeper = None
        self._wake.notify()
        self._outbox._wake_one()

    def forget(self, unwanted: Callable[[FrameHeader], bool]) -> None:
        """The caller holds the outbox's lock. The places are kept, for acknowledgements count them."""
        self._sent = deque(None if frame is None or unwanted(frame.header) else frame for frame in self._sent)

    def on_the_way(self) -> int:
        """The caller holds the outbox's lock."""
        return len(self._sent)

    def _next_turn(self) -> Turn | None:
        acknowledge = self._received_count if self._should_tell() else None
        frame = self._outbox._take() if not self._retired else None
        if acknowledge is None and frame is None:
            return None
        if acknowledge is not None:
            self._told_count, self._told_at_s = acknowledge, self._outbox._clock()
        if frame is not None:
            self._sent.append(frame)
            self._booked_bytes = self._outbox._last_bytes
        if (
            self._outbox._waiting
        ):  # also after an acknowledgement alone: sending that may take long, and the next frame's time comes
            self._outbox._wake_one()
        return Turn(acknowledge, frame)

    def _should_tell(self) -> bool:
        untold = self._received_count - self._told_count
        return untold >= TELL_FRAMES or (untold > 0 and self._outbox._clock() >= self._told_at_s + TELL_AFTER_S)

    def _tell_if_drained(self) -> None:
        if self._drained is not None and not self._sent:
            self._drained()
            self._drained = None
