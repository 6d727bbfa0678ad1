"""From texts to tokens, and from tokens to sequences of one length. Tokenisers are those of the library `tokenizers`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from blake3 import blake3

from ciuic_p2p.data.optional import load
from ciuic_p2p.errors import LocalError

END = "<|end|>"
"""The token after each document."""
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Mark(Generic[P]):
    """Where to go on: from the document at `place`, without its first `skip` tokens."""

    place: P
    skip: int = 0


@dataclass(frozen=True, slots=True)
class Item(Generic[P]):
    """Something on its way, with the marks before and after it."""

    value: Any
    before: Mark[P]
    after: Mark[P]


def train_tokeniser(texts: Iterable[str], vocabulary_size: int) -> Any:
    """A byte-level BPE (Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.2).

    It needs no token for what it does not know. Its words come from all `texts`, which are read once. Raises LocalError
    without the library, and for a vocabulary that is too small for the 256 bytes and END.
    """
    if vocabulary_size < 257:
        raise LocalError(f"a vocabulary of {vocabulary_size}", f"use at least 257: all bytes and {END}")
    library = load("tokenizers")
    tokeniser = library.Tokenizer(library.models.BPE())
    tokeniser.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokeniser.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokeniser.train_from_iterator(texts, trainer)
    return tokeniser


def load_tokeniser(path: str | Path) -> Any:
    """From a tokenizer.json. Raises LocalError."""
    try:
        return load("tokenizers").Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise LocalError(f"{path} is no tokeniser: {error}", "use a tokenizer.json") from None


def tokeniser_fingerprint(tokeniser: Any) -> str:
    """32 hexadecimal digits."""
    return blake3(tokeniser.to_str().encode()).hexdigest(length=16)


def end_of(tokeniser: Any, end: str = END) -> int:
    """The id of the token after each document. Raises LocalError for a tokeniser without it."""
    found = tokeniser.token_to_id(end)
    if found is None:
        raise LocalError(f"the tokeniser has no token {end!r}", "name the one that ends its documents with end=")
    return int(found)


def encode(tokeniser: Any, texts: Sequence[str]) -> list[Any]:  # of [tokens] int32
    """In one batch, over all processor cores. What looks like END in a text is text."""
    tokeniser.encode_special_tokens = True
    return [np.array(found.ids, dtype=np.int32) for found in tokeniser.encode_batch_fast(texts, add_special_tokens=False)]


def encode_items(items: Iterable[Item[P]], tokeniser: Any, documents: int) -> Iterator[Item[P]]:
    """The same items with tokens for texts, encoded `documents` at a time."""
    for group in in_groups(items, documents):
        for item, ids in zip(group, encode(tokeniser, [item.value for item in group]), strict=True):
            yield Item(ids, item.before, item.after)


def pack(items: Iterable[Item[P]], length: int, end: int) -> Iterator[Item[P]]:
    """Sequences of `length` tokens, [length] int32, from documents that follow one another with `end` after each.

    What is left at the end of the stream and fills no sequence is dropped. Mark.skip of the first document is heeded.
    """
    if length < 1:
        raise LocalError(f"sequences of {length} tokens", "use 1 or more")
    waiting: deque[tuple[Any, Mark[P]]] = deque()
    ready, before = 0, None
    for item in items:
        ids = np.append(item.value, np.int32(end))[item.before.skip :]
        if before is None:
            before = item.before
        if len(ids):
            waiting.append((ids, item.before))
            ready += len(ids)
        while ready >= length:
            sequence = _take(waiting, length)
            ready -= length
            after = waiting[0][1] if waiting else item.after
            yield Item(sequence, before, after)
            before = after


def _take(waiting: deque[tuple[Any, Mark[P]]], length: int) -> Any:  # [length] int32
    """From the front. What is left of a document stays there, with a mark that skips what was taken."""
    parts, missing = [], length
    while missing:
        ids, mark = waiting.popleft()
        parts.append(ids[:missing])
        if len(ids) > missing:
            waiting.appendleft((ids[missing:], Mark(mark.place, mark.skip + missing)))
        missing -= len(parts[-1])
    return np.concatenate(parts)


def batch(items: Iterable[Item[P]], size: int, *, stacked: bool) -> Iterator[Item[P]]:
    """Lists of `size` values, the last one shorter; or stacked: [size, length] int64, as an embedding takes them."""
    for group in in_groups(items, size):
        values = [item.value for item in group]
        yield Item(np.stack(values).astype(np.int64) if stacked else values, group[0].before, group[-1].after)


def in_groups(items: Iterable[Item[P]], size: int) -> Iterator[list[Item[P]]]:
    """Of `size`; the last may be smaller. Raises LocalError for a size below 1."""
    if size < 1:
        raise LocalError(f"batches of {size}", "use 1 or more")
    group: list[Item[P]] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
