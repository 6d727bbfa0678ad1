"""Lossless packing for the store."""

from __future__ import annotations

import contextlib
import random
import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.tensors.codecs.registry import codec_by_name
from ciuic_p2p.tensors.lossless import pack, sampled_gain, unpack

CAP = 16 << 20


def head(method: int, item_bytes: int, size: int) -> bytes:
    return struct.pack("<BBQ", method, item_bytes, size)


def weights(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count, dtype=np.float32)


@given(data=st.binary(max_size=3000), item_bytes=st.integers(1, 16), repeats=st.integers(0, 40))
@settings(max_examples=50, deadline=None)
def test_every_byte_comes_back(data: bytes, item_bytes: int, repeats: int) -> None:
    data = data * repeats
    assert unpack(pack(data, item_bytes), len(data)) == data


def test_bfloat16_weights_shrink_by_a_quarter_and_more() -> None:
    data = codec_by_name("bfloat16").encode(weights(300_000))
    packed = pack(data, 2)
    assert len(packed) < 0.75 * len(data) < len(pack(data, 1))  # the planes are what does it
    assert unpack(packed, CAP) == data


def test_bytes_that_gain_nothing_are_kept_as_they_are() -> None:
    data = random.Random(0).randbytes(100_000)
    assert len(pack(data, 4)) == len(data) + 10
    assert sampled_gain(data, 4) < 0.05


def test_a_large_blob_is_judged_by_samples_from_all_of_it() -> None:
    noise = random.Random(0).randbytes(2 << 20)
    assert sampled_gain(noise + bytes(2 << 20), 4) == pytest.approx(0.5, abs=0.05)


def test_more_than_the_cap_is_refused_before_anything_is_decompressed() -> None:
    bomb = head(1, 4, 1 << 40) + zstandard.compress(b"")
    with pytest.raises(MalformedPayload, match="at most"):
        unpack(bomb, CAP)


ZEROS = zstandard.ZstdCompressor(level=3).compress(bytes(1000))
UNSIZED = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(bytes(1000))


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"\0" * 9,
        head(0, 4, 5) + b"four",
        head(2, 4, 4) + b"four",
        head(0, 0, 4) + b"four",
        head(0, 17, 4) + b"four",
        head(1, 4, 4) + b"four",
        head(1, 4, 999) + ZEROS,  # the frame announces more than the head
        head(1, 4, 1000) + UNSIZED,
        head(1, 4, 1000) + ZEROS[:-2],
        head(1, 4, 1000) + ZEROS + b"\0",
        head(1, 4, 2000) + ZEROS + ZEROS,
    ],
)
def test_hostile_blobs_are_refused(hostile: bytes) -> None:
    with pytest.raises(MalformedPayload):
        unpack(hostile, CAP)


@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_damaged_blobs_give_an_error_or_no_more_than_the_cap(flips: list[tuple[int, int]]) -> None:
    packed = bytearray(pack(codec_by_name("bfloat16").encode(weights(3000)), 2))
    for position, change in flips:
        packed[position % len(packed)] ^= change
    with contextlib.suppress(MalformedPayload):
        assert len(unpack(bytes(packed), 8000)) <= 8000


@pytest.mark.parametrize("item_bytes", [0, 17])
def test_items_of_impossible_size_are_refused(item_bytes: int) -> None:
    with pytest.raises(ValueError, match="items"):
        pack(b"data", item_bytes)
