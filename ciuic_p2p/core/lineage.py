"""Which state of a run goes on when peers hold different ones. Knows no rounds and no clock.

The rule, the same on every peer that sees the same standings: the highest epoch; then the state that more peers hold;
then the higher hash. The others take that state over. (One epoch behind is usually a peer that is about to finish.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ciuic_p2p.core.messages import Standing
from ciuic_p2p.terms import PeerId, StateHash


@dataclass(frozen=True, slots=True)
class Lineage:
    epoch: int
    state_hash: StateHash


def best_lineage(standings: Iterable[Standing]) -> Lineage | None:
    """None while nobody has a state."""
    votes = Counter(Lineage(s.epoch, s.state_hash) for s in standings if s.epoch is not None)
    if not votes:
        return None
    return max(votes, key=lambda lineage: (lineage.epoch, votes[lineage], lineage.state_hash))


def holders(lineage: Lineage, standings: Mapping[PeerId, Standing]) -> tuple[PeerId, ...]:
    """The peers that hold exactly this state, sorted."""
    wanted = (lineage.epoch, lineage.state_hash)
    return tuple(sorted(p for p, s in standings.items() if (s.epoch, s.state_hash) == wanted))
