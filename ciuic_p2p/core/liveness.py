"""Who is there: a peer is lost when it says goodbye, or when nothing came from it for a number of probe periods.

Pure; knows neither sockets nor a clock: periods are counted by the probes that were sent, so that a stall of this process looks
like one period and nobody is given up for it. A session that breaks is no loss yet: it is usually dialled again in that time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ciuic_p2p.terms import PeerId

SILENT_PERIODS = 3
"""For a peer whose session broke and was not dialled again: it has died, or its network has."""

FROZEN_PERIODS = 8
"""For a peer whose session is open: a full link may hold up or drop a few probes, so that takes longer to believe."""


@dataclass(slots=True)
class _Presence:
    started_at_s: int
    """Of the peer's daemon: another value is another life, which remembers nothing."""
    silent_periods: int = 0
    is_open: bool = True

    @property
    def patience(self) -> int:
        return FROZEN_PERIODS if self.is_open else SILENT_PERIODS


class Liveness:
    """`introduced` says who came or came back, `period_passed` and `left` who is lost."""

    def __init__(self) -> None:
        self._present: dict[PeerId, _Presence] = {}

    def present(self) -> frozenset[PeerId]:
        return frozenset(self._present)

    def open_peers(self) -> tuple[PeerId, ...]:
        """Present peers with an open session, which can be probed."""
        return tuple(peer for peer, presence in self._present.items() if presence.is_open)

    def introduced(self, peer: PeerId, started_at_s: int) -> bool:
        """A session is open and the peer has said who it is. True when an earlier life of it ended by that."""
        before = self._present.get(peer)
        self._present[peer] = _Presence(started_at_s)
        return before is not None and before.started_at_s != started_at_s

    def heard(self, peer: PeerId) -> None:
        presence = self._present.get(peer)
        if presence is not None:
            presence.silent_periods = 0

    def session_closed(self, peer: PeerId) -> None:
        presence = self._present.get(peer)
        if presence is not None:
            presence.is_open = False

    def left(self, peer: PeerId) -> bool:
        """It said goodbye. True when it was present."""
        return self._present.pop(peer, None) is not None

    def period_passed(self) -> tuple[PeerId, ...]:
        """Call before each probe. Returns the peers that are lost now; they are forgotten until they introduce themselves."""
        for presence in self._present.values():
            presence.silent_periods += 1
        lost = tuple(peer for peer, presence in self._present.items() if presence.silent_periods > presence.patience)
        for peer in lost:
            del self._present[peer]
        return lost
