"""Loops over a whole part in one pass, compiled by numba: a value is read once, the interpreter's lock let go once a part.

numpy and torch make a pass through memory, and a turn at the lock, for every operation. What these give is the same to the
bit: the same float32 operations in the same order, none fused (no fast-math). Knows no codec's name and no frame.
Imported only by `kernels.py`, in a thread of its own: that compiles all of them (6 s), or loads what once was (0.5 s).

Nothing here looks at lengths: who calls has made sure of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import boolean, float32, int8, int32, njit, types, uint8, void
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
Codes = NDArray[np.int8]
Bytes = NDArray[np.uint8]

BLOCK = 256
"""As in codecs/scaled.py, whose constants these are."""
HALF = BLOCK // 2
SMALLEST_PEAK = np.float32(2.0**-100)
ROUNDER = np.float32(1.5 * 2.0**23)
ROUNDER_4 = np.float32(1.5 * 2.0**23 + 8)
LARGEST_PEAK_BITS = np.int32(0x7F00_0000)
"""2¹²⁷"""

MAGNITUDE = np.int32(0x7FFF_FFFF)
"""Bits of a float32 without its sign: as whole numbers they have the order of the magnitudes, NaNs last."""
INFINITY_BITS = np.int32(0x7F80_0000)

ROW_8 = 4 + BLOCK
ROW_4 = 4 + HALF
"""Bytes of one record: a float32 scale, then the codes."""

_Floats, _Bits, _Bytes, _Codes = (types.Array(kind, 1, "C", readonly=True) for kind in (float32, int32, uint8, int8))
"""Arrays that are only read: of received bytes too, which nobody may write to."""


def _compile(returned: Any, *arguments: Any) -> Callable[[Any], Any]:
    """For these types alone; a call with others is a TypeError, not a minute in which it is compiled for them as well."""
    compiling: Callable[[Any], Any] = njit(returned(*arguments), nogil=True, cache=True, error_model="numpy")
    return compiling


@_compile(boolean, _Bits)
def all_finite(bits: Bits) -> bool:
    """bits: [count] int32, of float32 values."""
    largest = np.int32(0)
    for i in range(len(bits)):
        largest = max(largest, np.int32(bits[i] & MAGNITUDE))
    return bool(largest < INFINITY_BITS)


@_compile(void, _Floats, float32, float32[::1])
def weigh(values: Floats, weight: np.float32, total: Floats) -> None:
    """total = values × weight; float32 all."""
    for i in range(len(values)):
        total[i] = values[i] * weight


@_compile(void, _Floats, float32, float32[::1])
def add_weighted(values: Floats, weight: np.float32, total: Floats) -> None:
    """total += values × weight; float32 all."""
    for i in range(len(values)):
        total[i] = total[i] + values[i] * weight


@_compile(void, float32[::1], float32)
def divide(total: Floats, divisor: np.float32) -> None:
    """total ÷= divisor; float32 both. Two arrays that may be the same one would not be divided many values at a time."""
    for i in range(len(total)):
        total[i] = total[i] / divisor


@_compile(boolean, _Floats, _Bits, uint8[::1], float32[::1])
def encode_8(values: Floats, bits: Bits, out: Bytes, scales: Floats) -> bool:
    """values: [blocks × 256] float32; bits: the same memory as int32; out: [blocks × 260] uint8; scales: the same as float32.

    False when a value is too large or not finite; `out` is then undefined.
    """
    sums = np.empty(BLOCK, np.float32)
    codes = sums.view(np.int32)
    for block in range(len(values) // BLOCK):
        row, row_bits = values[block * BLOCK : (block + 1) * BLOCK], bits[block * BLOCK : (block + 1) * BLOCK]
        largest = np.int32(0)
        for i in range(BLOCK):
            largest = max(largest, np.int32(row_bits[i] & MAGNITUDE))
        if largest > LARGEST_PEAK_BITS:
            return False
        codes[0] = largest
        scale = np.float32(max(sums[0], SMALLEST_PEAK) / np.float32(127))
        factor = np.float32(np.float32(1) / scale)
        scales[block * (ROW_8 // 4)] = scale
        for i in range(BLOCK):
            sums[i] = row[i] * factor + ROUNDER
        record = out[block * ROW_8 + 4 : (block + 1) * ROW_8]
        for i in range(BLOCK):
            record[i] = np.uint8(codes[i])
    return True


@_compile(boolean, _Floats, _Bits, uint8[::1], float32[::1])
def encode_4(values: Floats, bits: Bits, out: Bytes, scales: Floats) -> bool:
    """Like encode_8, but out: [blocks × 132] uint8."""
    sums = np.empty(BLOCK, np.float32)
    codes = sums.view(np.int32)
    for block in range(len(values) // BLOCK):
        row, row_bits = values[block * BLOCK : (block + 1) * BLOCK], bits[block * BLOCK : (block + 1) * BLOCK]
        largest = np.int32(0)
        for i in range(BLOCK):
            largest = max(largest, np.int32(row_bits[i] & MAGNITUDE))
        if largest > LARGEST_PEAK_BITS:
            return False
        codes[0] = largest
        scale = np.float32(max(sums[0], SMALLEST_PEAK) / np.float32(7))
        factor = np.float32(np.float32(1) / scale)
        scales[block * (ROW_4 // 4)] = scale
        for i in range(BLOCK):
            sums[i] = row[i] * factor + ROUNDER_4
        record = out[block * ROW_4 + 4 : (block + 1) * ROW_4]
        for i in range(HALF):
            record[i] = np.uint8(codes[i]) | np.uint8(np.uint8(codes[HALF + i]) << np.uint8(4))
    return True


@_compile(void, _Codes, _Floats, float32[::1])
def decode_8(codes: Codes, scales: Floats, out: Floats) -> None:
    """codes: [blocks × 260] int8, the records; scales: the same memory as float32; out: [blocks × 256] float32, overwritten."""
    for block in range(len(out) // BLOCK):
        scale = scales[block * (ROW_8 // 4)]
        record, row = codes[block * ROW_8 + 4 : (block + 1) * ROW_8], out[block * BLOCK : (block + 1) * BLOCK]
        for i in range(BLOCK):
            row[i] = np.float32(record[i]) * scale


@_compile(void, _Bytes, _Floats, float32[::1])
def decode_4(codes: Bytes, scales: Floats, out: Floats) -> None:
    """Like decode_8, but codes: [blocks × 132] uint8."""
    for block in range(len(out) // BLOCK):
        scale = scales[block * (ROW_4 // 4)]
        record, row = codes[block * ROW_4 + 4 : (block + 1) * ROW_4], out[block * BLOCK : (block + 1) * BLOCK]
        for i in range(HALF):
            row[i] = np.float32(np.int8(np.uint8(record[i] & np.uint8(15))) - np.int8(8)) * scale
        for i in range(HALF):
            row[HALF + i] = np.float32(np.int8(np.uint8(record[i] >> np.uint8(4))) - np.int8(8)) * scale


@_compile(void, _Codes, _Floats, float32, float32[::1])
def weigh_8(codes: Codes, scales: Floats, weight: np.float32, total: Floats) -> None:
    """total = decoded × weight; as decode_8, without writing down what is decoded."""
    for block in range(len(total) // BLOCK):
        scale = scales[block * (ROW_8 // 4)]
        record, row = codes[block * ROW_8 + 4 : (block + 1) * ROW_8], total[block * BLOCK : (block + 1) * BLOCK]
        for i in range(BLOCK):
            row[i] = np.float32(record[i]) * scale * weight


@_compile(void, _Codes, _Floats, float32, float32[::1])
def add_weighted_8(codes: Codes, scales: Floats, weight: np.float32, total: Floats) -> None:
    """total += decoded × weight."""
    for block in range(len(total) // BLOCK):
        scale = scales[block * (ROW_8 // 4)]
        record, row = codes[block * ROW_8 + 4 : (block + 1) * ROW_8], total[block * BLOCK : (block + 1) * BLOCK]
        for i in range(BLOCK):
            row[i] = row[i] + np.float32(record[i]) * scale * weight


@_compile(void, _Bytes, _Floats, float32, float32[::1])
def weigh_4(codes: Bytes, scales: Floats, weight: np.float32, total: Floats) -> None:
    """total = decoded × weight; as decode_4."""
    for block in range(len(total) // BLOCK):
        scale = scales[block * (ROW_4 // 4)]
        record, row = codes[block * ROW_4 + 4 : (block + 1) * ROW_4], total[block * BLOCK : (block + 1) * BLOCK]
        for i in range(HALF):
            row[i] = np.float32(np.int8(np.uint8(record[i] & np.uint8(15))) - np.int8(8)) * scale * weight
        for i in range(HALF):
            row[HALF + i] = np.float32(np.int8(np.uint8(record[i] >> np.uint8(4))) - np.int8(8)) * scale * weight


@_compile(void, _Bytes, _Floats, float32, float32[::1])
def add_weighted_4(codes: Bytes, scales: Floats, weight: np.float32, total: Floats) -> None:
    """total += decoded × weight."""
    for block in range(len(total) // BLOCK):
        scale = scales[block * (ROW_4 // 4)]
        record, row = codes[block * ROW_4 + 4 : (block + 1) * ROW_4], total[block * BLOCK : (block + 1) * BLOCK]
        for i in range(HALF):
            row[i] = row[i] + np.float32(np.int8(np.uint8(record[i] & np.uint8(15))) - np.int8(8)) * scale * weight
        for i in range(HALF):
            code = np.int8(np.uint8(record[i] >> np.uint8(4))) - np.int8(8)
            row[HALF + i] = row[HALF + i] + np.float32(code) * scale * weight
