"""What one peer adds up in a round, and which way each part goes: who owns it now, whose payloads are wanted, what has come.

Kept by core/rounds.py, which decides; here is only the bookkeeping. Knows no messages and no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ciuic_p2p.core.messages import Plan
from ciuic_p2p.core.parts import Part, cut_parts
from ciuic_p2p.core.trees import Tree, direct_tree, trees_of
from ciuic_p2p.terms import PeerId


@dataclass(slots=True)
class Tally:
    """The payloads for one part that this peer adds up: contributions, and sums of those below their sender."""

    added: set[PeerId] = field(default_factory=set)
    adding: set[PeerId] = field(default_factory=set)
    refused: set[PeerId] = field(default_factory=set)
    closed: bool = False
    """The mean is being taken, or the sum was sent on: nothing can enter it any more."""

    def has_all(self, wanted: Collection[PeerId]) -> bool:
        if self.adding or len(self.added) + len(self.refused) < len(wanted):
            return False
        return all(peer in self.added or peer in self.refused for peer in wanted)

    def knows(self, peer: PeerId) -> bool:
        return peer in self.added or peer in self.adding or peer in self.refused


class Reduction:
    """Of one round, as one peer sees it."""

    def __init__(self, me: PeerId, plan: Plan) -> None:
        self.me = me
        self.parts: tuple[Part, ...] = cut_parts(plan)
        self.owner: list[PeerId] = [part.owner for part in self.parts]
        self.owner_term: list[int] = [plan.term] * len(self.parts)
        self._contributors = plan.contributors
        self._direct: dict[PeerId, Tree] = {}
        self._trees: list[Tree] = _trees_of_parts(plan, self.parts)
        self._tallies: dict[int, Tally] = {}
        self._wanted: dict[Tree, frozenset[PeerId]] = {}
        """By tree, for the contributors expected now."""

    # -- ways ----------------------------------------------------------------------------------------------------------

    def parent_of(self, part: int, peer: PeerId) -> PeerId | None:
        """Where `peer` sends what it has of the part, and from where it gets the result."""
        return self._trees[part].parent_of(peer)

    def children_of(self, part: int) -> Sequence[PeerId]:
        return self._trees[part].children_of(self.me)

    def adds_up(self, part: int) -> bool:
        """As owner, or between others and the owner."""
        return self.owner[part] == self.me or bool(self.children_of(part))

    def is_cut_off(self, part: int, lost: Collection[PeerId]) -> bool:
        """Whether one of the lost is on the way between the part's owner and this peer."""
        above = self.parent_of(part, self.me)
        while above is not None and above not in lost:
            above = self.parent_of(part, above)
        return above is not None

    def carries(self, part: int, peer: PeerId) -> bool:
        """Whether others' contributions or results go through it though it is not the owner."""
        return peer != self.owner[part] and bool(self._trees[part].children_of(peer))

    def cut_off(self, lost: Collection[PeerId]) -> list[int]:
        """The parts of which some sums or results went through one of the lost, whose owner may live."""
        cut = {tree for tree in set(self._trees) if any(peer in lost for peer in tree.inner())}
        return [part for part, tree in enumerate(self._trees) if tree in cut]

    def reassign(self, part: int, owner: PeerId, term: int) -> None:
        """From now on everyone sends the part to this owner directly, anew; but a mean that it takes already stays."""
        tally = self._tallies.get(part)
        if not (tally is not None and tally.closed and self.owner[part] == owner == self.me):
            self._tallies.pop(part, None)
        self.owner[part], self.owner_term[part] = owner, term
        if owner not in self._direct:
            self._direct[owner] = direct_tree(owner, self._contributors)
        self._trees[part] = self._direct[owner]

    # -- what has come -------------------------------------------------------------------------------------------------

    def tally(self, part: int) -> Tally:
        return self._tallies.setdefault(part, Tally())

    def wanted(self, part: int, expected: Collection[PeerId]) -> frozenset[PeerId]:
        """Whose payloads this peer waits for: its own, and those of children that stand for somebody expected."""
        tree = self._trees[part]
        found = self._wanted.get(tree)
        if found is None:
            from_others = (child for child in tree.children_of(self.me) if any(peer in expected for peer in tree.below(child)))
            found = frozenset((*from_others, self.me) if self.me in expected else from_others)
            self._wanted[tree] = found
        return found

    def expectation_changed(self) -> None:
        self._wanted.clear()

    def missing(self, part: int, expected: Collection[PeerId]) -> list[PeerId]:
        """Whose payloads have not come, in order."""
        tally = self._tallies.get(part)
        if tally is None:
            return sorted(self.wanted(part, expected))
        return [] if tally.closed else sorted(peer for peer in self.wanted(part, expected) if not tally.knows(peer))


def _trees_of_parts(plan: Plan, parts: Sequence[Part]) -> list[Tree]:
    found = []
    spans = iter(zip(plan.spans, trees_of(plan), strict=True))
    span, tree = None, None
    for part in parts:
        if part.is_report:
            found.append(direct_tree(part.owner, plan.contributors))
            continue
        while span is None or part.start >= span.stop:
            span, tree = next(spans)
        assert tree is not None
        found.append(tree)
    return found
