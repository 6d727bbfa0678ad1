"""Sets of the numbered slots of passes, held as intervals. Knows nothing of peers. Pure.

A pass goes once over a dataset of `count` slots, 0 … count − 1. What stands in a slot, a sample or a chunk of a stream, is
for the caller; `ciuic_p2p.data.order` shuffles samples into slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of whole numbers ≥ 0. `bounds` holds (start, stop) in ascending order, none empty, none touching the next."""

    bounds: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        before = -1
        for start, stop in self.bounds:
            if not before < start < stop:
                raise ValueError(f"({start}, {stop}) after {before} is no interval in ascending order, apart from the last")
            before = stop

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Intervals:
        """The union of intervals in any order; empty ones count for nothing."""
        joined: list[tuple[int, int]] = []
        for start, stop in sorted(pair for pair in pairs if pair[0] < pair[1]):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
            else:
                joined.append((start, stop))
        return cls(tuple(joined))

    @property
    def count(self) -> int:
        """How many numbers are in the set."""
        return sum(stop - start for start, stop in self.bounds)

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.of(self.bounds + other.bounds)

    def __and__(self, other: Intervals) -> Intervals:
        return Intervals(tuple(_common(self.bounds, other.bounds)))

    def __sub__(self, other: Intervals) -> Intervals:
        if not self.bounds:
            return self
        return self & Intervals(tuple(_gaps(other.bounds, self.bounds[-1][1])))

    def first(self, count: int) -> Intervals:
        """The lowest `count` numbers, or all when there are fewer."""
        taken: list[tuple[int, int]] = []
        for start, stop in self.bounds:
            if count <= 0:
                break
            taken.append((start, min(stop, start + count)))
            count -= stop - start
        return Intervals(tuple(taken))


def _common(left: tuple[tuple[int, int], ...], right: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    i = j = 0
    while i < len(left) and j < len(right):
        start, stop = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < stop:
            yield start, stop
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1


def _gaps(bounds: tuple[tuple[int, int], ...], end: int) -> Iterator[tuple[int, int]]:
    """What of 0 … end − 1 is in no interval."""
    reached = 0
    for start, stop in bounds:
        if start >= end:
            break
        if reached < start:
            yield reached, start
        reached = stop
    if reached < end:
        yield reached, end


@dataclass(frozen=True, slots=True)
class Slots:
    """A set of slots of any passes. `passes` holds (number of the pass, its slots) in ascending order, none of them empty."""

    passes: tuple[tuple[int, Intervals], ...] = ()

    def __post_init__(self) -> None:
        before = -1
        for number, slots in self.passes:
            if number <= before or not slots.bounds:
                raise ValueError(f"pass {number} after pass {before} with {slots.count} slots: not ascending, or empty")
            before = number

    @classmethod
    def of(cls, stretches: Iterable[tuple[int, int, int]]) -> Slots:
        """From (pass, start, stop) in any order."""
        pairs: dict[int, list[tuple[int, int]]] = {}
        for number, start, stop in stretches:
            pairs.setdefault(number, []).append((start, stop))
        return cls._of({number: Intervals.of(found) for number, found in pairs.items()})

    @classmethod
    def _of(cls, passes: dict[int, Intervals]) -> Slots:
        return cls(tuple((number, passes[number]) for number in sorted(passes) if passes[number].bounds))

    @property
    def count(self) -> int:
        """How many slots are in the set."""
        return sum(slots.count for _, slots in self.passes)

    def in_pass(self, number: int) -> Intervals:
        """Those of one pass."""
        return dict(self.passes).get(number, Intervals())

    def stretches(self) -> Iterator[tuple[int, int, int]]:
        """(pass, start, stop), in ascending order."""
        for number, slots in self.passes:
            for start, stop in slots.bounds:
                yield number, start, stop

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(pass, slot), in ascending order."""
        for number, start, stop in self.stretches():
            for slot in range(start, stop):
                yield number, slot

    def __or__(self, other: Slots) -> Slots:
        joined = dict(self.passes)
        for number, slots in other.passes:
            joined[number] = joined[number] | slots if number in joined else slots
        return Slots._of(joined)

    def __and__(self, other: Slots) -> Slots:
        theirs = dict(other.passes)
        return Slots._of({number: slots & theirs[number] for number, slots in self.passes if number in theirs})

    def __sub__(self, other: Slots) -> Slots:
        theirs = dict(other.passes)
        return Slots._of({number: slots - theirs.get(number, Intervals()) for number, slots in self.passes})

    def first(self, count: int) -> Slots:
        """The lowest `count` slots, or all when there are fewer."""
        taken: dict[int, Intervals] = {}
        for number, slots in self.passes:
            if count <= 0:
                break
            taken[number] = slots.first(count)
            count -= taken[number].count
        return Slots._of(taken)


NO_SLOTS = Slots()
