"""One suite that every codec of the registry passes: sizes, error bounds, refusals, hostile payloads, threads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import blake3
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.errors import ConfigError, MalformedPayload
from ciuic_p2p.tensors.codecs.base import Codec, Float32
from ciuic_p2p.tensors.codecs.registry import all_codecs, codec_by_code, codec_by_name
from ciuic_p2p.tensors.tiles import TILE_VALUES

COUNTS = (0, 1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 4095, 4096, 4097, TILE_VALUES - 1, TILE_VALUES, TILE_VALUES + 300)
CODES = {"float32": 1, "float16": 2, "bfloat16": 3, "int8": 4, "int4": 5, "onebit": 6, "topk": 7}
SPARSE = ("onebit", "topk")

every_codec = pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: codec.name)


def normal(count: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def block_peaks(values: Float32, block: int) -> Float32:
    """For each value the largest magnitude in its block."""
    padded = np.pad(np.abs(values), (0, -len(values) % block)).reshape(-1, block)
    return np.repeat(padded.max(axis=1), block)[: len(values)]


# What each codec promises for one value, written independently of it. Roundings of scale and product: a few 2⁻²⁴.
ROUNDING = np.float32(1 + 2**-20)
BOUNDS: dict[str, Callable[[Float32], Float32]] = {
    "float32": lambda values: np.zeros_like(values),
    "float16": lambda values: np.maximum(np.abs(values) * 2.0**-11, 2.0**-25),
    "bfloat16": lambda values: np.maximum(np.abs(values) * 2.0**-8, 2.0**-134),
    "int8": lambda values: np.maximum(block_peaks(values, 256), 2.0**-100) / 254 * ROUNDING,
    "int4": lambda values: np.maximum(block_peaks(values, 256), 2.0**-100) / 14 * ROUNDING,
    "onebit": lambda values: block_peaks(values, 64) * np.float32(1 + 2**-8),
    "topk": lambda values: block_peaks(values, 4096),
}


@every_codec
def test_has_its_own_name_and_code(codec: Codec) -> None:
    assert codec.code == CODES[codec.name]
    assert codec_by_code(codec.code) is codec
    assert codec_by_name(codec.name) is codec
    assert TILE_VALUES % codec.block_values == 0


def test_unknown_codecs_are_refused_by_the_class_of_who_named_them() -> None:
    with pytest.raises(MalformedPayload):
        codec_by_code(0)
    with pytest.raises(ConfigError, match="int4"):
        codec_by_name("int5")


@every_codec
@pytest.mark.parametrize("count", COUNTS)
def test_size_is_exact_and_what_the_format_says(codec: Codec, count: int) -> None:
    blocks, rest = divmod(count, codec.block_values)
    expected = {
        "float32": 4 * count,
        "float16": 2 * count,
        "bfloat16": 2 * count,
        "int8": 260 * blocks + (4 + rest if rest else 0),
        "int4": 132 * blocks + (4 + min(rest, 128) if rest else 0),
        "onebit": 10 * blocks + (2 + (rest + 7) // 8 if rest else 0),
        "topk": 120 * -(-count // 4096),
    }[codec.name]
    assert codec.encoded_bytes(count) == expected == len(codec.encode(normal(count)))


@every_codec
@pytest.mark.parametrize("count", COUNTS)
def test_round_trip_stays_within_the_bound(codec: Codec, count: int) -> None:
    values = normal(count, seed=count)
    decoded = codec.decode(codec.encode(values), count)
    assert (np.abs(decoded - values) <= BOUNDS[codec.name](values)).all()


@every_codec
@pytest.mark.parametrize("magnitude", [1e-38, 1e-30, 1e-6, 1.0, 1e4])
def test_bound_holds_at_every_magnitude(codec: Codec, magnitude: float) -> None:
    values = normal(1000) * np.float32(magnitude)
    decoded = codec.decode(codec.encode(values), 1000)
    bound = BOUNDS[codec.name](values) + np.float32(1e-45)  # products in the denormal range are rounded once more
    assert (np.abs(decoded - values) <= bound).all()


@every_codec
def test_zeros_decode_to_zeros(codec: Codec) -> None:
    assert not codec.decode(codec.encode(np.zeros(5000, np.float32)), 5000).any()


@every_codec
def test_denormals_lose_no_more_than_their_own_size(codec: Codec) -> None:
    values = np.full(300, 1e-42, np.float32)
    decoded = codec.decode(codec.encode(values), 300)
    assert (np.abs(decoded) <= 2 * values).all()


@every_codec
@pytest.mark.parametrize("huge", [1e38, float(np.finfo(np.float32).max)])
def test_huge_values_saturate_and_stay_finite(codec: Codec, huge: float) -> None:
    values = np.tile(np.float32([huge, -huge]), 150)
    decoded = codec.decode(codec.encode(values), 300)
    assert np.isfinite(decoded).all()
    kept = decoded != 0  # topk drops what is not among the largest
    assert (np.sign(decoded[kept]) == np.sign(values[kept])).all()
    expected = min(huge, codec.largest_magnitude)
    assert np.abs(decoded).max() == pytest.approx(expected, rel=2**-7)


@every_codec
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -np.float32(np.nan)])
@pytest.mark.parametrize("position", [0, 255, 299, TILE_VALUES + 5])
def test_values_that_are_not_finite_are_refused(codec: Codec, bad: float, position: int) -> None:
    values = normal(TILE_VALUES + 300)
    values[position] = bad
    with pytest.raises(MalformedPayload) as refusal:
        codec.encode(values)
    assert refusal.value.peer is None


@every_codec
def test_blocks_follow_one_another(codec: Codec) -> None:
    values = normal(TILE_VALUES + 700)
    cut = codec.block_values
    assert codec.encode(values) == codec.encode(values[:cut]) + codec.encode(values[cut:])


@every_codec
def test_same_values_same_bytes(codec: Codec) -> None:
    values = normal(9000)
    assert codec.encode(values) == codec.encode(values.copy())


@every_codec
def test_input_and_payload_are_left_alone(codec: Codec) -> None:
    values = normal(5000)
    values.flags.writeable = False
    payload = codec.encode(values)
    decoded = codec.decode(payload, 5000)
    assert (values == normal(5000)).all()
    assert codec.decode(payload, 5000).tobytes() == decoded.tobytes()


@every_codec
def test_payload_may_lie_at_any_address(codec: Codec) -> None:
    values = normal(4999)
    size = codec.encoded_bytes(4999)
    shifted = np.zeros(size + 1, np.uint8)
    codec.encode_into(values, shifted[1:])
    out = np.empty(4999, np.float32)
    codec.decode_into(shifted[1:], out)
    assert shifted[1:].tobytes() == codec.encode(values)
    assert out.tobytes() == codec.decode(codec.encode(values), 4999).tobytes()


@every_codec
def test_four_threads_get_what_one_gets(codec: Codec) -> None:
    inputs = [normal(TILE_VALUES + 1000 + seed, seed) for seed in range(4)]
    alone = [codec.encode(values) for values in inputs]

    def encode_and_decode(index: int) -> bool:
        payload = codec.encode(inputs[index])
        decoded = codec.decode(payload, len(inputs[index]))
        return payload == alone[index] and codec.encode(inputs[index]) == payload and len(decoded) == len(inputs[index])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(encode_and_decode, [0, 1, 2, 3] * 8))


@every_codec
def test_number_of_torch_threads_changes_nothing(codec: Codec) -> None:
    values, before = normal(2 * TILE_VALUES), torch.get_num_threads()
    payload = codec.encode(values)
    try:
        torch.set_num_threads(3 if before == 1 else 1)
        assert codec.encode(values) == payload
    finally:
        torch.set_num_threads(before)


# BLAKE3 of the payload, and of the little-endian values it decodes to: a change of either is a change of the protocol.
GOLDEN = {
    "float32": ("ef9a9ccd499bc75f", "ef9a9ccd499bc75f"),
    "float16": ("b217b156ae90ebb5", "946be7fedcbe9fb2"),
    "bfloat16": ("cd441c9e531b763e", "4640df33264ac952"),
    "int8": ("fe17e6c9e9f86787", "d680d47c47868356"),
    "int4": ("ef2bda289b018643", "bd10966b62149c9e"),
    "onebit": ("b5f186e0961fc52f", "7616793fcebd25cb"),
    "topk": ("a096c657691ccdfe", "df4e054a52f2edad"),
}


def golden_values() -> Float32:
    """4500 multiples of 1/8, no magnitude twice, whose sums are exact in any order."""
    indices = np.arange(4500)
    return ((indices * 7919 % 4507 + 1) * np.where(indices % 3, 1, -1) / 8).astype(np.float32)


@every_codec
def test_wire_format_is_pinned(codec: Codec) -> None:
    payload = codec.encode(golden_values())
    decoded = codec.decode(payload, 4500).astype("<f4").tobytes()
    digests = tuple(blake3.blake3(data).hexdigest()[:16] for data in (payload, decoded))
    assert digests == GOLDEN[codec.name]


@every_codec
@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_length_is_refused_before_anything_is_written(codec: Codec, change: int) -> None:
    payload = np.zeros(codec.encoded_bytes(1000) + change, np.uint8)
    out = np.full(1000, 7, np.float32)
    with pytest.raises(MalformedPayload, match=codec.name):
        codec.decode_into(payload, out)
    assert (out == 7).all()


@every_codec
def test_announced_count_sets_nothing_aside(codec: Codec) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedPayload):
            codec.decode(b"x" * 500, 1 << 40)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@every_codec
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_hostile_payload_is_refused_or_decodes_to_finite_values(codec: Codec, data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([1, 64, 200, 256, 300, 4096, 4200]))
    payload = data.draw(st.randoms(use_true_random=False)).randbytes(codec.encoded_bytes(count))
    out = np.full(count, 7, np.float32)
    try:
        codec.decode_into(np.frombuffer(payload, np.uint8), out)
    except MalformedPayload:
        assert (out == 7).all()
    else:
        assert np.isfinite(out).all()


@every_codec
@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_damaged_payload_is_refused_or_decodes_to_finite_values(codec: Codec, flips: list[tuple[int, int]]) -> None:
    payload = bytearray(codec.encode(normal(4500)))
    for position, change in flips:
        payload[position % len(payload)] ^= change
    out = np.full(4500, 7, np.float32)
    try:
        codec.decode_into(np.frombuffer(bytes(payload), np.uint8), out)
    except MalformedPayload:
        assert (out == 7).all()
    else:
        assert np.isfinite(out).all()


def f4(value: float) -> bytes:
    return np.array([value], "<f4").tobytes()


def u2(bits: int) -> bytes:
    return bits.to_bytes(2, "little")


# Of the last, incomplete block as well as of the first: (codec, offset in a record, bytes that must be refused there).
HOSTILE_FIELDS = [
    *[(name, 0, f4(scale)) for name in ("int4", "int8") for scale in (np.nan, -np.nan, np.inf, -np.inf, -1e-3, 3e38)],
    *[("onebit", 0, u2(bits)) for bits in (0x7F80, 0x7FC0, 0xFF80, 0x8001, 0xBF80)],
    *[("topk", offset, f4(scale)) for offset in (0, 4) for scale in (np.nan, np.inf, -1.0, 3e38)],
    ("topk", 8, b"\x00\x00\x00"),  # index 0 twice
    ("topk", 8 + 93, b"\x00\x00\x00"),  # descending at the end
    *[("float16", 0, u2(bits)) for bits in (0x7C00, 0x7E01, 0xFC00, 0xFFFF)],
    *[("bfloat16", 0, u2(bits)) for bits in (0x7F80, 0x7FC0, 0xFF80, 0xFFFF)],
    *[("float32", 0, f4(value)) for value in (np.nan, -np.nan, np.inf, -np.inf)],
]


@pytest.mark.parametrize(("name", "offset", "field"), HOSTILE_FIELDS)
@pytest.mark.parametrize("block", [0, 1])
def test_hostile_fields_are_refused(name: str, offset: int, field: bytes, block: int) -> None:
    codec = codec_by_name(name)
    count = codec.block_values + max(1, codec.block_values // 2)
    payload = bytearray(codec.encode(normal(count)))
    start = block * codec.encoded_bytes(codec.block_values) + offset
    payload[start : start + len(field)] = field
    with pytest.raises(MalformedPayload):
        codec.decode(bytes(payload), count)


def test_two_values_share_a_byte_with_their_other_half() -> None:
    # Given a block whose peak is 7, so that its scale is 1.
    values = np.zeros(256, np.float32)
    values[[0, 5, 133]] = 7, 3, -2
    # Then value 5 is the low nibble, and value 133 the high one, of byte 5; 8 stands for zero.
    payload = codec_by_name("int4").encode(values)
    assert payload[:4] == f4(1.0)
    assert payload[4 + 5] == (3 + 8) | (-2 + 8) << 4


def test_onebit_keeps_signs_and_the_mean_magnitude_of_a_short_last_block() -> None:
    values = np.float32([1.0, -3.0, 2.0])
    assert codec_by_name("onebit").decode(codec_by_name("onebit").encode(values), 3).tolist() == [2.0, -2.0, 2.0]


def test_topk_keeps_the_largest_by_sign_and_one_of_two_magnitudes() -> None:
    # Given 64 values that stand out of 4096, half of them by 1 and half by 3.
    values = np.full(4096, 1e-3, np.float32)
    chosen = np.random.default_rng(1).choice(4096, 64, replace=False)
    values[chosen[:32]], values[chosen[32:]] = 1.0, -3.0
    decoded = codec_by_name("topk").decode(codec_by_name("topk").encode(values), 4096)
    expected = np.where(np.abs(values) >= 1, values, 0)
    assert (decoded == expected).all()
