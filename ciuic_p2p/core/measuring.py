"""What probes and transfers say about a link: round trip, jitter, goodput. Pure: times and sizes come in as arguments."""

from __future__ import annotations

import statistics
from collections import deque

RTT_SAMPLES = 31
"""A median over half a minute of probes; one delayed probe does not move it."""

BURST_GAP_S = 0.25
"""Frames further apart than this do not tell how fast the link is, only how busy the sender was."""

LONGEST_BURST_S = 2.0
"""Where one round follows the other without a gap, a figure is taken so often."""

LEAST_BURST_BYTES = 128 << 10
GOODPUT_GAIN = 0.5
"""Weight of a new burst in the estimate: follows a changed link within a few rounds."""


class RttMeter:
    """Median and spread of the newest round trips."""

    def __init__(self) -> None:
        self._samples_ms: deque[float] = deque(maxlen=RTT_SAMPLES)

    def add(self, rtt_ms: float) -> None:
        self._samples_ms.append(rtt_ms)

    @property
    def median_ms(self) -> float:
        """0 before the first sample."""
        return statistics.median(self._samples_ms) if self._samples_ms else 0.0

    @property
    def jitter_ms(self) -> float:
        """Median distance from the median."""
        middle = self.median_ms
        return statistics.median(abs(s - middle) for s in self._samples_ms) if self._samples_ms else 0.0


class GoodputMeter:
    """Goodput of what arrives from one peer, over bursts of frames that follow each other closely."""

    def __init__(self) -> None:
        self.mbps = 0.0
        self.timed_bytes = 0
        """In all bursts that say how fast the link is."""
        self.burst_bytes = 0
        """In the last one of them."""
        self._began_s = self._last_s = float("-inf")
        self._burst_bytes = 0

    def add(self, size_bytes: int, now: float) -> None:
        """A frame of this size was taken in at `now`. The first of a burst only starts the clock."""
        if now - self._last_s > BURST_GAP_S or now - self._began_s > LONGEST_BURST_S:
            self._end_burst()
            self._began_s = now
        else:
            self._burst_bytes += size_bytes
        self._last_s = now

    def read(self, now: float) -> float:
        """Mbit/s, 0 while nothing was measured."""
        if now - self._last_s > BURST_GAP_S:
            self._end_burst()
        return self.mbps

    def _end_burst(self) -> None:
        seconds = self._last_s - self._began_s
        if self._burst_bytes >= LEAST_BURST_BYTES and seconds > 0:
            self.burst_bytes = self._burst_bytes
            self.timed_bytes += self._burst_bytes
            measured = self._burst_bytes * 8e-6 / seconds
            self.mbps = measured if self.mbps == 0 else self.mbps + GOODPUT_GAIN * (measured - self.mbps)
        self._burst_bytes = 0
