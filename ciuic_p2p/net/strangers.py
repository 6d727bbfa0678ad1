"""How many connections of peers that are not known yet are served at once. Pure counting; refuses to know connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ciuic_p2p.errors import PeerUnreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerLimits:
    """How much those get who have shown no token yet."""

    most: int = 64
    most_a_source: int = 16
    """From one address, so that one stranger cannot take all places."""
    deadline_s: float = 15.0
    """For everything until both tokens were found good."""


class Antechamber:
    """Counts who waits to be known."""

    def __init__(self, limits: StrangerLimits) -> None:
        self._limits = limits
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def place(self, source: str) -> Iterator[None]:
        """Raises PeerUnreachable when all places are taken."""
        if self._waiting.total() >= self._limits.most or self._waiting[source] >= self._limits.most_a_source:
            raise PeerUnreachable(f"too many unknown connections, one from {source or 'a relay'} is refused")
        self._waiting[source] += 1
        try:
            yield
        finally:
            self._waiting[source] -= 1
            if not self._waiting[source]:
                del self._waiting[source]
