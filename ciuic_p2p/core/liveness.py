"""Who is there: a peer is lost when it says goodbye, or when nothing came from it for a number of probe periods.

Pure; knows no sockets. A session that breaks is not yet a loss: it is usually dialled again within the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ciuic_p2p.terms import PeerId

SILENT_PERIODS = 3


@dataclass(slots=True)
class _Presence:
    started_at_s: int
    """Of the peer's daemon: another value is another life, which remembers nothing."""
    heard_s: float
    is_open: bool = True


class Liveness:
    """`introduced` and `heard` say who came or came back, `silent` and `left` who is lost."""

    def __init__(self, period_s: float) -> None:
        self._patience_s = SILENT_PERIODS * period_s
        self._present: dict[PeerId, _Presence] = {}

    def present(self) -> frozenset[PeerId]:
        return frozenset(self._present)

    def open_peers(self) -> tuple[PeerId, ...]:
        """Present peers with an open session, which can be probed."""
        return tuple(peer for peer, presence in self._present.items() if presence.is_open)

    def introduced(self, peer: PeerId, started_at_s: int, now: float) -> bool:
        """A session is open and the peer has said who it is. True when an earlier life of it ended by that."""
        before = self._present.get(peer)
        self._present[peer] = _Presence(started_at_s, now)
        return before is not None and before.started_at_s != started_at_s

    def heard(self, peer: PeerId, now: float) -> None:
        presence = self._present.get(peer)
        if presence is not None:
            presence.heard_s = now

    def session_closed(self, peer: PeerId) -> None:
        presence = self._present.get(peer)
        if presence is not None:
            presence.is_open = False

    def left(self, peer: PeerId) -> bool:
        """It said goodbye. True when it was present."""
        return self._present.pop(peer, None) is not None

    def silent(self, now: float) -> tuple[PeerId, ...]:
        """The peers lost by now; they are forgotten until they introduce themselves again."""
        lost = tuple(peer for peer, presence in self._present.items() if now - presence.heard_s > self._patience_s)
        for peer in lost:
            del self._present[peer]
        return lost
