"""What every store of shards keeps: the contract, and how a shard gets its name. Knows no disk, no blob and no peer.

A shard is bytes under the name that is their hash, so nothing is ever overwritten by something else: whoever puts the same
bytes again, after a crash or from another thread, gets the same name and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Protocol

import blake3

from ciuic_p2p.terms import LARGEST_SHARD_BYTES, ShardId

GRACE_S = 3600.0
"""Default: how long an unreachable shard stays. A blob's shards are unreachable until its manifest is written."""

_NAME = re.compile(r"[0-9a-f]{64}")


class ShardStore(Protocol):
    """Every method may be called from any thread. A name that is none raises ValueError, before it is used for anything.

    Durable: what `put` returned is there after kill -9 and after power loss. Whole: a shard is there with all its bytes or
    not at all. Any method may raise StoreUnusable.
    """

    @property
    def used_bytes(self) -> int:
        """The sizes of all shards, those that are being put included."""
        ...

    def put(self, data: bytes | memoryview, name: ShardId | None = None) -> ShardId:
        """Keeps the bytes and returns their name; a shard that is there already, and undamaged, is not written again.

        name: of these bytes, where the caller has just compared them with it; they are not hashed once more then.

        Raises ValueError for more than LARGEST_SHARD_BYTES, StoreFull when there is no room; then nothing is left behind.
        """
        ...

    def get(self, shard: ShardId) -> bytes | memoryview:
        """The bytes, which nobody changes, compared with their name at every read.

        Raises ShardMissing, or its subclass ShardDamaged, after which the shard is missing and can be put anew.
        """
        ...

    def has(self, shard: ShardId) -> bool:
        """Whether `get` would find something; it may still turn out to be damaged."""
        ...

    def size_bytes(self, shard: ShardId) -> int:
        """Raises ShardMissing."""
        ...

    def shards(self) -> Iterator[ShardId]:
        """The names of all that were there at the time of the call, in no order."""
        ...

    def collect(self, keep: Collection[ShardId], now_s: float) -> int:
        """Deletes what has been in the `keep` of no call since one that is at least the store's grace ago; the freed bytes.

        now_s: of any clock that only goes forward, the same one in each call. Putting a shard again begins its grace anew,
        and so does a new start of the store.
        """
        ...


def shard_id_of(data: bytes | bytearray | memoryview) -> ShardId:
    return ShardId(blake3.blake3(data).hexdigest())


def is_shard_id(text: str) -> bool:
    """Whether `text` is 64 lowercase hexadecimal digits."""
    return _NAME.fullmatch(text) is not None


def require_shard_id(text: str) -> ShardId:
    """Raises ValueError unless `is_shard_id`."""
    if not is_shard_id(text):
        raise ValueError(f"{text[:80]!r} is not the name of a shard")
    return ShardId(text)


def shard_bytes(data: bytes | memoryview) -> memoryview:
    """`data` as plain bytes, without a copy. Raises ValueError when they are too many for one shard."""
    view = memoryview(data).cast("B")
    if len(view) > LARGEST_SHARD_BYTES:
        raise ValueError(f"a shard of {len(view)} bytes, at most {LARGEST_SHARD_BYTES} are possible")
    return view
