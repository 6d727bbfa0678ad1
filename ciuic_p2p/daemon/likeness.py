"""What must be the same on all peers of a run, as one line; and what two such lines differ in. Pure, knows no trainer."""

from __future__ import annotations

from ciuic_p2p.local.protocol import StrategySettings
from ciuic_p2p.tensors.layout import Layout

_MODEL = "model"
_FROZEN = "frozen"


def likeness_of(layout: Layout, settings: StrategySettings) -> str:
    """Peers whose lines are equal can average."""
    facts = f"{layout.fingerprint} η={settings.outer_learning_rate} μ={settings.outer_momentum}"
    return f"{facts} {_FROZEN}={layout.frozen}" if layout.frozen else facts


def describe_difference(mine: str, theirs: str) -> str:
    """What a run with the line `theirs` has that the one who asks does not, to be read after "of" or "with".

    theirs: as a peer or a disk gave it; it may be anything, and nothing of it is shown.
    """
    ours, others = _facts_in(mine), _facts_in(theirs)
    if ours[_MODEL] != others[_MODEL]:
        return "another model (tensors of other names, shapes or dtypes)"
    if ours.get(_FROZEN) != others.get(_FROZEN):
        return "other frozen parameters, which do not travel and must be loaded from the same base on every peer"
    return "other outer settings (outer_learning_rate, outer_momentum)"


def _facts_in(line: str) -> dict[str, str]:
    model, *facts = line.split(" ")
    return {**{name: value for name, _, value in (fact.partition("=") for fact in facts)}, _MODEL: model}
