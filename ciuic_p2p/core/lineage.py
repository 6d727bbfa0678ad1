"""Which state of a run goes on when peers hold different ones. Knows no rounds and no clock.

The rule, the same on every peer that sees the same standings: the state in which most samples were counted (the most work, as
in a chain of blocks); then the highest epoch; then the one that more peers hold; then the higher hash. The others take it over.
A peer that trained on alone, cut off or frozen, so never carries the others with it, however many epochs it counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ciuic_p2p.core.messages import Standing
from ciuic_p2p.terms import PeerId, StateHash


@dataclass(frozen=True, slots=True)
class Lineage:
    """One state of a run, by what identifies it."""

    epoch: int
    state_hash: StateHash
    samples: int


def best_lineage(standings: Iterable[Standing]) -> Lineage | None:
    """None while nobody has a state."""
    votes = Counter((s.samples, s.epoch, s.state_hash) for s in standings if s.epoch is not None)
    if not votes:
        return None
    samples, epoch, state_hash = max(votes, key=lambda one: (one[0], one[1], votes[one], one[2]))
    return Lineage(epoch, state_hash, samples)


def holders(lineage: Lineage, standings: Mapping[PeerId, Standing]) -> tuple[PeerId, ...]:
    """The peers that hold exactly this state, sorted."""
    return tuple(
        sorted(
            peer
            for peer, standing in standings.items()
            if standing.state_hash == lineage.state_hash
            and (standing.epoch, standing.samples) == (lineage.epoch, lineage.samples)
        )
    )
