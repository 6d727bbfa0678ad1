"""The whole way from files to batches, resumable after every one. Knows how the stages fit together, and nothing of peers.

pipeline = Pipeline([Source(url="s3://corpus/web"), Source(url="books/*.jsonl.zst")], weights=[3, 1], passes=None)
pipeline = pipeline.clean(normalise, Length(least=200), ExactDuplicates()).tokenise(tokeniser).pack(512).batch(8)
for tokens in pipeline:  # [8, 512] int64
    ...
saved = pipeline.positions()  # later: pipeline.resume(saved)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeVar

from blake3 import blake3

from ciuic_p2p.data.cleaning import Document, Step, begin, window_of
from ciuic_p2p.data.mixing import Drawn, Mixture, MixturePlace, place_from_plain, place_to_plain, taken_of
from ciuic_p2p.data.positions import plain_fields, plain_whole
from ciuic_p2p.data.records import Record
from ciuic_p2p.data.sources import Source
from ciuic_p2p.data.tokens import END, Item, Mark, batch, encode_items, end_of, pack, tokeniser_fingerprint
from ciuic_p2p.errors import LocalError, MalformedMessage

P = TypeVar("P")
_TRAIL = 64
"""Places kept of a window: so many times less is read again in vain."""


@dataclass(frozen=True, slots=True)
class ReadingPlace:
    """Where a stream goes on."""

    reading: MixturePlace
    """Before the next document."""
    warm_from: MixturePlace
    """From here on documents are read once more, so that cleaning remembers what it had seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What is done to documents, in this order."""

    text: str = "text"
    """The field of a record that holds the document; of a WebDataset, the ending of the member, such as "txt"."""
    steps: tuple[Step, ...] = ()
    tokeniser: Any = None
    end: int = 0
    documents: int = 64
    """Tokenised at once."""
    length: int | None = None
    size: int | None = None

    def run(self, texts: Iterable[Item[P]]) -> Iterator[Item[P]]:
        """From clean texts to what the pipeline gives."""
        items = iter(texts)
        if self.tokeniser is not None:
            items = encode_items(items, self.tokeniser, self.documents)
        if self.length is not None:
            items = pack(items, self.length, self.end)
        if self.size is not None:
            items = batch(items, self.size, stacked=self.length is not None)
        return items

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits. Functions count by their names."""
        steps = [getattr(step, "__qualname__", None) or repr(step) for step in self.steps]
        tokeniser = tokeniser_fingerprint(self.tokeniser) if self.tokeniser is not None else None
        return blake3(repr([self.text, steps, tokeniser, self.end, self.length]).encode()).hexdigest(length=16)


class Pipeline:
    """Each method gives a new pipeline, at the beginning. Iterating goes on from where the last iteration stopped.

    It reads in the process that iterates: a DataLoader with workers would not know how far it was used.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float] | None = None,
        *,
        text: str = "text",
        seed: int = 0,
        passes: int | None = 1,
    ) -> None:
        """weights: in documents; default: all the same. passes: over each source, None without end. Raises LocalError."""
        self.mixture = Mixture(sources, weights, seed, passes)
        self.stages = Stages(text=text)
        self._mark = self._beginning()

    def clean(self, *steps: Step) -> Pipeline:
        """With these steps after those that are there: functions from text to text or None, or settings of cleaning.py."""
        return self._with(steps=self.stages.steps + steps)

    def tokenise(self, tokeniser: Any, end: str = END, documents: int = 64) -> Pipeline:
        """Gives [tokens] int32 of each document. end: the token that packing puts after it. Raises LocalError without it."""
        return self._with(tokeniser=tokeniser, end=end_of(tokeniser, end), documents=documents)

    def pack(self, length: int) -> Pipeline:
        """Gives sequences, [length] int32. Raises LocalError before `tokenise`."""
        if self.stages.tokeniser is None:
            raise LocalError("texts cannot be packed", "call tokenise before pack")
        return self._with(length=length)

    def batch(self, size: int) -> Pipeline:
        """Gives [size, length] int64 of packed sequences, the last one smaller; else lists of `size`."""
        return self._with(size=size)

    def with_home(self, home: str | PathLike[str]) -> Pipeline:
        """With sources that get their objects from the daemon of this home, where they do not name another."""
        changed = self._with()
        changed.mixture = self.mixture.with_home(home)
        return changed

    def __iter__(self) -> Iterator[Any]:
        for item in self.stages.run(self._texts(self._mark)):
            self._mark = item.after
            yield item.value

    def positions(self) -> dict[str, Any]:
        """After what was last given, as whole numbers, lists and words. A few hundred bytes."""
        place = self._mark.place
        return {
            "fingerprint": self.fingerprint,
            "reading": place_to_plain(place.reading),
            "warm_from": place_to_plain(place.warm_from),
            "skip": self._mark.skip,
        }

    def resume(self, positions: Any) -> None:
        """The next thing given is the one after `positions`. Raises MalformedMessage, and LocalError when something is changed
        on which they rest: files, weights, seed, passes, steps, tokeniser or length."""
        fields = plain_fields(positions, ("fingerprint", "reading", "warm_from", "skip"))
        if fields["fingerprint"] != self.fingerprint:
            what = "these positions are of another pipeline, or files were added or changed since"
            raise LocalError(what, "use the same sources and settings, or begin anew with rewind()")
        reading, warm_from = place_from_plain(fields["reading"]), place_from_plain(fields["warm_from"])
        if {len(reading), len(warm_from)} != {len(self.mixture.sources)} or taken_of(warm_from) > taken_of(reading):
            raise MalformedMessage(None, "these positions are in other sources")
        self._mark = Mark(ReadingPlace(reading, warm_from), plain_whole(fields["skip"]))

    def rewind(self) -> None:
        """Back to the beginning."""
        self._mark = self._beginning()

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits: another one where something is changed on which positions rest."""
        return self.mixture.fingerprint + self.stages.fingerprint

    def _beginning(self) -> Mark[ReadingPlace]:
        return Mark(ReadingPlace(self.mixture.beginning(), self.mixture.beginning()))

    def _with(self, **changes: Any) -> Pipeline:
        changed = Pipeline.__new__(Pipeline)
        changed.mixture = self.mixture
        changed.stages = replace(self.stages, **changes)
        changed._mark = changed._beginning()
        return changed

    def _texts(self, mark: Mark[ReadingPlace]) -> Iterator[Item[ReadingPlace]]:
        """Clean texts from `mark` on, the first with its `skip`."""
        wash, trail = begin(self.stages.steps), _Trail(window_of(self.stages.steps))
        first, skip = taken_of(mark.place.reading), mark.skip
        for drawn in self.mixture.read(mark.place.warm_from):
            before = Mark(trail.place_before(drawn), skip if drawn.number == first else 0)
            text = wash(Document(text_in(drawn.record, self.stages.text), drawn.number, drawn.pass_number))
            if text is not None and drawn.number >= first:
                yield Item(text, before, Mark(trail.place_after(drawn)))


class _Trail:
    """Where a stream was a window ago."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._stride = max(1, window // _TRAIL)
        self._places: deque[tuple[int, MixturePlace]] = deque()

    def place_before(self, drawn: Drawn) -> ReadingPlace:
        if not self._places or drawn.number % self._stride == 0:
            self._places.append((drawn.number, drawn.before))
        return self._place(drawn.number, drawn.before)

    def place_after(self, drawn: Drawn) -> ReadingPlace:
        return self._place(drawn.number + 1, drawn.after)

    def _place(self, number: int, reading: MixturePlace) -> ReadingPlace:
        if not self._window:
            return ReadingPlace(reading, reading)
        while len(self._places) > 1 and self._places[1][0] <= number - self._window:
            self._places.popleft()
        return ReadingPlace(reading, self._places[0][1])


def text_in(record: Record, field: str) -> str:
    """Raises LocalError for a record without it, or with something else there."""
    value = record.get(field)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise LocalError(
                f"field {field!r} holds bytes that are no UTF-8", "name the field that holds text with text="
            ) from None
    if not isinstance(value, str):
        has = ", ".join(sorted(map(str, record))[:8])
        raise LocalError(f"a record holds no text in {field!r}, it has: {has}", "name the field that holds text with text=")
    return value
