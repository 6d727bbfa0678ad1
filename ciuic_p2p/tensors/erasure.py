"""An erasure code: m parity shards of k data shards, and whatever is lost of the k + m from any k that are left. Pure.

Reed and Solomon's, systematic: data shards are the bytes themselves. Over GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2
+ 1; parity i has the coefficients 1 / ((k + i) xor j), a Cauchy matrix, every square part of which can be inverted (Bloemer et
al., An XOR-Based Erasure-Resilient Coding Scheme, 1995). ISA-L's `gf_gen_cauchy1_matrix` is the same one.

It finds no wrong byte: whoever calls it has compared each shard with its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

MOST_SHARDS = 32
"""Of one stripe, parity included: so many are in memory at a time. The field would allow 256."""

_POLYNOMIAL = 0x11D
_PIECE_BYTES = 128 << 10
"""`bytes.translate` is the quickest look-up there is without a compiler, and holds the interpreter's lock: 0.1 ms so."""

Row = tuple[int, ...]
Shard = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """k data shards and m of parity. Raises ValueError for one that cannot be.

    With one data shard parity would be the same bytes: that is what copies are for.
    """

    k: int
    m: int

    def __post_init__(self) -> None:
        if self.k < 2 or self.m < 1 or self.k + self.m > MOST_SHARDS:
            raise ValueError(f"{self.k}+{self.m} shards; 2+1 is the least, and {MOST_SHARDS} in all the most that can be")

    def __str__(self) -> str:
        return f"{self.k}+{self.m}"


def encode(data: Sequence[Shard], code: Code) -> list[bytearray]:
    """The parity shards, as long as the longest of the data.

    data: at most k; those that are wanting or shorter count as filled up with zeros. Raises ValueError for more.
    """
    if not 0 < len(data) <= code.k:
        raise ValueError(f"{len(data)} shards for a stripe of {code.k}")
    width = max(map(len, data))
    return [_combine(_parity_row(code.k, number), data, width) for number in range(code.m)]


def rebuild(present: Mapping[int, Shard], wanted: Sequence[int], k: int, width: int) -> list[bytearray]:
    """The shards with these numbers: data from 0, parity from k; each of `width` bytes, filled up with zeros.

    present: by number, any k of them; of more, k are used. Raises ValueError for fewer.
    """
    given = sorted(present)[:k]
    if len(given) < k:
        raise ValueError(f"{len(given)} shards are here, {k} are needed")
    inverse = _inverted(tuple(_row(k, number) for number in given))
    shards = [present[number] for number in given]
    return [_combine(_times(_row(k, number), inverse), shards, width) for number in wanted]


def _combine(row: Row, shards: Sequence[Shard], width: int) -> bytearray:
    """The sum of the shards, each times its coefficient."""
    total = bytearray(width)
    sums = np.frombuffer(total, np.uint8)
    views = [memoryview(shard).cast("B") for shard in shards]
    for start in range(0, width, _PIECE_BYTES):
        for factor, view in zip(row, views, strict=False):
            piece = view[start : start + _PIECE_BYTES]
            if factor and len(piece):
                scaled = np.frombuffer(bytes(piece).translate(_multiples(factor)) if factor != 1 else piece, np.uint8)
                target = sums[start : start + len(piece)]
                np.bitwise_xor(target, scaled, out=target)
    return total


def _row(k: int, number: int) -> Row:
    """What shard `number` is of the data."""
    return tuple(int(place == number) for place in range(k)) if number < k else _parity_row(k, number - k)


def _parity_row(k: int, number: int) -> Row:
    return tuple(_inverse((k + number) ^ place) for place in range(k))


# -- the field ---------------------------------------------------------------------------------------------------------------


@cache
def _tables() -> tuple[list[int], list[int]]:
    """Powers of 2, twice over, and logarithms."""
    powers, logarithms, value = [0] * 510, [0] * 256, 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        value = value << 1 ^ (_POLYNOMIAL if value & 0x80 else 0)
    return powers, logarithms


def _product(one: int, other: int) -> int:
    powers, logarithms = _tables()
    return powers[logarithms[one] + logarithms[other]] if one and other else 0


def _inverse(value: int) -> int:
    """Of anything but 0."""
    powers, logarithms = _tables()
    return powers[255 - logarithms[value]]


@cache
def _multiples(factor: int) -> bytes:
    """Of every byte."""
    return bytes(_product(factor, value) for value in range(256))


def _times(row: Row, matrix: NDArray[np.uint8]) -> Row:
    product = [0] * matrix.shape[1]
    for factor, line in zip(row, matrix.tolist(), strict=True):
        product = [value ^ _product(factor, each) for value, each in zip(product, line, strict=True)]
    return tuple(product)


@cache
def _inverted(rows: tuple[Row, ...]) -> NDArray[np.uint8]:
    """Gauss and Jordan. The rows are of one code, so there is an inverse."""
    size = len(rows)
    left = [list(row) for row in rows]
    right = [[int(place == number) for place in range(size)] for number in range(size)]
    for column in range(size):
        pivot = next(line for line in range(column, size) if left[line][column])
        left[column], left[pivot] = left[pivot], left[column]
        right[column], right[pivot] = right[pivot], right[column]
        factor = _inverse(left[column][column])
        left[column] = [_product(factor, value) for value in left[column]]
        right[column] = [_product(factor, value) for value in right[column]]
        for line in range(size):
            factor = left[line][column]
            if line != column and factor:
                left[line] = [a ^ _product(factor, b) for a, b in zip(left[line], left[column], strict=True)]
                right[line] = [a ^ _product(factor, b) for a, b in zip(right[line], right[column], strict=True)]
    return np.array(right, np.uint8)
