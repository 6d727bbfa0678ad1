"""Rates of every pair for one plan, along its trees: no line and no cable is asked for more than it has."""

from __future__ import annotations

from collections.abc import Mapping

from ciuic_p2p.core.messages import Plan
from ciuic_p2p.core.trees import trees_of
from ciuic_p2p.terms import PeerId


def count_pair_values(plan: Plan) -> dict[tuple[PeerId, PeerId], int]:
    """(from, to) → values that the plan moves: contributions and sums up the trees, results down them and to listeners."""
    moved: dict[tuple[PeerId, PeerId], int] = {}

    def add(source: PeerId, target: PeerId, values: int) -> None:
        moved[source, target] = moved.get((source, target), 0) + values

    for span, tree in zip(plan.spans, trees_of(plan), strict=True):
        values = span.stop - span.start
        for peer, parent in tree.edges():
            add(peer, parent, values)
            add(parent, peer, values)
        for listener in plan.listeners:
            add(span.owner, listener, values)
    return moved


def pair_rates_mbps(plan: Plan, encoded_bytes: float, transfer_s: float) -> Mapping[tuple[PeerId, PeerId], float]:
    """(from, to) → Mbit/s: what the pair moves ÷ the seconds in which lines and cables can carry everything.

    encoded_bytes: of the whole tensor. transfer_s: `Planned.transfer_s`. All transfers then end together.
    """
    if transfer_s <= 0:
        return {}
    megabits = encoded_bytes * 8e-6 / max(plan.count, 1)
    return {pair: values * megabits / transfer_s for pair, values in count_pair_values(plan).items()}
