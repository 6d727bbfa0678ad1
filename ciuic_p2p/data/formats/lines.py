"""JSONL and plain text. Knows nothing of where files lie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO

from ciuic_p2p.data.formats.streams import go_to, lines_of, text_of
from ciuic_p2p.data.records import LARGEST_RECORD_BYTES, Broken, Place, Read


def read_jsonl(stream: IO[bytes], place: Place) -> Iterator[Read]:
    """One JSON object a line; blank lines are no records. Raises Broken."""
    go_to(stream, place.offset)
    offset = place.offset
    for line in lines_of(stream):
        offset += len(line)
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Broken(f"no JSON: {error}") from None
        if not isinstance(record, dict):
            raise Broken(f"a JSON {type(record).__name__} where an object belongs")
        yield Read(record, offset)


def read_lines(stream: IO[bytes], place: Place) -> Iterator[Read]:
    """`text`: each line without its end; blank ones are no records. Raises Broken."""
    go_to(stream, place.offset)
    offset = place.offset
    for line in lines_of(stream):
        offset += len(line)
        text = text_of(line).rstrip("\r\n")
        if text.strip():
            yield Read({"text": text}, offset)


def read_paragraphs(stream: IO[bytes], place: Place) -> Iterator[Read]:
    """`text`: lines that follow one another without a blank one between, their ends included. Raises Broken."""
    go_to(stream, place.offset)
    offset, length = place.offset, 0
    gathered: list[bytes] = []
    for line in lines_of(stream):
        offset += len(line)
        if line.strip():
            gathered.append(line)
            length += len(line)
            if length > LARGEST_RECORD_BYTES:
                raise Broken(f"a paragraph is longer than {LARGEST_RECORD_BYTES >> 20} MiB")
        elif gathered:
            yield Read({"text": text_of(b"".join(gathered))}, offset)
            gathered, length = [], 0
    if gathered:
        yield Read({"text": text_of(b"".join(gathered))}, offset)
