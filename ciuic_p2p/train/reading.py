"""What a pipeline gives of the documents that a trainer holds. Knows neither daemon nor model: it asks for both.

Slot k of the dataset is document k of the mixture, before cleaning; there is no end. A document is delivered when all that it
became was given. A packed sequence may end inside one, whose rest waits for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ciuic_p2p.data.cleaning import Document, begin
from ciuic_p2p.data.leased import Chunks
from ciuic_p2p.data.pipeline import Pipeline, text_in
from ciuic_p2p.data.tokens import Item, Mark
from ciuic_p2p.errors import LocalError
from ciuic_p2p.train.shares import Share

AT_ONCE = 16
"""Documents that are handed out together, as that is quicker."""


class LeasedStream:
    """Iterating goes on where the last iteration stopped, and does not end."""

    def __init__(self, pipeline: Pipeline, share: Share, supply: Callable[[Share], None]) -> None:
        """supply: called when all that is held is handed out; ends with more, or raises."""
        self._stages, self._share, self._supply = pipeline.stages, share, supply
        self._documents = Chunks(pipeline.mixture, 1, endless=True)

    def __iter__(self) -> Iterator[Any]:
        while True:
            while not self._share.begin_pass():
                self._supply(self._share)
            for item in self._stages.run(self._texts()):
                if not self._share.holds_what_waits():
                    break  # something in it is another's by now; what is still held is read once more
                while self._delivered < item.after.place:
                    self._delivered += 1
                    self._share.deliver()
                yield item.value

    def _texts(self) -> Iterator[Item[int]]:
        """Each mark is the number of documents handed out before."""
        self._delivered = handed_out = 0
        furthest, wash = (0, 0), begin(self._stages.steps)
        while True:
            slots = self._share.take_singly(AT_ONCE)
            if not slots.count:
                self._supply(self._share)
                continue
            for pass_number, document in slots:
                if (pass_number, document) < furthest:
                    wash = begin(self._stages.steps)  # what is read once more is no duplicate of itself
                furthest = (pass_number, document)
                for drawn in self._documents.read(pass_number, document):
                    text = wash(Document(text_in(drawn.record, self._stages.text), document, drawn.pass_number))
                    if text is not None:
                        yield Item(text, Mark(handed_out), Mark(handed_out + 1))
                handed_out += 1


def require_stream(pipeline: Pipeline, options: dict[str, Any]) -> None:
    """Raises LocalError for a pipeline that cannot be divided."""
    if pipeline.mixture.passes is not None:
        what = f"a pipeline of {pipeline.mixture.passes} passes ends, and only one without end is divided among trainers"
        raise LocalError(what, "make it with passes=None, or give run.shard the URL of the files, whose passes have an end")
    if pipeline.stages.size is not None:
        raise LocalError("run.shard makes the batches itself", "leave out batch(…) of the pipeline")
    if options:
        name = next(iter(options))
        raise LocalError(f"a pipeline reads in this process, so {name} has no meaning", "leave it out")


def documents_ahead(pipeline: Pipeline) -> int:
    """How many are read before the training loop asks for them."""
    return AT_ONCE + (pipeline.stages.documents if pipeline.stages.tokeniser is not None else 0)
