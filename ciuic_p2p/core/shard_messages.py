"""Messages about shards and objects: who holds what, who wants what, which versions there are. Knows neither disk nor sender.

Names of shards travel as 32 bytes. What can be long is paged or capped here, so that each message fits into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ciuic_p2p.terms import LARGEST_SHARD_BYTES, ShardId

HASH_BYTES = 32
MOST_TOLD = 8192
"""Shards in one message: a third of the largest message."""
MOST_ASKED = 256
"""Shards that a peer is asked for at a time."""
MOST_PAGES = 128
"""Of an inventory: a million shards, which are 8 TB of the default size."""
LARGEST_NUMBER = (1 << 32) - 1
LARGEST_GOODPUT_MBPS = 1e6
LONGEST_REASON = 256

GROUPS = 256
"""Of objects, by the first byte of their name's hash; peers compare what they know of each."""
DIGEST_BYTES = 8
"""Of one group: two peers find a difference unless 64 bits agree by chance."""
ENTRY_BYTES = 32
"""Of one object: 16 of its name's hash, 16 of the hash of its versions."""
MOST_ENTRIES = 16_384
MOST_NAMES_ASKED = 4096
MOST_VERSIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTold:
    """What the sender offers for shards, and a digest of those it holds. To all, at every change and now and then."""

    free_bytes: int
    """Of what it offers; nothing takes it yet."""
    shard_bytes: int
    """That shards take."""
    goodput_mbps: float
    """Of its line up, told anew when it is off by a factor; 0: not measured."""
    shards: int
    digest: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.goodput_mbps <= LARGEST_GOODPUT_MBPS:  # false for a NaN
            raise ValueError("an impossible goodput")
        if self.shards > MOST_PAGES * MOST_TOLD:
            raise ValueError("more shards than a peer may hold")
        _check_hash(self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShards:
    """What has come to the sender's store, and what has left it, since it last spoke of it. What came is durable."""

    came: tuple[tuple[bytes, int], ...]
    """(name, bytes as they are kept)."""
    left: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(self.came) + len(self.left) > MOST_TOLD:
            raise ValueError(f"more than {MOST_TOLD} shards")
        _check_shards(self.came)
        for name in self.left:
            _check_hash(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskInventory:
    """The sender does not know what the receiver holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One page of all that the sender holds; the pages come in order, and the last one makes them valid."""

    page: int
    pages: int
    shards: tuple[tuple[bytes, int], ...]

    def __post_init__(self) -> None:
        if not 0 <= self.page < self.pages <= MOST_PAGES or len(self.shards) > MOST_TOLD:
            raise ValueError("a page that is none")
        _check_shards(self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepShards:
    """The receiver is asked to hold these; it fetches them from the sender, and says so by HeldShards or DeclineShards."""

    shards: tuple[tuple[bytes, int], ...]

    def __post_init__(self) -> None:
        if len(self.shards) > MOST_TOLD:
            raise ValueError(f"more than {MOST_TOLD} shards")
        _check_shards(self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclineShards:
    """The sender will not hold these."""

    shards: tuple[bytes, ...]
    reason: str

    def __post_init__(self) -> None:
        if len(self.shards) > MOST_TOLD or len(self.reason) > LONGEST_REASON:
            raise ValueError("more shards or words than are taken")
        for name in self.shards:
            _check_hash(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskShards:
    """(number, name): each shard is wanted in frames that bear the number, or a RefuseShard."""

    asks: tuple[tuple[int, bytes], ...]

    def __post_init__(self) -> None:
        if len(self.asks) > MOST_ASKED:
            raise ValueError(f"more than {MOST_ASKED} asks")
        for number, name in self.asks:
            _check_number(number)
            _check_hash(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelShards:
    """What was asked for under these numbers is not wanted any more."""

    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.numbers) > MOST_ASKED:
            raise ValueError(f"more than {MOST_ASKED} numbers")
        for number in self.numbers:
            _check_number(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseShard:
    """The sender has not got what was asked for under this number (any more)."""

    number: int

    def __post_init__(self) -> None:
        _check_number(self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueTold:
    """Digests of what the sender knows of objects, group by group. Now and then, and to each peer that comes."""

    digests: bytes

    def __post_init__(self) -> None:
        if len(self.digests) != GROUPS * DIGEST_BYTES:
            raise ValueError("digests of another number of groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEntries:
    """The sender knows something else of these groups."""

    groups: bytes
    """Each a byte."""

    def __post_init__(self) -> None:
        if len(self.groups) > GROUPS:
            raise ValueError("more groups than there are")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Which objects the sender knows, and which versions of each: see ENTRY_BYTES."""

    entries: bytes

    def __post_init__(self) -> None:
        if len(self.entries) > MOST_ENTRIES * ENTRY_BYTES or len(self.entries) % ENTRY_BYTES:
            raise ValueError("entries that are none")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskVersions:
    """All versions of these objects are wanted."""

    names: bytes
    """The first half of each object's entry."""

    def __post_init__(self) -> None:
        if len(self.names) > MOST_NAMES_ASKED * ENTRY_BYTES // 2 or len(self.names) % (ENTRY_BYTES // 2):
            raise ValueError("names that are none")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsTold:
    """Versions of objects, as core/objects.py encodes them: an answer, or news to all."""

    versions: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(self.versions) > MOST_VERSIONS:
            raise ValueError(f"more than {MOST_VERSIONS} versions")


ShardMessage = (
    StoreTold
    | HeldShards
    | AskInventory
    | Inventory
    | KeepShards
    | DeclineShards
    | AskShards
    | CancelShards
    | RefuseShard
    | CatalogueTold
    | AskEntries
    | Entries
    | AskVersions
    | VersionsTold
)


def shard_name(shard: ShardId) -> bytes:
    return bytes.fromhex(shard)


def shard_of(name: bytes) -> ShardId:
    return ShardId(name.hex())


def _check_shards(shards: Sequence[tuple[bytes, int]]) -> None:
    for name, size_bytes in shards:
        _check_hash(name)
        if not 0 <= size_bytes <= LARGEST_SHARD_BYTES:
            raise ValueError(f"a shard of {size_bytes} bytes")


def _check_hash(name: bytes) -> None:
    if len(name) != HASH_BYTES:
        raise ValueError(f"a hash of {len(name)} bytes")


def _check_number(number: int) -> None:
    if not 0 <= number <= LARGEST_NUMBER:
        raise ValueError("a number that no frame can bear")
