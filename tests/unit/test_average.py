"""The weighted mean of one part."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.errors import MalformedPayload, RoundFailed
from ciuic_p2p.tensors.average import Accumulator
from ciuic_p2p.tensors.codecs.base import Codec
from ciuic_p2p.tensors.codecs.registry import all_codecs, codec_by_name
from ciuic_p2p.tensors.tiles import TILE_VALUES

COUNT = TILE_VALUES + 301


def normal(seed: int, count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def mean_of(accumulator: Accumulator) -> np.ndarray:
    out = np.empty(accumulator.count, np.float32)
    accumulator.mean_into(out)
    return out


@given(weights=st.lists(st.integers(1, 2**40), min_size=1, max_size=16), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_mean_is_within_the_stated_bound(weights: list[int], seed: int) -> None:
    contributions = [normal(seed + index, 500) for index in range(len(weights))]
    accumulator = Accumulator(500)
    for values, weight in zip(contributions, weights, strict=True):
        accumulator.add(values, weight)
    exact = np.average(np.float64(contributions), axis=0, weights=np.float64(weights))
    magnitude = np.average(np.abs(np.float64(contributions)), axis=0, weights=np.float64(weights))
    assert (np.abs(mean_of(accumulator) - exact) <= (len(weights) + 3) * 2.0**-24 * magnitude).all()


@pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: codec.name)
def test_encoded_contribution_counts_like_its_decoded_values(codec: Codec) -> None:
    payload = codec.encode(normal(1))
    encoded, decoded = Accumulator(COUNT), Accumulator(COUNT)
    for accumulator in (encoded, decoded):
        accumulator.add(normal(2), 5)
    encoded.add_encoded(codec, np.frombuffer(payload, np.uint8), 3)
    decoded.add(codec.decode(payload, COUNT), 3)
    assert mean_of(encoded).tobytes() == mean_of(decoded).tobytes()


@pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: codec.name)
def test_malformed_payload_adds_nothing(codec: Codec) -> None:
    # Given a good contribution, when one comes whose last block alone is bad
    accumulator = Accumulator(COUNT)
    accumulator.add(normal(1), 1)
    payload = np.frombuffer(codec.encode(normal(2)), np.uint8).copy()
    last_block = COUNT // codec.block_values * codec.block_values
    at = codec.encoded_bytes(last_block if last_block < COUNT else COUNT - 1)
    payload[at : at + 4] = 0xFF
    with pytest.raises(MalformedPayload):
        accumulator.add_encoded(codec, payload, 1)
    # then the mean is that of the good one.
    assert accumulator.contributions == accumulator.total_weight == 1
    assert mean_of(accumulator).tobytes() == normal(1).tobytes()


def test_values_that_are_not_finite_add_nothing() -> None:
    accumulator = Accumulator(COUNT)
    accumulator.add(normal(1), 1)
    bad = normal(2)
    bad[-1] = np.nan
    with pytest.raises(MalformedPayload):
        accumulator.add(bad, 1)
    assert mean_of(accumulator).tobytes() == normal(1).tobytes()


def test_weight_zero_takes_part_and_changes_nothing() -> None:
    accumulator = Accumulator(COUNT)
    accumulator.add(normal(1), 0)
    accumulator.add(normal(2), 4)
    assert accumulator.contributions == 2
    assert (mean_of(accumulator) == normal(2)).all()


@pytest.mark.parametrize("weights", [[], [0], [0, 0]])
def test_no_weight_gives_no_mean(weights: list[int]) -> None:
    accumulator = Accumulator(COUNT)
    for weight in weights:
        accumulator.add(normal(1), weight)
    with pytest.raises(RoundFailed, match="weight"):
        mean_of(accumulator)


def test_sum_out_of_range_fails_the_round() -> None:
    accumulator = Accumulator(COUNT)
    accumulator.add(np.full(COUNT, 1e38, np.float32), 10)
    with pytest.raises(RoundFailed, match="range"):
        mean_of(accumulator)


def test_reset_forgets_everything() -> None:
    accumulator = Accumulator(COUNT)
    accumulator.add(normal(1), 7)
    accumulator.reset()
    accumulator.add(normal(2), 2)
    assert (accumulator.total_weight, accumulator.contributions) == (2, 1)
    assert mean_of(accumulator).tobytes() == normal(2).tobytes()


@pytest.mark.parametrize(("count", "weight"), [(COUNT - 1, 1), (COUNT, -1)])
def test_wrong_use_is_refused(count: int, weight: int) -> None:
    with pytest.raises(ValueError, match="accumulator"):
        Accumulator(COUNT).add(normal(1, count), weight)


def test_encoded_contribution_is_added_without_a_full_size_temporary() -> None:
    count, codec = 20 * TILE_VALUES, codec_by_name("int4")
    payload = np.frombuffer(codec.encode(normal(1, count)), np.uint8)
    accumulator = Accumulator(count)
    tracemalloc.start()
    try:
        accumulator.add_encoded(codec, payload, 1)
        assert tracemalloc.get_traced_memory()[1] < 8 * TILE_VALUES * 4 < count * 4
    finally:
        tracemalloc.stop()
