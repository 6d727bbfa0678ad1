"""What sources are made of: records, places to go on from, and what every format must do. Knows no format and no storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

Record = Mapping[str, Any]
"""One sample as it lies in a file, by the names of its fields."""

LARGEST_RECORD_BYTES = 64 << 20
"""A longer line or member is refused before it fills the memory: corpora are fetched from strangers."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Before a record of a source. Reading from there gives that record first."""

    file: int = 0
    """Index in the source's list of files."""
    record: int = 0
    """Records of the file before it."""
    offset: int = 0
    """Bytes of the file before it, after decompression; 0 where the format finds records by their number."""


START = Place()


@dataclass(frozen=True, slots=True)
class Read:
    """A record, and where the next one begins."""

    record: Record
    offset: int
    """As in Place."""


class Broken(Exception):
    """What a format raises for content that is not in it. The source names the file and the record."""


ReadFile = Callable[[IO[bytes], Place], Iterator[Read]]
"""Reads one file that is open at its first byte, from a place in it. Raises Broken."""
