"""Which of several connections of one pair of peers is the session, when both dial at once or one noticed a loss first.

The peer with the lower id decides: a connection becomes a session when it says so. Pure; refuses to know connections.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ciuic_p2p.net.envelopes import Hello, SessionName
from ciuic_p2p.terms import PeerId


def decides(me: PeerId, peer: PeerId) -> bool:
    """True when `me` is the one of the two that says which connection is the session."""
    return me < peer


@dataclass(slots=True)
class Pairing:
    """What one peer remembers of its sessions with another."""

    open: SessionName | None = None
    ended: SessionName | None = None
    their_instance: bytes = b""
    _newest: SessionName | None = field(default=None)

    def may_open(self, hello: Hello) -> bool:
        """Asked by the deciding peer. While a session is open a second connection is superfluous, unless the other side shows
        that it does not have that session any more: it was restarted, or says that the session ended."""
        if self.open is None or hello.instance != self.their_instance:
            return True
        ended = hello.ended
        return ended is not None and ended.decider == self.open.decider and ended.generation >= self.open.generation

    def is_newer(self, session: SessionName) -> bool:
        """Asked by the other peer: of two decisions that overtook each other the later one counts."""
        newest = self._newest
        return newest is None or newest.decider != session.decider or newest.generation < session.generation

    def opened(self, session: SessionName, their_instance: bytes) -> None:
        self.open = self._newest = session
        self.their_instance = their_instance

    def closed(self) -> None:
        if self.open is not None:
            self.open, self.ended = None, self.open
