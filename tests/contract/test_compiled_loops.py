"""Compiled loops and numpy's give the same bits, refuse the same, and a swarm in which only some peers have them agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from ciuic_p2p.errors import MalformedPayload, RoundFailed
from ciuic_p2p.tensors import kernels
from ciuic_p2p.tensors.average import Accumulator
from ciuic_p2p.tensors.codecs.base import Codec, Float32
from ciuic_p2p.tensors.codecs.registry import codec_by_name
from ciuic_p2p.tensors.tiles import TILE_VALUES, is_finite

COUNTS = (1, 127, 128, 129, 255, 256, 257, 600, TILE_VALUES + 300)
AMPLITUDES = (0.0, 1e-42, 1e-31, 1e-6, 1.0, 1e30)
UNFIT = (np.nan, -np.nan, np.inf, -np.inf)

some_codecs = pytest.mark.parametrize(
    "codec", [codec_by_name(name) for name in ("float32", "int8", "int4")], ids=lambda c: c.name
)


@pytest.fixture(scope="module")
def compiled() -> kernels.Kernels:
    before = kernels._ready
    if not kernels.prepare():
        pytest.skip("numba is not installed")
    ready = kernels._ready
    assert ready is not None
    kernels._ready = before
    return ready


@contextmanager
def used(ready: kernels.Kernels | None) -> Iterator[None]:
    before, kernels._ready = kernels._ready, ready
    try:
        yield
    finally:
        kernels._ready = before


def with_and_without(compiled: kernels.Kernels, work: Callable[[], bytes]) -> tuple[bytes, bytes]:
    with used(compiled):
        ours = work()
    with used(None):
        return ours, work()


def values_of(count: int, amplitude: float) -> Float32:
    """Blocks of many magnitudes, with zeros of both signs among them."""
    rng = np.random.default_rng(count)
    values = rng.standard_normal(count, dtype=np.float32) * np.float32(amplitude)
    values[::7], values[3::11] = 0.0, -0.0
    return values


@some_codecs
@pytest.mark.parametrize("amplitude", AMPLITUDES)
def test_encode_and_decode_to_the_same_bits(compiled: kernels.Kernels, codec: Codec, amplitude: float) -> None:
    for count in COUNTS:
        values = values_of(count, amplitude)
        payload, expected = with_and_without(compiled, lambda values=values: codec.encode(values))  # type: ignore[misc]
        assert payload == expected
        decoded, expected = with_and_without(
            compiled,
            lambda payload=payload, count=count: codec.decode(payload, count).tobytes(),  # type: ignore[misc]
        )
        assert decoded == expected


@some_codecs
def test_every_byte_decodes_to_the_same_bits(compiled: kernels.Kernels, codec: Codec) -> None:
    """given bytes that no encoder writes, and that the check lets pass"""
    rng = np.random.default_rng(1)
    payload = rng.integers(0, 256, codec.encoded_bytes(512), dtype=np.uint8)
    if codec.name == "float32":
        payload.view(np.uint32)[:] &= 0xBFFF_FFFF
    else:
        payload.reshape(2, -1)[:, :4] = np.array([[0.7], [1e-38]], np.float32).view(np.uint8)
    codec.check(payload, 512)
    decoded, expected = with_and_without(compiled, lambda: codec.decode(payload.tobytes(), 512).tobytes())
    assert decoded == expected


@some_codecs
@pytest.mark.parametrize("weights", [(1, 1), (3, 7, 1), (1 << 32, 5)])
def test_the_mean_is_the_same(compiled: kernels.Kernels, codec: Codec, weights: tuple[int, ...]) -> None:
    for count in COUNTS:
        payloads = [codec.encode(values_of(count + number, 1.0)[:count]) for number in range(len(weights))]

        def mean(payloads: list[bytes] = payloads, count: int = count) -> bytes:
            summed = Accumulator(count)
            for payload, weight in zip(payloads, weights, strict=True):
                summed.add_encoded(codec, np.frombuffer(payload, np.uint8), weight)
            out = np.empty(count, np.float32)
            summed.mean_into(out)
            return out.tobytes()

        ours, expected = with_and_without(compiled, mean)
        assert ours == expected


@some_codecs
def test_values_beyond_the_codecs_range_saturate_alike(compiled: kernels.Kernels, codec: Codec) -> None:
    values = values_of(600, 1.0)
    values[5], values[590] = 3e38, -3e38
    payload, expected = with_and_without(compiled, lambda: codec.encode(values))
    assert payload == expected


@some_codecs
@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("place", [0, 255, 299])
def test_what_is_not_finite_is_refused(compiled: kernels.Kernels, codec: Codec, unfit: float, place: int) -> None:
    values = values_of(300, 1.0)
    values[place] = unfit
    with used(compiled):
        assert not is_finite(values)
        with pytest.raises(MalformedPayload):
            codec.encode(values)


@some_codecs
@pytest.mark.parametrize("unfit", UNFIT)
def test_a_hostile_payload_is_refused_and_adds_nothing(compiled: kernels.Kernels, codec: Codec, unfit: float) -> None:
    payload = np.frombuffer(codec.encode(values_of(600, 1.0)), np.uint8).copy()
    payload[:4] = np.array([unfit], np.float32).view(np.uint8)  # a value, or a block's scale
    for wrong in (payload, payload[4:8], payload[:-1]):
        summed = Accumulator(600, np.ones(600, np.float32))
        with used(compiled), pytest.raises(MalformedPayload):
            summed.add_encoded(codec, wrong, 1)
        assert summed.contributions == 0
        assert np.array_equal(summed._sum, np.ones(600, np.float32))


def test_a_sum_out_of_range_has_no_mean(compiled: kernels.Kernels) -> None:
    summed = Accumulator(300)
    with used(compiled):
        summed.add(np.full(300, 3e38, np.float32), 1)
        summed.add(np.full(300, 3e38, np.float32), 1)
        with pytest.raises(RoundFailed):
            summed.mean_into(np.empty(300, np.float32))


@some_codecs
def test_bytes_at_an_odd_address_decode_as_well(compiled: kernels.Kernels, codec: Codec) -> None:
    values = values_of(600, 1.0)
    shifted = np.frombuffer(b"x" + codec.encode(values), np.uint8)[1:]
    out = np.empty(600, np.float32)
    with used(compiled):
        codec.decode_into(shifted, out)
    assert np.array_equal(out, codec.decode(shifted.tobytes(), 600))


def test_sizes_that_do_not_belong_together_are_refused(compiled: kernels.Kernels) -> None:
    """then the loops would leave their arrays: they look at no lengths"""
    values, total = np.zeros(512, np.float32), np.zeros(256, np.float32)
    with pytest.raises(ValueError, match="sizes"):
        compiled.add(values, 1, total, is_first=True)
    with pytest.raises(ValueError, match="sizes"):
        compiled.decode(127, np.zeros(260, np.uint8), values)
    with pytest.raises(ValueError, match="sizes"):
        compiled.encode(7, total, np.zeros(131, np.uint8))
