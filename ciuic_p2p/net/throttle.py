"""Slows a sender down where the kernel cannot pace its socket: a relayed stream, or a system other than Linux."""

from __future__ import annotations

import time
from collections.abc import Callable

SLICE_BYTES = 64 << 10
"""What may leave in one go; at 10 Mbit/s the pauses between are 50 ms."""
_LONGEST_CREDIT_S = 0.05


class Throttle:
    """A token bucket. One thread waits; the rate may be set from another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self.most_mbps: float | None = None
        self._clock = clock
        self._sleep = sleep
        self._free_at_s = clock()

    def wait(self, size_bytes: int) -> None:
        """Returns when so many bytes may be sent."""
        if self.most_mbps is None:
            return
        now = self._clock()
        self._free_at_s = max(self._free_at_s, now - _LONGEST_CREDIT_S)
        if self._free_at_s > now:
            self._sleep(self._free_at_s - now)
        self._free_at_s += size_bytes / (125_000 * self.most_mbps)
