"""Which shards make a blob, and its wire form. Pure: knows no store, and no signature.

What comes from others is checked before anything is done with it: sizes add up, and none is larger than a shard may be, so a
reader knows what it sets memory aside for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgpack

from ciuic_p2p.core import wire
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.store.shards import require_shard_id
from ciuic_p2p.terms import LARGEST_SHARD_BYTES, BlobHash, ShardId

MOST_SHARDS = wire.LONGEST_TUPLE
"""Of one blob: a tebibyte in shards of 8 MiB."""

LARGEST_MANIFEST_BYTES = 16 << 20
"""Encoded; MOST_SHARDS need about 10 MB."""

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRef:
    """One shard of a blob. Raises ValueError for a field that is out of bounds."""

    shard: ShardId
    size_bytes: int
    """Of the blob's content in it."""
    stored_bytes: int
    """What its holders keep and send: the same, or less when it is packed."""
    packed: bool
    """Losslessly, as tensors/lossless.py does it."""

    def __post_init__(self) -> None:
        require_shard_id(self.shard)
        if not 0 < self.size_bytes <= LARGEST_SHARD_BYTES:
            raise ValueError(f"a shard with {self.size_bytes} bytes of a blob")
        if not (0 < self.stored_bytes < self.size_bytes if self.packed else self.stored_bytes == self.size_bytes):
            raise ValueError(f"a shard that keeps {self.size_bytes} bytes in {self.stored_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSlice:
    """The bytes from `start` to `stop` of one shard's content."""

    ref: ShardRef
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobManifest:
    """The shards of a blob in order. Raises ValueError when they do not add up."""

    blob: BlobHash
    size_bytes: int
    """Of the content, unpacked."""
    shards: tuple[ShardRef, ...]

    def __post_init__(self) -> None:
        require_shard_id(self.blob)  # Of the same form.
        if len(self.shards) > MOST_SHARDS:
            raise ValueError(f"a blob of {len(self.shards)} shards, at most {MOST_SHARDS} are possible")
        if sum(ref.size_bytes for ref in self.shards) != self.size_bytes:
            raise ValueError(f"shards that do not add up to the {self.size_bytes} bytes of their blob")

    @property
    def stored_bytes(self) -> int:
        """What one replica of it takes, if no two of its shards are the same."""
        return sum(ref.stored_bytes for ref in self.shards)

    def slices(self, start: int, stop: int) -> Iterator[ShardSlice]:
        """Where the bytes from `start` to `stop` of the content are, in order. Raises ValueError for a range not in it."""
        if not 0 <= start <= stop <= self.size_bytes:
            raise ValueError(f"bytes {start} to {stop} of a blob of {self.size_bytes}")
        return self._slices(start, stop)

    def _slices(self, start: int, stop: int) -> Iterator[ShardSlice]:
        offset = 0
        for ref in self.shards:
            first, last = max(start - offset, 0), min(stop - offset, ref.size_bytes)
            if first < last:
                yield ShardSlice(ref=ref, start=first, stop=last)
            offset += ref.size_bytes
            if offset >= stop:
                return

    def to_wire(self) -> Any:
        """As part of a message."""
        return wire.to_wire(self)

    @classmethod
    def from_wire(cls, value: Any) -> BlobManifest:
        """Raises MalformedMessage."""
        manifest: BlobManifest = wire.from_wire(cls, value)
        return manifest

    def encode(self) -> bytes:
        """On its own, such as in a file or a shard."""
        return bytes(msgpack.packb([_FORMAT, self.to_wire()]))

    @classmethod
    def decode(cls, data: bytes) -> BlobManifest:
        """Raises MalformedMessage, also for bytes that `encode` would not have written."""
        value = wire.unpack(data, LARGEST_MANIFEST_BYTES)
        if not (isinstance(value, list) and len(value) == 2 and type(value[0]) is int and value[0] == _FORMAT):
            raise MalformedMessage(None, f"no manifest of format {_FORMAT}")
        manifest = cls.from_wire(value[1])
        if manifest.encode() != data:
            raise MalformedMessage(None, "a manifest that is not encoded in the one way")
        return manifest
