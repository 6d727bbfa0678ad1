"""Who is there: a peer is lost when it says goodbye, or when nothing came from it for a number of probe periods.

Pure; knows neither sockets nor a clock: periods are counted by the probes that were sent, so that a stall of this process looks
like one period and nobody is given up for it. A session that breaks is no loss yet: it is usually dialled again in that time.

Silence alone may be a full link's doing. So peers tell each other whom they suspect: whoever is silent to all of them at once
has stood still or lost its network, and they need not wait as long for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ciuic_p2p.terms import PeerId

SILENT_PERIODS = 3
"""For a peer whose session broke and was not dialled again, or that all others suspect too: it has died, or its network has."""

FROZEN_PERIODS = 8
"""For a peer whose session is open: a full link may hold up or drop a few probes, so that takes longer to believe."""

SUSPECT_PERIODS = 2
"""Who was silent for so long is suspected, and the others are told."""

MOST_SUSPECTS = 1024
"""That one peer is believed to have."""


@dataclass(slots=True)
class _Presence:
    started_at_s: int
    """Of the peer's daemon: another value is another life, which remembers nothing."""
    silent_periods: int = 0
    is_open: bool = True
    suspects: frozenset[PeerId] = frozenset()
    """As it says."""

    @property
    def is_witness(self) -> bool:
        """Of others' silence: it is not suspected itself."""
        return self.is_open and self.silent_periods <= SUSPECT_PERIODS


class Liveness:
    """`introduced` says who came or came back, `period_passed` and `left` who is lost."""

    def __init__(self) -> None:
        self._present: dict[PeerId, _Presence] = {}
        self._given_up: set[PeerId] = set()
        """For their silence; suspected until they are back."""

    def present(self) -> frozenset[PeerId]:
        return frozenset(self._present)

    def open_peers(self) -> tuple[PeerId, ...]:
        """Present peers with an open session, which can be probed."""
        return tuple(peer for peer, presence in self._present.items() if presence.is_open)

    def introduced(self, peer: PeerId, started_at_s: int) -> bool:
        """A session is open and the peer has said who it is. True when an earlier life of it ended by that."""
        before = self._present.get(peer)
        self._given_up.discard(peer)
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
        self._given_up.discard(peer)
        return self._present.pop(peer, None) is not None

    def suspects(self) -> frozenset[PeerId]:
        """What the others are to be told: who is silent, or was given up for it."""
        silent = {peer for peer, presence in self._present.items() if presence.silent_periods > SUSPECT_PERIODS}
        return frozenset(silent | self._given_up)

    def suspected(self, by: PeerId, peers: Collection[PeerId]) -> None:
        """A peer said whom it suspects now; nobody else any more."""
        presence = self._present.get(by)
        if presence is not None:
            presence.suspects = frozenset(list(peers)[:MOST_SUSPECTS])

    def period_passed(self) -> tuple[PeerId, ...]:
        """Call before each probe. Returns the peers that are lost now; they are forgotten until they introduce themselves."""
        for presence in self._present.values():
            presence.silent_periods += 1
        silent = {peer for peer, presence in self._present.items() if presence.silent_periods > SILENT_PERIODS}
        agreed = self._suspected_by_all() if silent else frozenset()
        lost = tuple(peer for peer in self._present if peer in silent and (peer in agreed or self._is_lost_alone(peer)))
        for peer in lost:
            del self._present[peer]
            self._given_up.add(peer)
        return lost

    def _is_lost_alone(self, peer: PeerId) -> bool:
        presence = self._present[peer]
        return not presence.is_open or presence.silent_periods > FROZEN_PERIODS

    def _suspected_by_all(self) -> frozenset[PeerId]:
        """Who is silent to every witness; nobody when none was heard in this period: then this peer itself may be cut off."""
        witnesses = [presence for presence in self._present.values() if presence.is_witness]
        if all(witness.silent_periods > 1 for witness in witnesses):
            return frozenset()
        return frozenset.intersection(*(witness.suspects for witness in witnesses))
