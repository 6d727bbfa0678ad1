"""The order in which a pass goes through a dataset: a permutation by seed and pass that is computed, never held. Pure.

A Feistel network permutes the numbers of an even number of bits; what lands outside the dataset is sent through it again until
it lands inside (cycle walking: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002, section 3). It shuffles and
keeps no secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from blake3 import blake3

from ciuic_p2p.data.slots import Slots

_ROUNDS = 6
"""Four make a permutation that looks random when the rounds do (Luby and Rackoff, 1988); small datasets want a few more."""
_BLOCK = 1 << 14
"""Slots that are permuted at once: 128 KiB."""


class Order:
    """Of a dataset of `count` samples, in every pass another one; the same on every machine."""

    def __init__(self, count: int, seed: int) -> None:
        if not 0 < count < 1 << 62:
            raise ValueError(f"an order of {count} samples")
        self.count = count
        self._seed = seed
        self._half_bits = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)

    def samples_at(self, pass_number: int, slots: Any) -> Any:
        """slots: [n] int64, each below `count`. Returns [n] int64: the samples that stand in them."""
        keys = self._keys(pass_number)
        found = self._permuted(np.asarray(slots, dtype=np.uint64), keys)
        outside = np.flatnonzero(found >= self.count)
        while len(outside):  # ends: the walk is along a cycle that began inside
            found[outside] = self._permuted(found[outside], keys)
            outside = outside[found[outside] >= self.count]
        return found.astype(np.int64)

    def samples_of(self, slots: Slots) -> Iterator[int]:
        """The samples of a lease, in the order of its slots, in constant memory."""
        for number, start, stop in slots.stretches():
            for first in range(start, stop, _BLOCK):
                yield from self.samples_at(number, np.arange(first, min(stop, first + _BLOCK))).tolist()

    def _keys(self, pass_number: int) -> Any:  # [_ROUNDS] uint64
        digest = blake3(f"ciuic order\0{self._seed}\0{pass_number}\0{self.count}".encode()).digest(length=8 * _ROUNDS)
        return np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def _permuted(self, numbers: Any, keys: Any) -> Any:  # [n] uint64
        left, right = numbers >> self._half_bits, numbers & self._mask
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & self._mask)
        return (left << self._half_bits) | right


def _mixed(values: Any) -> Any:  # [n] uint64
    """The finaliser of SplitMix64 (Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
