"""A trainer as the daemon sees it: who it is, the memory shared with it, and what can be said to it. Knows no socket."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ciuic_p2p.errors import SwarmError
from ciuic_p2p.local.checks import LONGEST_TEXT
from ciuic_p2p.local.protocol import Advanced, Attach, Attached, Message, Refused, Waiting


class Trainer:
    """One attached process. What is said after it left goes nowhere."""

    def __init__(
        self,
        attach: Attach,
        exchange: NDArray[np.float32],  # [layout.count] float32, shared with the trainer
        say: Callable[[Message], None],
    ) -> None:
        self.pid = attach.pid
        self.run = attach.run
        self.exchange = exchange
        self.may_be_ready = False
        """The exchange is the trainer's: it was told so, and has not been ready since."""
        self._say = say

    def say_waiting(self, why: str) -> None:
        """Nothing is wrong; tells what the daemon waits for."""
        self._say(Waiting(why=why[:LONGEST_TEXT]))

    def say_attached(self, attached: Attached) -> None:
        """Call once the exchange holds the anchor."""
        self.may_be_ready = True
        self._say(attached)

    def say_advanced(self, advanced: Advanced) -> None:
        """Call once the exchange holds the new anchor; from then on it is the trainer's until it is ready again."""
        self.may_be_ready = True
        self._say(advanced)

    def say_refused(self, error: SwarmError) -> None:
        """The trainer raises `error`, and leaves."""
        self._say(refusal(error))


def refusal(error: SwarmError) -> Refused:
    """What stands for `error` on the wire."""
    what = getattr(error, "what", "") or str(error)
    return Refused(kind=type(error).__name__, what=what[:LONGEST_TEXT], remedy=getattr(error, "remedy", "")[:LONGEST_TEXT])
