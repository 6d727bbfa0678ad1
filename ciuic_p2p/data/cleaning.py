"""What is done to documents before they become tokens. Knows no source; it sees one text after the other.

A step is a function from a text to a text, or to None where the document is dropped; or settings with `begin`, for what
remembers earlier documents. What it remembers follows from the last `window` documents that were read, kept or not: so whoever
goes on in the middle of a stream reads those again and decides as if it had read all. What it costs in memory is bounded.

A document is compared with those of the same pass only, else a second pass would find nothing but duplicates; and only with
what this trainer reads. To find the duplicates of a whole corpus, clean it once and keep the result.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from blake3 import blake3

from ciuic_p2p.data.optional import load
from ciuic_p2p.errors import LocalError


@dataclass(frozen=True, slots=True)
class Document:
    """A text on its way."""

    text: str
    number: int
    """Documents read before it."""
    pass_number: int


Wash = Callable[[Document], str | None]
"""The text as it goes on; None: the document is dropped."""


@runtime_checkable
class Remembering(Protocol):
    """A step that remembers."""

    @property
    def window(self) -> int:
        """It remembers at most so many documents."""

    def begin(self) -> Wash:
        """A fresh one that remembers nothing yet."""


Step = Callable[[str], str | None] | Remembering


def begin(steps: Sequence[Step]) -> Wash:
    """All steps, one after the other."""
    washes = [step.begin() if isinstance(step, Remembering) else _washing(step) for step in steps]

    def wash(document: Document) -> str | None:
        for each in washes:
            text = each(document)
            if text is None:
                return None
            document = Document(text, document.number, document.pass_number)
        return document.text

    return wash


def window_of(steps: Sequence[Step]) -> int:
    """Documents to read again before one goes on in the middle: what a step remembers rests on what those before it let by."""
    return sum(step.window for step in steps if isinstance(step, Remembering))


def _washing(step: Callable[[str], str | None]) -> Wash:
    return lambda document: step(document.text)


_UNWANTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff\ud800-\udfff\ufff9-\ufffb]")
"""Control characters but tab and line feed, invisible marks, and halves of surrogate pairs, which JSON may hold and UTF-8 not.
Joiners stay: Persian and emoji are written with them."""


def normalise(text: str) -> str | None:
    """NFC (Unicode Standard Annex 15) without control characters, with one kind of line ends; None when nothing is left."""
    plain = _UNWANTED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return unicodedata.normalize("NFC", plain).strip() or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Drops documents shorter than `least` or longer than `most` characters."""

    least: int = 1
    most: int = 1 << 24

    def __call__(self, text: str) -> str | None:
        return text if self.least <= len(text) <= self.most else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactDuplicates:
    """Drops a document that is the same as one of the last `window`. About 200 bytes of memory each."""

    window: int = 1 << 18

    def begin(self) -> Wash:
        memory = _Memory(self.window)

        def wash(document: Document) -> str | None:
            memory.forget_before(document.number - self.window)
            digest = blake3(document.text.encode(errors="surrogatepass")).digest(length=16)
            is_new = memory.add((document.pass_number, digest), document.number) is None
            return document.text if is_new else None

        return wash


class _Memory:
    """Keys with the number of the document that had them last, for the time of a window."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise LocalError(f"a window of {window} documents", "use 1 or more")
        self._last: dict[Any, int] = {}
        self._order: deque[tuple[int, Any]] = deque()

    def add(self, key: Any, number: int) -> int | None:
        """The document that had the key before."""
        before = self._last.get(key)
        self._last[key] = number
        self._order.append((number, key))
        return before

    def forget_before(self, number: int) -> list[Any]:
        """Keys that no document from `number` on had."""
        forgotten = []
        while self._order and self._order[0][0] < number:
            at, key = self._order.popleft()
            if self._last[key] == at:
                del self._last[key]
                forgotten.append(key)
        return forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """Drops a document that is much like one of the last `window`. About 15 kB of memory each.

    By MinHash over runs of words (Broder, On the Resemblance and Containment of Documents, 1997) and locality-sensitive
    hashing, with the library datasketch.
    """

    window: int = 1 << 14
    threshold: float = 0.8
    """Of the estimated Jaccard similarity of the sets of runs."""
    words: int = 5
    """In a run."""
    permutations: int = 128
    """The estimate is off by about 1 / √permutations."""

    def begin(self) -> Wash:
        """Raises LocalError without datasketch."""
        return _Likeness(self).wash


class _Likeness:
    """What NearDuplicates remembers. Documents with the same signature are one entry, however many there are."""

    def __init__(self, settings: NearDuplicates) -> None:
        self._sketch = load("datasketch")
        self._settings = settings
        self._memory = _Memory(settings.window)
        self._indexes: dict[int, Any] = {}
        self._signatures: dict[tuple[int, bytes], Any] = {}

    def wash(self, document: Document) -> str | None:
        self._forget(document.number - self._settings.window)
        signature = self._signature(document.text)
        key = (document.pass_number, signature.hashvalues.tobytes())
        if self._memory.add(key, document.number) is not None:
            return None
        index = self._index_of(document.pass_number)
        is_like_another = any(
            signature.jaccard(self._signatures[other]) >= self._settings.threshold for other in index.query(signature)
        )
        index.insert(key, signature, check_duplication=False)
        self._signatures[key] = signature
        return None if is_like_another else document.text

    def _index_of(self, pass_number: int) -> Any:
        if pass_number not in self._indexes:
            index = self._sketch.MinHashLSH(threshold=self._settings.threshold, num_perm=self._settings.permutations)
            self._indexes[pass_number] = index
        return self._indexes[pass_number]

    def _forget(self, number: int) -> None:
        for key in self._memory.forget_before(number):
            index = self._indexes[key[0]]
            index.remove(key)
            del self._signatures[key]
            if index.is_empty():
                del self._indexes[key[0]]

    def _signature(self, text: str) -> Any:
        """The same on every machine: the scheme and the seed are fixed, and so is the hash."""
        words = text.casefold().split()
        runs = {" ".join(words[i : i + self._settings.words]) for i in range(max(1, len(words) - self._settings.words + 1))}
        signature = self._sketch.MinHash(num_perm=self._settings.permutations, seed=1, scheme="affine32", hashfunc=_hash32)
        signature.update_batch([run.encode(errors="surrogatepass") for run in sorted(runs)])
        return signature


def _hash32(data: bytes) -> int:
    return int.from_bytes(blake3(data).digest(length=4), "little")
