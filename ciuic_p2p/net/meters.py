"""Counts bytes on sockets. Knows nothing else."""

from __future__ import annotations

import threading

from ciuic_p2p.net.transport import Traffic


class Meter:
    """Thread-safe: lanes count in their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = 0
        self._received = 0

    def count_sent(self, size_bytes: int) -> None:
        with self._lock:
            self._sent += size_bytes

    def count_received(self, size_bytes: int) -> None:
        with self._lock:
            self._received += size_bytes

    def read(self) -> Traffic:
        with self._lock:
            return Traffic(self._sent, self._received)
