"""A pipeline that reads what its trainer's lease says: numbered chunks of the stream of all sources.

Chunk k of a pass is documents k · size … of the mixture, before cleaning. To find them a trainer reads past those of others,
which costs reading and no training; sources of many files are best leased by the file, as samples of a map-style dataset.
Cleaning compares a document with what this trainer has read, since it began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from ciuic_p2p.data.cleaning import Document, begin
from ciuic_p2p.data.mixing import Drawn, Mixture, MixturePlace
from ciuic_p2p.data.pipeline import Pipeline, text_in
from ciuic_p2p.data.positions import UNBOUNDED
from ciuic_p2p.data.slots import NO_SLOTS, Slots
from ciuic_p2p.data.tokens import Item, Mark
from ciuic_p2p.errors import LocalError

_PLACES = 1 << 10
"""Remembered of one pass, the older the sparser; to go back to a chunk costs reading from the nearest one before it."""


class LeasedReader:
    """Iterating gives what the pipeline gives of the lease, until all of it is used.

    Between two values `hold` may change the lease. When an iteration ends, what fills no packed sequence is dropped; one that
    is broken off is followed by one that begins with the chunks that were not used whole.
    """

    def __init__(self, pipeline: Pipeline, chunk: int = 1) -> None:
        """chunk: documents in a slot; the same on every peer. The positions of such a dataset have UNBOUNDED slots.

        A chunk is used when all of it was given, so a trainer that dies inside one leaves the whole of it to others.
        """
        if chunk < 1:
            raise LocalError(f"chunks of {chunk} documents", "use 1 or more")
        self._stages = pipeline.stages
        self._chunks = Chunks(pipeline.mixture, chunk)
        self._wash = begin(self._stages.steps)
        self._documents = 0
        self._lease = NO_SLOTS
        self._begun = NO_SLOTS
        self._used = NO_SLOTS
        self._waiting: deque[tuple[int, Slots]] = deque()
        self._chunks_begun = 0

    def hold(self, lease: Slots) -> None:
        """From now on the lease is this. What of it was begun is not read again, reported or not."""
        self._lease = lease
        self._begun &= lease
        self._used &= lease

    def used(self) -> Slots:
        """Of the lease, what is in the values given so far: to be reported along with the contribution they went into."""
        return self._used

    def ended(self) -> Slots:
        """Of passes whose end was found, the slots after it: for `settle` on every peer."""
        return Slots.of((number, end, UNBOUNDED) for number, end in self._chunks.ends.items())

    def __iter__(self) -> Iterator[Any]:
        self._begun = self._used
        self._waiting.clear()
        for item in self._stages.run(self._texts()):
            self._use_up_to(item.after.place)
            yield item.value
        self._use_up_to(self._chunks_begun)

    def _texts(self) -> Iterator[Item[int]]:
        """Each mark is the number of chunks begun before the one it lies in."""
        while (slot := (self._lease - self._begun).first(1)).count:
            self._begun |= slot
            at = self._chunks_begun
            self._chunks_begun += 1
            self._waiting.append((at, slot))
            [(pass_number, chunk)] = slot
            texts = [text for drawn in self._chunks.read(pass_number, chunk) if (text := self._cleaned(drawn)) is not None]
            for left, text in enumerate(texts, start=1 - len(texts)):
                yield Item(text, Mark(at), Mark(at if left else at + 1))

    def _cleaned(self, drawn: Drawn) -> str | None:
        self._documents += 1
        return self._wash(Document(text_in(drawn.record, self._stages.text), self._documents, drawn.pass_number))

    def _use_up_to(self, place: int) -> None:
        while self._waiting and self._waiting[0][0] < place:
            self._used |= self._waiting.popleft()[1] & self._lease


class Chunks:
    """Of a mixture, in any order; ascending ones are read in one go."""

    def __init__(self, mixture: Mixture, size: int, *, endless: bool = False) -> None:
        """endless: of a mixture without end; all of its chunks are in pass 0."""
        self.ends: dict[int, int] = {}
        """Pass → chunks in it, where that was found."""
        self._mixture = mixture
        self._size = size
        self._endless = endless
        self._places: dict[int, dict[int, MixturePlace]] = {}
        self._stream: Iterator[Drawn] = iter(())
        self._next = (-1, 0)

    def read(self, pass_number: int, chunk: int) -> list[Drawn]:
        """Its documents; the last chunk has fewer, those after it none. Raises what Mixture.read raises."""
        if chunk >= self.ends.get(pass_number, chunk + 1):
            return []
        at = self._go_near(pass_number, chunk)
        while at < chunk and self._read_next(pass_number, at):
            at += 1
        return self._read_next(pass_number, at) if at == chunk else []

    def _go_near(self, pass_number: int, chunk: int) -> int:
        """The chunk that the stream is before now: `chunk` or one before it."""
        places = self._places.setdefault(pass_number, {0: self._mixture.beginning(pass_number)})
        nearest = max(known for known in places if known <= chunk)
        if self._next[0] != pass_number or not nearest <= self._next[1] <= chunk:
            place = places[nearest]
            self._stream = self._mixture.read(place) if self._endless else self._mixture.read_pass(place, pass_number)
            self._next = (pass_number, nearest)
        return self._next[1]

    def _read_next(self, pass_number: int, chunk: int) -> list[Drawn]:
        self._next = (-1, 0)  # should the stream break, the next read begins from a known place
        found = [drawn for _, drawn in zip(range(self._size), self._stream, strict=False)]
        if len(found) < self._size:
            self.ends[pass_number] = chunk + bool(found)
        else:
            self._remember(pass_number, chunk + 1, found[-1].after)
            self._next = (pass_number, chunk + 1)
        return found

    def _remember(self, pass_number: int, chunk: int, place: MixturePlace) -> None:
        places = self._places[pass_number]
        places[chunk] = place
        if len(places) > _PLACES:
            for known in sorted(places)[1::2]:
                del places[known]
        for old in [number for number in self._places if number < pass_number - 1]:
            del self._places[old]
