"""How many inner steps a round is worth: so many that it costs little beside them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

ROUND_SHARE = 0.25
"""Of the time of the inner steps before it: what a round may cost."""

MANY_STEPS = 100
"""Beyond this peers drift apart; a smaller tensor is the better remedy then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    inner_steps: int
    share: float
    """Of the inner steps' time that the round costs then."""
    advice: str
    """For people."""


def suggest_inner_steps(predicted_s: float, step_s: float) -> Suggestion:
    """The least number of steps of `step_s` seconds beside which a round of `predicted_s` costs ROUND_SHARE or less."""
    steps = max(1, math.ceil(predicted_s / (ROUND_SHARE * step_s) - 1e-9))
    share = predicted_s / (steps * step_s)
    return Suggestion(inner_steps=steps, share=share, advice=_advise(steps))


def _advise(steps: int) -> str:
    if steps == 1:
        return "average after every step"
    if steps <= MANY_STEPS:
        return f"DiLoCo(inner_steps={steps})"
    return f"DiLoCo(inner_steps={steps}) is over {MANY_STEPS}: peers drift apart; quicker lines or a smaller model would help"
