"""Payloads packed without loss, where the plan asks for it."""

from __future__ import annotations

import numpy as np
import pytest

from ciuic_p2p.daemon.packing import Packing
from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.tensors.codecs.base import Codec
from ciuic_p2p.tensors.codecs.registry import all_codecs, codec_by_name

COUNT = 50_000
INT4 = codec_by_name("int4")


def heavy_tailed() -> np.ndarray:
    return np.random.default_rng(3).standard_t(2, COUNT).astype(np.float32)


@pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: codec.name)
def test_what_was_packed_is_unpacked_bit_for_bit(codec: Codec) -> None:
    payload, packing = memoryview(codec.encode(heavy_tailed())), Packing(3)
    packed = packing.pack(payload, codec)
    assert packing.unpack(packed, codec, COUNT, packed=True) == payload


def test_int4_of_heavy_tails_shrinks_and_noise_only_gets_a_head() -> None:
    payload = memoryview(INT4.encode(heavy_tailed()))
    assert len(Packing(3).pack(payload, INT4)) < 0.8 * len(payload)
    noise = memoryview(np.random.default_rng(4).bytes(len(payload)))
    assert len(Packing(3).pack(noise, INT4)) == len(noise) + 10


def test_without_a_level_nothing_is_touched() -> None:
    payload = memoryview(INT4.encode(heavy_tailed()))
    assert Packing(0).pack(payload, INT4) is payload
    assert Packing(0).unpack(payload, INT4, COUNT, packed=False) is payload


def test_what_goes_against_the_plan_is_refused() -> None:
    payload = memoryview(INT4.encode(heavy_tailed()))
    with pytest.raises(MalformedPayload, match="plan"):
        Packing(3).unpack(payload, INT4, COUNT, packed=False)
    with pytest.raises(MalformedPayload, match="plan"):
        Packing(0).unpack(Packing(3).pack(payload, INT4), INT4, COUNT, packed=True)


def test_more_than_the_part_holds_is_refused_before_it_is_unpacked() -> None:
    packed = Packing(3).pack(memoryview(INT4.encode(heavy_tailed())), INT4)
    with pytest.raises(MalformedPayload, match="at most"):
        Packing(3).unpack(packed, INT4, COUNT // 2, packed=True)
