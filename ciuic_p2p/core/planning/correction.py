"""What experience says of the model: how much longer rounds took than predicted. Pure; is told, never looks."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

REMEMBERED = 32
"""Rounds, of all topologies: what one did long ago, perhaps over cold connections, does not rule it out for ever."""
NEWEST = 5
"""Rounds of one topology whose middle counts."""
TRUSTED = 3
"""Fewer rounds of a topology are outweighed by how wrong the model was of the others: the first one runs over cold paths."""
LEAST, MOST = 0.25, 4.0
"""A model that is wrong by more is not corrected by a factor."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The newest rounds' ratios of seconds taken to seconds modelled; immutable."""

    ratios: tuple[tuple[str, float], ...] = ()
    """(topology, ratio), the oldest first."""

    def add(self, topology: str, modelled_s: float, took_s: float) -> Correction:
        """With one finished round more. One that took no time, or was to take none, says nothing."""
        if modelled_s <= 0 or took_s <= 0:
            return self
        return Correction((*self.ratios, (topology, took_s / modelled_s))[-REMEMBERED:])

    def factor(self, topology: str) -> float:
        """What to multiply the model's seconds by. A topology not tried yet is as wrong as the others were."""
        own = [ratio for name, ratio in self.ratios if name == topology][-NEWEST:]
        others = [ratio for name, ratio in self.ratios if name != topology]
        if others:
            own += [statistics.median(others)] * (TRUSTED - len(own))
        return min(max(statistics.median(own), LEAST), MOST) if own else 1.0
