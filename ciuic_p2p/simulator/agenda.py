"""What is to happen when, in virtual time. What is due at the same moment happens in the order in which it was put down."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Act = Callable[[], None]


class Agenda:
    """Time passes only here, from one entry to the next."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self.acts_done = 0
        self._times: list[float] = []
        self._acts: dict[float, list[Act]] = {}

    def at(self, seconds: float, act: Act) -> None:
        """What is put down for the past happens next."""
        acts = self._acts.get(seconds)
        if acts is None:
            self._acts[seconds] = [act]
            heapq.heappush(self._times, seconds)
        else:
            acts.append(act)

    def after(self, delay_s: float, act: Act) -> None:
        self.at(self.now + delay_s, act)

    def next_s(self) -> float | None:
        """When something is due; None when nothing ever is."""
        return self._times[0] if self._times else None

    def do_next(self) -> None:
        """All that is due at the next moment; what that adds for the same moment comes after it."""
        seconds = heapq.heappop(self._times)
        self.now = max(self.now, seconds)
        for act in self._acts.pop(seconds):
            self.acts_done += 1
            act()

    def run_until(self, seconds: float) -> None:
        """All that is due by then."""
        while self._times and self._times[0] <= seconds:
            self.do_next()
        self.now = seconds
