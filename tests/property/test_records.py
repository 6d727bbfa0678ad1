"""Peer records: what is written is read again, and nothing else is read."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.core.records import LARGEST_RECORD_BYTES, Capacity, PeerRecord, decode_record, encode_record
from ciuic_p2p.errors import MalformedMessage

KEY = Ed25519PrivateKey.from_private_bytes(b"\1" * 32)
PEER = peer_id_of(KEY.public_key())
FEW = settings(max_examples=60, deadline=None)

texts = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=32)
integers = st.integers(0, (1 << 63) - 1)
records = st.builds(
    PeerRecord,
    peer_id=st.just(PEER),
    name=texts,
    region=texts,
    p2p_addresses=st.lists(texts, max_size=16).map(tuple),
    session_addresses=st.lists(
        st.sampled_from(["10.0.0.1:1", "[::1]:65535", "[2001:db8::1.2.3.4]:22", "example.org:4001"]), max_size=16
    ).map(tuple),
    version=texts,
    protocol=st.integers(0, 65535),
    capacity=st.builds(
        Capacity,
        cores=st.integers(0, 1 << 16),
        memory_bytes=integers,
        free_disk_bytes=integers,
        gpus=st.lists(texts, max_size=16).map(tuple),
    ),
    runs=st.lists(texts, max_size=32).map(tuple),
    started_at_s=integers,
    sequence=integers,
    expires_at_s=integers,
    leaving=st.booleans(),
)


def plain_record(**changes):
    fields = {
        "peer_id": PEER,
        "name": "a",
        "region": "eu",
        "version": "1",
        "capacity": Capacity(cores=1, memory_bytes=1, free_disk_bytes=1),
        "started_at_s": 1,
    }
    return PeerRecord(**(fields | changes))


@given(records, texts)
@FEW
def test_a_record_is_read_as_it_was_written(record, swarm):
    assert decode_record(encode_record(record, swarm, KEY.sign), swarm) == record


@given(records, texts, texts)
@FEW
def test_a_record_of_one_swarm_is_none_in_another(record, swarm, other):
    if swarm != other:
        with pytest.raises(MalformedMessage):
            decode_record(encode_record(record, swarm, KEY.sign), other)


@given(st.data())
@FEW
def test_a_changed_byte_is_found_out(data):
    encoded = bytearray(encode_record(data.draw(records), "swarm", KEY.sign))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MalformedMessage):
        decode_record(bytes(encoded), "swarm")


@given(st.binary(max_size=300))
@FEW
def test_random_bytes_are_no_record(data):
    with pytest.raises(MalformedMessage):
        decode_record(data, "swarm")


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.binary(max_size=8)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.integers(0, 14), json_like)
@FEW
def test_a_signed_record_with_a_field_of_any_other_kind_is_refused_or_read_whole(position, value):
    """The attacker holds a key and signs what he likes."""
    body = msgpack.unpackb(msgpack.unpackb(encode_record(plain_record(), "swarm", KEY.sign))[0])
    body[position : position + 1] = [value]
    packed = msgpack.packb(body)
    signed = b"ciuic-p2p peer record 1\0" + len(b"swarm").to_bytes(2, "big") + b"swarm" + packed
    data = msgpack.packb([packed, KEY.sign(signed)])
    try:
        record = decode_record(data, "swarm")
    except MalformedMessage:
        return
    assert encode_record(record, "swarm", KEY.sign) == data


def test_another_encoding_of_the_same_values_is_refused():
    body, signature = msgpack.unpackb(encode_record(plain_record(), "swarm", KEY.sign))
    longer = b"\xdd\x00\x00\x00\x02" + msgpack.packb(body) + msgpack.packb(signature)
    with pytest.raises(MalformedMessage, match="one encoding"):
        decode_record(longer, "swarm")


def test_too_long_a_record_is_neither_written_nor_read():
    record = plain_record(p2p_addresses=("x" * 256,) * 16, session_addresses=("a" * 250 + ":1",) * 16)
    with pytest.raises(ValueError, match="at most 8192"):
        encode_record(record, "swarm", KEY.sign)
    with pytest.raises(MalformedMessage, match="at most 8192"):
        decode_record(bytes(LARGEST_RECORD_BYTES + 1), "swarm")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "x" * 65},
        {"name": "\x1b[31m"},
        {"region": "x" * 33},
        {"p2p_addresses": ("x",) * 17},
        {"p2p_addresses": ("x" * 257,)},
        {"p2p_addresses": ["x"]},
        {"session_addresses": ("10.0.0.1:0",)},
        {"session_addresses": ("10.0.0.1:65536",)},
        {"session_addresses": ("10.0.0.1",)},
        {"session_addresses": ("a b:1",)},
        {"protocol": 65536},
        {"sequence": -1},
        {"sequence": True},
        {"sequence": 1 << 63},
        {"runs": ("x",) * 33},
        {"leaving": 1},
    ],
)
def test_a_field_out_of_bounds_fails_at_construction(changes):
    with pytest.raises(ValueError, match=next(iter(changes)).split("_")[0]):
        plain_record(**changes)


def test_a_record_of_no_peer_fails_at_construction():
    with pytest.raises(MalformedMessage):
        dataclasses.replace(plain_record(), peer_id="12D3")
