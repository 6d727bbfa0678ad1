"""Several sources as one stream, in proportion to their weights. Knows no format and no storage.

The n-th record of source i is due at (n + jitter) / weight_i, with a jitter in [0, 1) that follows from the seed; whichever is
due first comes first. So after n records no source is further than 1 + (number of sources) from its share of them, and yet
the sources alternate at random. Which one is next follows from how many came of each: there is no state beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from blake3 import blake3

from ciuic_p2p.data.positions import plain_whole
from ciuic_p2p.data.records import Place, Record
from ciuic_p2p.data.sources import Source
from ciuic_p2p.errors import LocalError, MalformedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far one source of a mixture is read."""

    taken: int = 0
    """Records, in all passes."""
    pass_number: int = 0
    place: Place = Place()  # noqa: RUF009  # it is frozen


MixturePlace = tuple[Reached, ...]
"""Before a record of a mixture; one entry a source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A record of a mixture."""

    record: Record
    pass_number: int
    """Of its source."""
    number: int
    """Records of the mixture before it."""
    before: MixturePlace
    after: MixturePlace


class Mixture:
    """Sources with weights, by number of records. Sources that end drop out, and the others go on in proportion."""

    def __init__(
        self, sources: Sequence[Source], weights: Sequence[float] | None = None, seed: int = 0, passes: int | None = 1
    ) -> None:
        """passes: over each source; None: without end. Raises LocalError for weights that are none."""
        self.sources = tuple(sources)
        self.weights = tuple(weights) if weights is not None else (1.0,) * len(self.sources)
        if not self.sources or len(self.weights) != len(self.sources):
            raise LocalError(
                f"{len(self.weights)} weights for {len(self.sources)} sources", "give one for each of at least one"
            )
        if not all(0 < weight < float("inf") for weight in self.weights):
            raise LocalError(f"weights {self.weights} are not all positive", "leave out a source that is not wanted")
        if passes is not None and passes < 1:
            raise LocalError(f"{passes} passes over the sources", "use 1 or more, or None for no end")
        self._seed = seed
        self.passes = passes

    def with_home(self, home: str | PathLike[str]) -> Mixture:
        """The same of sources that get their objects there; see `Source.with_home`."""
        return Mixture([source.with_home(home) for source in self.sources], self.weights, self._seed, self.passes)

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits: a place is good only for a mixture with the same."""
        parts: list[object] = [self._seed, self.passes, *self.weights]
        parts += [(source.fingerprint, source.shuffle_seed, source.format, source.row, source.dtype) for source in self.sources]
        return blake3(repr(parts).encode()).hexdigest(length=16)

    def beginning(self, pass_number: int = 0) -> MixturePlace:
        """Before the first record of a pass, as one who begins with it sees it."""
        return (Reached(pass_number=pass_number),) * len(self.sources)

    def read(self, start: MixturePlace) -> Iterator[Drawn]:
        """All records from `start` on. Raises LocalError for an empty source, and what Source.read raises."""
        return self._draw(start, self.passes)

    def read_pass(self, start: MixturePlace, pass_number: int) -> Iterator[Drawn]:
        """The records from `start` to the end of this pass over each source."""
        return self._draw(start, pass_number + 1)

    def _draw(self, start: MixturePlace, passes: int | None) -> Iterator[Drawn]:
        streams = {i: self._records_of(i, reached, passes) for i, reached in enumerate(start)}
        due = {i: self._due(i, start[i].taken) for i in streams}
        before, number = start, taken_of(start)
        while due:
            i = min(due, key=lambda i: (due[i], i))
            drawn = next(streams[i], None)
            if drawn is None:
                del due[i]
                continue
            record, reached = drawn
            after = (*before[:i], reached, *before[i + 1 :])
            yield Drawn(record=record, pass_number=reached.pass_number, number=number, before=before, after=after)
            before, number = after, number + 1
            due[i] = self._due(i, reached.taken)

    def _records_of(self, i: int, reached: Reached, passes: int | None) -> Iterator[tuple[Record, Reached]]:
        source = self.sources[i]
        while passes is None or reached.pass_number < passes:
            is_empty = reached.place == Place()
            for read in source.read(reached.place, reached.pass_number):
                is_empty = False
                reached = replace(reached, taken=reached.taken + 1, place=read.after)
                yield read.record, reached
            if is_empty:
                raise LocalError(f"{source.url} holds no record", "leave it out, or check how it was written")
            reached = Reached(taken=reached.taken, pass_number=reached.pass_number + 1)

    def _due(self, i: int, taken: int) -> float:
        digest = blake3(f"ciuic mixture\0{self._seed}\0{i}\0{taken}".encode()).digest(length=4)
        return (taken + int.from_bytes(digest, "big") / 2**32) / self.weights[i]


def taken_of(place: MixturePlace) -> int:
    """Records of the mixture before this place."""
    return sum(reached.taken for reached in place)


def place_to_plain(place: MixturePlace) -> list[list[int]]:
    """[taken, pass, file, record, offset] for each source."""
    return [[r.taken, r.pass_number, r.place.file, r.place.record, r.place.offset] for r in place]


def place_from_plain(value: Any) -> MixturePlace:
    """Raises MalformedMessage."""
    if not isinstance(value, list) or not all(isinstance(entry, list) and len(entry) == 5 for entry in value):
        raise MalformedMessage(None, "a place in a mixture is a list of [taken, pass, file, record, offset]")
    numbers = [[plain_whole(number) for number in entry] for entry in value]
    return tuple(Reached(taken=n[0], pass_number=n[1], place=Place(n[2], n[3], n[4])) for n in numbers)
