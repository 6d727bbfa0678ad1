"""Along which way the contributions to a span reach its owner, and its result the members: one tree for each span.

A butterfly and a star are trees of one level: everyone sends to the owner. In a hierarchy the members of each group send to
the group's carrier of the span, and the carriers to the owner, so that a cable between regions is crossed once each way. In
a ring each sends to the next. Sums go up the tree, the owner's result goes down the same edges. Pure; knows no values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from ciuic_p2p.core.messages import HIERARCHICAL, RING, Plan, Span
from ciuic_p2p.terms import PeerId

PLANS_KEPT = 2
"""Whose trees are remembered: a round's machine and its pacing ask for the same ones, and so do all peers of a simulation."""


class Tree:
    """The way of one span."""

    def __init__(self, owner: PeerId, parent: dict[PeerId, PeerId]) -> None:
        """parent: of every contributor but the owner."""
        self.owner = owner
        self._parent = parent
        self._children: dict[PeerId, list[PeerId]] = {}
        for child, above in parent.items():
            self._children.setdefault(above, []).append(child)

    def parent_of(self, peer: PeerId) -> PeerId | None:
        """To whom it sends what it has of the span; None for the owner and for who has no place in the tree."""
        return self._parent.get(peer)

    def edges(self) -> Iterable[tuple[PeerId, PeerId]]:
        """(from, to) of what goes up; the result goes the other way."""
        return self._parent.items()

    def children_of(self, peer: PeerId) -> Sequence[PeerId]:
        """From whom it gets contributions or partial sums, and to whom it sends the result."""
        return self._children.get(peer, ())

    def below(self, peer: PeerId) -> list[PeerId]:
        """Whose contributions a payload from `peer` may stand for: itself and all below it."""
        found = [peer]
        for member in found:
            found.extend(self._children.get(member, ()))
        return found

    def inner(self) -> list[PeerId]:
        """Those between members and the owner: without one of them, what is below it is cut off."""
        return [peer for peer in self._children if peer != self.owner]


def direct_tree(owner: PeerId, contributors: Sequence[PeerId]) -> Tree:
    return Tree(owner, {peer: owner for peer in contributors if peer != owner})


def tree_of(plan: Plan, span: Span) -> Tree:
    """The same on every peer."""
    members = plan.contributors
    if plan.topology == HIERARCHICAL:
        parent = {
            members[place]: members[carrier] if place != carrier else span.owner
            for group, carrier in zip(plan.groups, span.carriers, strict=True)
            for place in group
            if members[place] != span.owner
        }
        return Tree(span.owner, parent)
    if plan.topology == RING:
        order = [members[place] for place in plan.groups[0]]
        return Tree(span.owner, {peer: order[(i + 1) % len(order)] for i, peer in enumerate(order) if peer != span.owner})
    return direct_tree(span.owner, members)


@functools.lru_cache(maxsize=PLANS_KEPT)
def trees_of(plan: Plan) -> list[Tree]:
    """One for each span; spans that go the same way share theirs. Nobody may change the list: it is kept."""
    known: dict[tuple[PeerId, tuple[int, ...]], Tree] = {}
    for span in plan.spans:
        key = (span.owner, span.carriers)
        if key not in known:
            known[key] = tree_of(plan, span)
    return [known[span.owner, span.carriers] for span in plan.spans]
