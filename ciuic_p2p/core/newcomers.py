"""When the others wait for a newcomer that cannot catch up by itself. Pure; knows no clock.

A newcomer takes the state of one epoch while it keeps the results of the rounds after it. Where rounds are quicker than that,
it would never arrive: so after two epochs the leader holds its plan back until it is there, at most for as long as taking the
state should need, and after each time in vain it lets twice as many epochs pass.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ciuic_p2p.terms import PeerId

EPOCHS_TO_ARRIVE = 2
FIRST_HOLD_S = 2.0
"""The plan of the epoch in which a newcomer is first seen waits so long: who begins with the same model is there by then."""
LEAST_HOLD_S = 30.0
LONGEST_HOLD_S = 120.0
SLOW_LINK_BPS = 10e6
"""A hold is long enough for the state to come over a link of this speed."""
STATE_BITS_PER_VALUE = 64
"""Anchor and momentum, float32 each."""


@dataclass(slots=True)
class _Wait:
    seen_epoch: int
    due_epoch: int
    epochs_apart: int = EPOCHS_TO_ARRIVE


class Newcomers:
    """The leader's and every possible successor's view."""

    def __init__(self) -> None:
        self._waits: dict[PeerId, _Wait] = {}

    def hold_s(self, behind: Collection[PeerId], epoch: int, count: int) -> float:
        """behind: peers that train and do not stand at `epoch`. Seconds to hold back the plan of `epoch`; 0: none is due."""
        for peer in set(self._waits) - set(behind):
            del self._waits[peer]
        for peer in behind:
            self._waits.setdefault(peer, _Wait(epoch, epoch + EPOCHS_TO_ARRIVE))
        if not any(self._waits[peer].due_epoch <= epoch for peer in behind):
            return FIRST_HOLD_S if any(self._waits[peer].seen_epoch == epoch for peer in behind) else 0.0
        return min(max(LEAST_HOLD_S, count * STATE_BITS_PER_VALUE / SLOW_LINK_BPS), LONGEST_HOLD_S)

    def go_on_without(self, epoch: int) -> None:
        """The plan of `epoch` was made; those it was held back for in vain have to wait longer."""
        for wait in self._waits.values():
            if wait.due_epoch <= epoch:
                wait.epochs_apart *= 2
                wait.due_epoch = epoch + wait.epochs_apart
