"""Objects: which names there are, and versions that are read as they were signed and not otherwise."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.objects import (
    LARGEST_MANIFEST_BYTES,
    LARGEST_VERSION_BYTES,
    ObjectName,
    ObjectVersion,
    decode_version,
    encode_version,
    is_signed,
    parse_address,
    sign_version,
)
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.core.vectors import MOST_AUTHORS, VersionVector
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i + 1]) * 32) for i in range(3)]
PEERS = [peer_id_of(key.public_key()) for key in KEYS]
FEW = settings(max_examples=60, deadline=None)

integers = st.integers(0, (1 << 63) - 1)
buckets = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,62}", fullmatch=True)
segments = st.text(
    st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"), exclude_characters="/"), min_size=1, max_size=8
)
keys = st.lists(segments.filter(lambda segment: segment not in (".", "..")), min_size=1, max_size=5).map("/".join)
contents = st.tuples(st.binary(max_size=64), integers, st.text("0123456789abcdef", min_size=1, max_size=64)) | st.just(
    (None, 0, "")
)
vectors = st.dictionaries(st.sampled_from(PEERS[1:]), st.integers(1, (1 << 63) - 1)).map(
    lambda counters: VersionVector(tuple(sorted({PEERS[0]: 3, **counters}.items())))
)


@st.composite
def any_versions(draw):
    manifest, size_bytes, etag = draw(contents)
    return ObjectVersion(
        bucket=draw(buckets),
        key=draw(keys),
        vector=draw(vectors),
        author=PEERS[0],
        created_at_ms=draw(integers),
        manifest=manifest,
        size_bytes=size_bytes,
        etag=etag,
    )


def plain_version(**changes) -> ObjectVersion:
    fields = {
        "bucket": "data",
        "key": "a/b.txt",
        "vector": VersionVector().increment(PEERS[0]),
        "author": PEERS[0],
        "created_at_ms": 1,
        "manifest": b"m",
        "size_bytes": 5,
        "etag": "ab",
    }
    return ObjectVersion(**(fields | changes))


# -- names -------------------------------------------------------------------------------------------------------------


@given(buckets, keys)
@FEW
def test_an_address_is_read_as_it_is_written(bucket, key):
    name = ObjectName(bucket, key)
    assert parse_address(str(name)) == name


@pytest.mark.parametrize("bucket", ["", "A", "a_b", "a" * 64, ".", "..", "-a", "a/b", "a\n", "ä"])
def test_a_bucket_against_the_rules_is_refused(bucket):
    with pytest.raises(ValueError, match="bucket"):
        ObjectName(bucket, "key")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "segment"),
        ("/a", "segment"),
        ("a/", "segment"),
        ("a//b", "segment"),
        ("a/./b", "segment"),
        ("../a", "segment"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x7f", "control"),
        ("a\x85", "control"),
        ("a\u2028b", "control"),
        ("invoice\u202efdp.exe", "control"),
        ("\ud800", "surrogate"),
        ("ä" * 513, "1026 bytes"),
    ],
)
def test_a_key_against_the_rules_is_refused(key, why):
    with pytest.raises(ValueError, match=why):
        ObjectName("data", key)


def test_what_the_rules_allow_is_allowed():
    for key in ("a", "...", ".hidden", "a b/ü/日本", "x" * 1024, "part-0.parquet", "family 👨‍👩‍👧"):
        assert ObjectName("a.b-c.9", key).key == key


@pytest.mark.parametrize("address", ["", "s3://a/b", "ciuic://", "ciuic://a", "ciuic://a/", "ciuic:///a", "CIUIC://a/b"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match=r"ciuic|bucket|key"):
        parse_address(address)


# -- signed versions ---------------------------------------------------------------------------------------------------


@given(any_versions(), st.text(max_size=8))
@FEW
def test_a_version_is_read_as_it_was_signed(version, swarm):
    signed = sign_version(version, swarm, KEYS[0].sign)
    assert is_signed(signed, swarm)
    assert decode_version(encode_version(signed), swarm) == signed


@given(any_versions())
@FEW
def test_a_version_of_one_swarm_is_none_in_another(version):
    data = encode_version(sign_version(version, "swarm", KEYS[0].sign))
    with pytest.raises(MalformedMessage, match="another swarm"):
        decode_version(data, "swarm2")


@given(any_versions(), st.data())
@FEW
def test_a_changed_byte_is_found_out(version, data):
    encoded = bytearray(encode_version(sign_version(version, "swarm", KEYS[0].sign)))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MalformedMessage):
        decode_version(bytes(encoded), "swarm")


@pytest.mark.parametrize(
    "changes",
    [
        {"bucket": "other"},
        {"key": "other"},
        {"vector": VersionVector(((PEERS[0], 2),))},
        {"created_at_ms": 2},
        {"manifest": b"n"},
        {"size_bytes": 6},
        {"etag": "ac"},
        {"manifest": None, "size_bytes": 0, "etag": ""},
    ],
)
def test_an_altered_field_is_found_out(changes):
    signed = sign_version(plain_version(), "swarm", KEYS[0].sign)
    with pytest.raises(MalformedMessage, match="signature"):
        decode_version(encode_version(dataclasses.replace(signed, **changes)), "swarm")


def test_nobody_signs_for_another():
    forged = sign_version(plain_version(), "swarm", KEYS[1].sign)
    with pytest.raises(MalformedMessage, match="signature"):
        decode_version(encode_version(forged), "swarm")


def test_a_version_that_nobody_signed_is_not_written_and_not_read():
    with pytest.raises(ValueError, match="nobody signed"):
        encode_version(plain_version())
    signed = sign_version(plain_version(), "swarm", KEYS[0].sign)
    values = msgpack.unpackb(encode_version(signed))
    with pytest.raises(MalformedMessage):
        decode_version(msgpack.packb([*values[:-1], b""]), "swarm")


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


@given(st.integers(0, 9), json_like)
@FEW
def test_a_signed_version_with_a_field_of_any_other_kind_is_refused_or_read_whole(position, value):
    """The attacker holds a key and signs what he likes."""
    fields = msgpack.unpackb(encode_version(sign_version(plain_version(), "swarm", KEYS[0].sign)))[:-1]
    fields[position : position + 1] = [value]
    signature = KEYS[0].sign(b"ciuic-p2p object version 1\0\0\5swarm" + msgpack.packb(fields))
    data = msgpack.packb([*fields, signature])
    try:
        version = decode_version(data, "swarm")
    except MalformedMessage:
        return
    assert encode_version(version) == data


@given(st.binary(max_size=300))
@FEW
def test_random_bytes_are_no_version(data):
    with pytest.raises(MalformedMessage):
        decode_version(data, "swarm")


def test_another_encoding_of_the_same_values_is_refused():
    values = msgpack.unpackb(encode_version(sign_version(plain_version(), "swarm", KEYS[0].sign)))
    longer = b"\xdc\x00\x0a" + b"".join(map(msgpack.packb, values))
    with pytest.raises(MalformedMessage, match="one encoding"):
        decode_version(longer, "swarm")


def test_the_largest_version_is_read_and_a_larger_one_is_not():
    others = [PeerId(f"{i:060d}") for i in range(MOST_AUTHORS - 1)]
    vector = VersionVector(tuple(sorted(dict.fromkeys([*others, PEERS[0]], (1 << 63) - 1).items())))
    version = plain_version(vector=vector, key="x" * 1024, manifest=bytes(LARGEST_MANIFEST_BYTES), etag="a" * 64)
    data = encode_version(sign_version(version, "swarm", KEYS[0].sign))
    assert decode_version(data, "swarm").vector == vector
    with pytest.raises(MalformedMessage, match="at most"):
        decode_version(bytes(LARGEST_VERSION_BYTES + 1), "swarm")


@pytest.mark.parametrize(
    "changes",
    [
        {"vector": VersionVector()},
        {"vector": VersionVector().increment(PEERS[1])},
        {"created_at_ms": -1},
        {"size_bytes": 1 << 63},
        {"etag": ""},
        {"etag": "AB"},
        {"etag": "a" * 65},
        {"manifest": None},
        {"manifest": bytes(LARGEST_MANIFEST_BYTES + 1)},
        {"signature": b"x"},
    ],
)
def test_a_field_out_of_bounds_fails_at_construction(changes):
    with pytest.raises(ValueError, match=rf"{next(iter(changes)).split('_')[0]}|tombstone"):
        plain_version(**changes)
