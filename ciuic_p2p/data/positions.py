"""How far all peers together are in a dataset: the part of a snapshot that says which samples are used. Pure.

`Positions` is a state-based CRDT, a set that only grows (Shapiro et al., Conflict-free Replicated Data Types, 2011): merging
is a union, so those of several peers may be merged in any order and any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ciuic_p2p.data.slots import NO_SLOTS, Intervals, Slots
from ciuic_p2p.errors import LocalError, MalformedMessage

UNBOUNDED = 1 << 62
"""Slots of a stream whose end is not known. Once somebody found it, all slots from there on are as good as used."""
LARGEST_STRETCHES = 1 << 16
"""In a value from elsewhere: a swarm has a few stretches for each peer that ever held a lease and lost it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Which slots are used. The same set has one form only, so equal positions have equal bytes."""

    count: int
    """Slots in a pass."""
    finished: int = 0
    """So many passes, from the first on, are used whole."""
    beyond: Slots = NO_SLOTS
    """What is used of the passes after them."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.finished < 0:
            raise ValueError(f"{self.finished} finished passes over {self.count} slots")
        for number, _, stop in self.beyond.stretches():
            if number < self.finished or stop > self.count:
                raise ValueError(f"slots up to {stop} of pass {number} are not beyond {self.finished} passes of {self.count}")
        if self.beyond.in_pass(self.finished).count == self.count:
            raise ValueError(f"pass {self.finished} is used whole, so it is finished")

    def using(self, slots: Slots) -> Positions:
        """These slots are used as well. Raises ValueError for a slot that the dataset does not have."""
        return _settled(self.count, self.finished, self.beyond | slots)

    def merge(self, other: Positions) -> Positions:
        """What is used by either. Raises LocalError when they are of datasets of different sizes."""
        if self.count != other.count:
            what = f"positions in a dataset of {self.count} samples do not fit one of {other.count}"
            raise LocalError(what, "use the same dataset on every peer, and a new run name for a new one")
        return _settled(self.count, max(self.finished, other.finished), self.beyond | other.beyond)

    def unused(self, slots: Slots) -> Slots:
        """What of `slots` is not used yet."""
        later = Slots(tuple((number, found) for number, found in slots.passes if number >= self.finished))
        return later - self.beyond

    def next_unused(self, count: int, held: Slots) -> Slots:
        """The lowest `count` slots that are neither used nor held, pass after pass without end."""
        found: list[tuple[int, Intervals]] = []
        whole, none, number = Intervals(((0, self.count),)), Intervals(), self.finished
        used, taken = dict(self.beyond.passes), dict(held.passes)
        while count > 0:
            free = (whole - used.get(number, none) - taken.get(number, none)).first(count)
            if free.bounds:
                found.append((number, free))
            count -= free.count
            number += 1
        return Slots(tuple(found))

    def coarser(self, most_stretches: int) -> Positions:
        """With more used stretches than that, the smallest gaps between them count as used, then the lowest passes do."""
        over = sum(len(used.bounds) for _, used in self.beyond.passes) - most_stretches
        if over <= 0:
            return self
        gaps = sorted(_gaps_between(self.beyond), key=lambda gap: (gap[2] - gap[1], gap))
        filled = self.using(Slots.of(gaps[:over]))
        passes = filled.beyond.passes
        if len(passes) <= most_stretches:
            return filled
        return _settled(self.count, passes[len(passes) - most_stretches][0], filled.beyond)

    def to_plain(self) -> dict[str, Any]:
        """As whole numbers, lists and words, for msgpack or JSON."""
        return {"count": self.count, "finished": self.finished, "beyond": slots_to_plain(self.beyond)}

    @classmethod
    def from_plain(cls, value: Any) -> Positions:
        """What `to_plain` gave, from anyone. Raises MalformedMessage."""
        fields = plain_fields(value, ("count", "finished", "beyond"))
        count, finished = plain_whole(fields["count"]), plain_whole(fields["finished"])
        try:
            return cls(count=count, finished=finished, beyond=slots_from_plain(fields["beyond"]))
        except ValueError as error:
            raise MalformedMessage(None, f"positions: {error}") from None


def _settled(count: int, finished: int, beyond: Slots) -> Positions:
    """In the one form: passes that are used whole are only counted."""
    passes = dict(beyond.passes)
    while passes.get(finished, Intervals()).count == count:
        finished += 1
    later = Slots(tuple((number, slots) for number, slots in beyond.passes if number >= finished))
    return Positions(count=count, finished=finished, beyond=later)


def _gaps_between(slots: Slots) -> list[tuple[int, int, int]]:
    """(pass, start, stop) of what lies between two stretches of one pass."""
    return [
        (number, before[1], behind[0])
        for number, found in slots.passes
        for before, behind in zip(found.bounds, found.bounds[1:], strict=False)
    ]


def slots_to_plain(slots: Slots) -> list[list[int]]:
    """[pass, start, stop], in ascending order."""
    return [list(stretch) for stretch in slots.stretches()]


def slots_from_plain(value: Any) -> Slots:
    """Raises MalformedMessage."""
    if not isinstance(value, list) or len(value) > LARGEST_STRETCHES:
        raise MalformedMessage(None, f"slots are a list of at most {LARGEST_STRETCHES} stretches")
    stretches = []
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 3:
            raise MalformedMessage(None, "a stretch of slots is [pass, start, stop]")
        number, start, stop = map(plain_whole, entry)
        stretches.append((number, start, stop))
    return Slots.of(stretches)


def plain_fields(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """A dict with these fields and no others. Raises MalformedMessage."""
    if not isinstance(value, dict) or set(value) != set(names):
        raise MalformedMessage(None, f"expected the fields {', '.join(names)}")
    return value


def plain_whole(value: Any) -> int:
    """A whole number, 0 … 2^63 − 1. Raises MalformedMessage."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise MalformedMessage(None, "expected a whole number from 0 to 2^63 - 1")
    return value
