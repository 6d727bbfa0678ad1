"""Lanes of a path that a session has left: they carry to the end what is on them, then they close.

Nothing is lost or sent twice: a side says that it is drained when all that it sent there was acknowledged, and closes the lanes
when the other side has said so too. Refuses to know where the session went.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial

from ciuic_p2p.net.lanes import Lane
from ciuic_p2p.net.outbox import LaneShare

_DEADLINE_S = 30.0
"""A path that stalls meanwhile is given up; what was under way there is then sent again on other lanes."""


class Drain:
    """All methods belong to the event loop's thread."""

    def __init__(self, lanes: Mapping[Lane, LaneShare], say_drained: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._lanes = tuple(lanes)
        self._under_way = set(lanes)
        self._say_drained = say_drained
        self._peer_drained = False
        self.is_over = False
        """All its lanes were told to close."""
        for lane, share in lanes.items():
            share.retire(partial(self._tell_from_thread, lane))
        self._deadline = self._loop.call_later(_DEADLINE_S, self.close)
        if not lanes:
            say_drained()

    def peer_drained(self) -> None:
        self._peer_drained = True
        self._close_if_empty()

    def close(self) -> None:
        """Whatever is still under way."""
        self.is_over = True
        self._deadline.cancel()
        for lane in self._lanes:
            lane.close()

    def _tell_from_thread(self, lane: Lane) -> None:
        with contextlib.suppress(RuntimeError):  # a lane's thread may outlive the loop
            self._loop.call_soon_threadsafe(self._lane_drained, lane)

    def _lane_drained(self, lane: Lane) -> None:
        self._under_way.discard(lane)
        if not self._under_way:
            self._say_drained()
            self._close_if_empty()

    def _close_if_empty(self) -> None:
        if self._peer_drained and not self._under_way:
            self.close()
