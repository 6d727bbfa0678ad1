"""The states that led to the one a peer holds: what of its work would be given up for another state.

Two halves of a swarm that lose each other both train on; when they meet again one state goes on (core/lineage.py). What the
others give up is counted from the last state that both lineages have. Knows no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from ciuic_p2p.terms import StateHash

MOST_STATES = 4096
"""The newest ones; they travel with a state, 24 bytes each at most."""
SHORT = 16
"""Characters of a hash: enough to tell the states of one run apart."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One state. `samples`: all that were counted up to it."""

    epoch: int
    samples: int


NOTHING = Moment(0, 0)


class Ancestry:
    """Of one peer's state."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, Moment | None] = OrderedDict()
        """Oldest first; None: this peer did not hold it itself."""

    def stepped_to(self, state_hash: StateHash, moment: Moment) -> None:
        """From the state before, by a round."""
        self._states[state_hash[:SHORT]] = moment
        while len(self._states) > MOST_STATES:
            self._states.popitem(last=False)

    def replaced_by(self, state_hash: StateHash, moment: Moment, ancestors: Collection[str]) -> Moment:
        """Others' state takes the place; returns the newest own one that is in its ancestry too, the very first if none is.

        ancestors: as `short` of a peer that holds the state, oldest first.
        """
        theirs = {*ancestors, state_hash[:SHORT]}
        common = next((m for name, m in reversed(self._states.items()) if name in theirs and m is not None), NOTHING)
        known = self._states
        self._states = OrderedDict((name, known.get(name)) for name in ancestors)
        self.stepped_to(state_hash, moment)
        return common

    def short(self, state_hash: StateHash) -> tuple[str, ...]:
        """What led to this state, oldest first; nothing when it is none of these."""
        names = list(self._states)
        place = state_hash[:SHORT]
        return tuple(names[: names.index(place)]) if place in self._states else ()
