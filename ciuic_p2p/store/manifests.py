"""Which shards make a blob, and its wire form. Pure: knows no store, and no signature.

What comes from others is checked before anything is done with it: sizes add up, and none is larger than a shard may be, so a
reader knows what it sets memory aside for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from ciuic_p2p.core import wire
from ciuic_p2p.core.stripes import Stripe
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.store.shards import require_shard_id
from ciuic_p2p.tensors.erasure import Code
from ciuic_p2p.terms import LARGEST_SHARD_BYTES, BlobHash, ShardId

MOST_SHARDS = wire.LONGEST_TUPLE
"""Of one blob: a tebibyte in shards of 8 MiB."""

LARGEST_MANIFEST_BYTES = 16 << 20
"""Encoded; MOST_SHARDS need about 10 MB."""

_FORMAT = 1
_CODED_FORMAT = 2


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
    def kept(self) -> tuple[ShardRef, ...]:
        """All that peers keep of it."""
        return self.shards

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
        """A CodedManifest where it is one. Raises MalformedMessage, also for bytes that `encode` would not have written."""
        value = wire.unpack(data, LARGEST_MANIFEST_BYTES)
        kinds: dict[int, type[BlobManifest]] = {_FORMAT: BlobManifest, _CODED_FORMAT: CodedManifest}
        if not (isinstance(value, list) and len(value) == 2 and type(value[0]) is int and value[0] in kinds):
            raise MalformedMessage(None, f"no manifest of a format that is known ({', '.join(map(str, kinds))})")
        manifest = kinds[value[0]].from_wire(value[1])
        if manifest.encode() != data:
            raise MalformedMessage(None, "a manifest that is not encoded in the one way")
        return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedManifest(BlobManifest):
    """A blob with parity: each stripe of `k` of its shards has `m` more, and any k of them give all.

    Stripes are of different shards, in the order in which they first come: equal bytes have one name, and are lost together.
    Raises ValueError where its parity does not fit.
    """

    k: int
    m: int
    parity: tuple[ShardRef, ...]
    """Of the first stripe, then of the next one. As long as the longest shard of its stripe."""

    def __post_init__(self) -> None:
        BlobManifest.__post_init__(self)
        groups = data_groups(self.shards, self.code)
        if len(self.shards) + len(self.parity) > MOST_SHARDS:
            raise ValueError(f"a blob of {len(self.shards)} shards and parity of {len(self.parity)}")
        if len(self.parity) != len(groups) * self.m:
            raise ValueError(f"parity of {len(self.parity)} shards for {len(groups)} stripes")
        self.stripes()

    @property
    def code(self) -> Code:
        """Raises ValueError for one that cannot be."""
        return Code(k=self.k, m=self.m)

    def stripes(self) -> list[Stripe]:
        """Raises ValueError for parity of another length than its stripe."""
        found = []
        for number, data in enumerate(data_groups(self.shards, self.code)):
            parity = self.parity[number * self.m : (number + 1) * self.m]
            width = max(ref.stored_bytes for ref in data)
            if any(ref.packed or ref.stored_bytes != width for ref in parity):
                raise ValueError("parity of another length than its stripe")
            found.append(stripe_of(self.code, data, parity))
        return found

    @property
    def kept(self) -> tuple[ShardRef, ...]:
        return self.shards + self.parity

    def encode(self) -> bytes:
        return bytes(msgpack.packb([_CODED_FORMAT, self.to_wire()]))


def data_groups(shards: Sequence[ShardRef], code: Code) -> list[tuple[ShardRef, ...]]:
    """The different shards of a blob, k by k, as stripes are made of them."""
    distinct = list({ref.shard: ref for ref in shards}.values())
    return [tuple(distinct[start : start + code.k]) for start in range(0, len(distinct), code.k)]


def stripe_of(code: Code, data: Sequence[ShardRef], parity: Sequence[ShardRef]) -> Stripe:
    return Stripe(
        k=code.k,
        data=tuple(ref.shard for ref in data),
        parity=tuple(ref.shard for ref in parity),
        sizes=tuple(ref.stored_bytes for ref in (*data, *parity)),
    )
