"""Whatever a hostile peer sends as a message about shards and objects: the message, or MalformedMessage."""

from __future__ import annotations

from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core import shard_messages
from ciuic_p2p.core.messages import Message, decode, encode
from ciuic_p2p.core.shard_messages import (
    DIGEST_BYTES,
    ENTRY_BYTES,
    GROUPS,
    HASH_BYTES,
    MOST_ASKED,
    MOST_ENTRIES,
    MOST_NAMES_ASKED,
    MOST_TOLD,
    AskEntries,
    AskInventory,
    AskShards,
    AskVersions,
    CancelShards,
    CatalogueTold,
    DeclineShards,
    Entries,
    HeldShards,
    Inventory,
    KeepShards,
    RefuseShard,
    StoreTold,
    VersionsTold,
)
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import LARGEST_MESSAGE_BYTES, LARGEST_SHARD_BYTES, PROTOCOL_VERSION

hashes = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)
shards = st.lists(st.tuples(hashes, st.integers(0, LARGEST_SHARD_BYTES)), max_size=5).map(tuple)
numbers = st.integers(0, (1 << 32) - 1)
whole = st.integers(0, 1 << 40)

messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        StoreTold,
        free_bytes=whole,
        shard_bytes=whole,
        goodput_mbps=st.floats(0, 1e6),
        shards=st.integers(0, 1000),
        digest=hashes,
    ),
    st.builds(HeldShards, came=shards, left=st.lists(hashes, max_size=4).map(tuple)),
    st.just(AskInventory()),
    st.builds(Inventory, page=st.integers(0, 3), pages=st.integers(4, 128), shards=shards),
    st.builds(KeepShards, shards=shards),
    st.builds(DeclineShards, shards=st.lists(hashes, max_size=4).map(tuple), reason=st.text(max_size=20)),
    st.builds(AskShards, asks=st.lists(st.tuples(numbers, hashes), max_size=4).map(tuple)),
    st.builds(CancelShards, numbers=st.lists(numbers, max_size=4).map(tuple)),
    st.builds(RefuseShard, number=numbers),
    st.builds(CatalogueTold, digests=st.binary(min_size=GROUPS * DIGEST_BYTES, max_size=GROUPS * DIGEST_BYTES)),
    st.builds(AskEntries, groups=st.binary(max_size=GROUPS)),
    st.builds(Entries, entries=st.integers(0, 4).map(lambda count: bytes(count * ENTRY_BYTES))),
    st.builds(AskVersions, names=st.integers(0, 4).map(lambda count: bytes(count * ENTRY_BYTES // 2))),
    st.builds(VersionsTold, versions=st.lists(st.binary(max_size=50), max_size=4).map(tuple)),
)
scalars = st.none() | st.booleans() | st.integers(-3, 2**63) | st.floats() | st.text(max_size=8) | st.binary(max_size=40)
anything = st.recursive(scalars | hashes, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


@given(message=messages)
@settings(max_examples=200, deadline=None)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@given(number=st.sampled_from([*range(19, 32), 33]), fields=st.lists(anything, max_size=6) | anything)
@settings(max_examples=300, deadline=None)
def test_what_a_hostile_peer_sends_is_a_message_or_refused(number: int, fields: Any) -> None:
    try:
        message = decode(msgpack.packb([PROTOCOL_VERSION, number, fields]))
    except MalformedMessage:
        return
    assert isinstance(message, get_args(shard_messages.ShardMessage))
    assert decode(encode(message)) == message


@given(data=st.data(), message=messages)
@settings(max_examples=200, deadline=None)
def test_a_flipped_byte_is_a_message_or_refused(data: st.DataObject, message: Message) -> None:
    encoded = bytearray(encode(message))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode(bytes(encoded))
    except MalformedMessage:
        return


@pytest.mark.parametrize(
    "largest",
    [
        HeldShards(came=((bytes([255]) * HASH_BYTES, LARGEST_SHARD_BYTES),) * MOST_TOLD, left=()),
        Inventory(page=0, pages=1, shards=((bytes(HASH_BYTES), LARGEST_SHARD_BYTES),) * MOST_TOLD),
        KeepShards(shards=((bytes(HASH_BYTES), LARGEST_SHARD_BYTES),) * MOST_TOLD),
        AskShards(asks=(((1 << 32) - 1, bytes(HASH_BYTES)),) * MOST_ASKED),
        Entries(entries=bytes(MOST_ENTRIES * ENTRY_BYTES)),
        AskVersions(names=bytes(MOST_NAMES_ASKED * ENTRY_BYTES // 2)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_largest_messages_fit(largest: Message) -> None:
    assert len(encode(largest)) <= LARGEST_MESSAGE_BYTES


@pytest.mark.parametrize(
    "make",
    [
        lambda: HeldShards(came=((bytes(HASH_BYTES), LARGEST_SHARD_BYTES + 1),), left=()),
        lambda: HeldShards(came=(), left=(bytes(HASH_BYTES - 1),)),
        lambda: Inventory(page=1, pages=1, shards=()),
        lambda: Inventory(page=0, pages=129, shards=()),
        lambda: AskShards(asks=((1 << 32, bytes(HASH_BYTES)),)),
        lambda: AskShards(asks=((1, bytes(HASH_BYTES)),) * (MOST_ASKED + 1)),
        lambda: CatalogueTold(digests=b""),
        lambda: Entries(entries=bytes(ENTRY_BYTES - 1)),
        lambda: StoreTold(free_bytes=0, shard_bytes=0, goodput_mbps=float("nan"), shards=0, digest=bytes(HASH_BYTES)),
    ],
)
def test_what_is_out_of_bounds_cannot_be_made(make: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()
