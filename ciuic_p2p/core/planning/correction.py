"""What experience says of the model: how much longer rounds took than predicted. Pure; is told, never looks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

REMEMBERED = 5
LEAST, MOST = 0.25, 4.0
"""A model that is wrong by more is not corrected by a factor, and one freak round must not rule it."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The newest rounds' ratios of seconds taken to seconds modelled, for each topology; immutable."""

    ratios: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def add(self, topology: str, modelled_s: float, took_s: float) -> Correction:
        """With one finished round more. One that took no time, or was to take none, says nothing."""
        if modelled_s <= 0 or took_s <= 0:
            return self
        newest = (*self.ratios.get(topology, ()), took_s / modelled_s)[-REMEMBERED:]
        return Correction({**self.ratios, topology: newest})

    def factor(self, topology: str) -> float:
        """What to multiply the model's seconds by. A topology not tried yet is as wrong as the others were."""
        known = self.ratios.get(topology) or [ratio for ratios in self.ratios.values() for ratio in ratios]
        return min(max(statistics.median(known), LEAST), MOST) if known else 1.0
