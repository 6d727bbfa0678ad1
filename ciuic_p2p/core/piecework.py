"""Which donor is asked for which pieces of one state, so that each gives as much as it can. Pure; knows no clock.

A donor is asked for a few pieces at a time, and for another one for each that it has given: a quick one gives more than a slow
one, and nobody need know beforehand who is which. When all pieces are asked for, a donor with nothing left to give is asked for
one that the slowest still owes, so that the end does not wait for that one. One at a time: what comes twice takes the place of
what did not come yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ciuic_p2p.terms import PeerId

OWED_BY_ALL = 24
"""Pieces of 1 MiB that are on order at once: a line of 900 Mbit/s is full over a path of 0.2 s."""
LEAST_OWED = 4
"""Of one donor: while one comes, others are on order or on their way."""


@dataclass(slots=True)
class _Donor:
    owes: set[int] = field(default_factory=set)


class Piecework:
    """One fetch's."""

    def __init__(self, pieces: Iterable[int]) -> None:
        self._unasked = sorted(pieces, reverse=True)
        self._missing = set(self._unasked)
        self._donors: dict[PeerId, _Donor] = {}

    @property
    def missing(self) -> frozenset[int]:
        """Pieces that are not here."""
        return frozenset(self._missing)

    @property
    def donors(self) -> tuple[PeerId, ...]:
        return tuple(self._donors)

    def add_donor(self, donor: PeerId) -> None:
        self._donors.setdefault(donor, _Donor())

    def drop_donor(self, donor: PeerId) -> None:
        """It gives no more; what it owes is asked of others."""
        dropped = self._donors.pop(donor, None)
        if dropped is not None:
            self._ask_again(dropped.owes)

    def found(self, piece: int) -> bool:
        """A piece is here. False when it was before."""
        if piece not in self._missing:
            return False
        self._missing.discard(piece)
        for donor in self._donors.values():
            donor.owes.discard(piece)
        return True

    def stalled(self) -> None:
        """Nobody gave anything for too long: what is missing is asked for again, first of those that owe nothing."""
        owed = {piece for donor in self._donors.values() for piece in donor.owes}
        self._donors = dict(sorted(self._donors.items(), key=lambda item: len(item[1].owes)))
        for donor in self._donors.values():
            donor.owes.clear()
        self._ask_again(owed)

    def asks(self, expected: int = 0) -> dict[PeerId, tuple[int, ...]]:
        """Whom to ask for what now; it counts as asked. expected: how many donors there will be in a moment, if more."""
        most = max(OWED_BY_ALL // max(len(self._donors), expected, 1), LEAST_OWED)
        asked = {donor: self._next_for(donor, most) for donor in self._donors}
        return {donor: pieces for donor, pieces in asked.items() if pieces}

    def _next_for(self, name: PeerId, most: int) -> tuple[int, ...]:
        donor = self._donors[name]
        pieces: list[int] = []
        while self._unasked and len(pieces) < most - len(donor.owes):
            piece = self._unasked.pop()
            if piece in self._missing:  # it may have come from elsewhere
                pieces.append(piece)
        if not pieces and not donor.owes:
            pieces = self._relieve()
        donor.owes.update(pieces)
        return tuple(pieces)

    def _relieve(self) -> list[int]:
        """Of what the donor with the most of it owes alone: what it was asked for last."""
        alone = [sorted(piece for piece in donor.owes if self._is_owed_once(piece)) for donor in self._donors.values()]
        return max(alone, key=len, default=[])[-1:]

    def _is_owed_once(self, piece: int) -> bool:
        return sum(piece in donor.owes for donor in self._donors.values()) == 1

    def _ask_again(self, owed: Iterable[int]) -> None:
        still = {piece for donor in self._donors.values() for piece in donor.owes}
        again = (set(owed) & self._missing) - still - set(self._unasked)
        self._unasked = sorted({*self._unasked, *again}, reverse=True)
