"""Blocks of 256 values as small whole numbers times one scale, the quantiser that int4 and int8 share. Packs no bits.

The scale is the block's largest magnitude divided by the number of levels, so the error of a value is at most half a
scale. It is a float32: float16 would break that bound for small values, since a pseudo-gradient of 1e-6 has an int4
scale near 1e-7, where float16 keeps one bit; bfloat16 would save 1.5 % of int4's bytes and add up to 0.8 % to every
error.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray

from ciuic_p2p.tensors.codecs.base import Bytes, Float32
from ciuic_p2p.tensors.codecs.blocks import BlockCodec, Records
from ciuic_p2p.tensors.kernels import can_take, kernels
from ciuic_p2p.tensors.tiles import TORCH_VALUES

BLOCK_VALUES = 256

_TORCH_BLOCKS = TORCH_VALUES // BLOCK_VALUES

_SMALLEST_PEAK = np.float32(2.0**-100)
"""Blocks whose values all lie below it share its scale: zeros need no case of their own, denormals become zero."""

_LARGEST_PEAK = 2.0**127
"""Leaves room for the level that encoders never use (-8, -128) to decode to a finite value."""

_ROUNDER = 1.5 * 2.0**23
"""Added to a float32 of magnitude under 2²², leaves it rounded to the nearest even integer in the low bits of the sum."""


class Half:
    """As much of a workspace as one torch operation may be given, in torch's eyes."""

    def __init__(self, rows: torch.Tensor, scales: torch.Tensor, factors: torch.Tensor, blocks: slice) -> None:
        self.rows = rows  # [blocks, 256] float32
        self.scale_column = scales.view(-1, 1)
        self.factors = factors
        self.factor_column = factors.view(-1, 1)
        self.blocks = blocks


class ScaledWorkspace:
    """One thread's buffers for a number of blocks; torch sees the same memory as numpy."""

    def __init__(self, blocks: int) -> None:
        self.values = np.empty(blocks * BLOCK_VALUES, np.float32)  # [blocks × 256]
        self.integers = self.values.view(np.int32)
        self.code_rows = np.empty((blocks, BLOCK_VALUES), np.uint8)
        self.codes = self.code_rows.reshape(-1)
        self.signed_codes = self.codes.view(np.int8)
        self.code_words = self.code_rows.view(np.uint64)  # [blocks, 32]
        self.first_words, self.last_words = np.hsplit(self.code_words, 2)
        self.packed = np.empty((blocks, BLOCK_VALUES // 2), np.uint8)
        self.packed_words = self.packed.view(np.uint64)  # [blocks, 16]
        self.scales = np.empty(blocks, np.float32)
        self.factors = np.empty(blocks, np.float32)
        rows = torch.from_numpy(self.values).view(blocks, BLOCK_VALUES)
        self.halves = [
            Half(rows[half], torch.from_numpy(self.scales[half]), torch.from_numpy(self.factors[half]), half)
            for half in (slice(0, _TORCH_BLOCKS), slice(_TORCH_BLOCKS, blocks))
            if half.start < blocks
        ]


class ScaledCodec(BlockCodec[ScaledWorkspace]):
    """A record begins with its `scale`; the subclass packs and unpacks the 256 codes that follow."""

    block_values = BLOCK_VALUES
    has_kernels = True
    largest_magnitude = _LARGEST_PEAK
    levels: int
    """The largest code; the smallest is its negative."""
    bias: int
    """Added to every code before it is packed."""

    @abstractmethod
    def pack(self, space: ScaledWorkspace, records: Records) -> None:
        """Moves space.codes, uint8 of code + bias modulo 256, into the records."""

    @abstractmethod
    def unpack(self, records: Records, space: ScaledWorkspace) -> None:
        """Moves the records' codes, without bias, into space.signed_codes."""

    def new_workspace(self, size: int) -> ScaledWorkspace:
        return ScaledWorkspace(size)

    def encode_into(self, values: Float32, out: Bytes) -> None:
        compiled = kernels()
        whole, whole_bytes = self._whole(len(values))
        if compiled is None or len(out) != self.encoded_bytes(len(values)) or not can_take(values, out):
            super().encode_into(values, out)
        elif not compiled.encode(self.levels, values[:whole], out[:whole_bytes]):
            super().encode_into(values, out)  # which says what is wrong, or brings the values into the codec's range
        elif whole < len(values):
            self._encode_last(values[whole:], out[whole_bytes:])

    def decode_checked_into(self, payload: Bytes, out: Float32) -> None:
        compiled = kernels()
        if compiled is None or not can_take(payload, out):
            super().decode_checked_into(payload, out)
            return
        whole, whole_bytes = self._whole(len(out))
        compiled.decode(self.levels, payload[:whole_bytes], out[:whole])
        if whole < len(out):
            super().decode_checked_into(payload[whole_bytes:], out[whole:])

    def add_checked(self, payload: Bytes, weight: int, total: Float32, *, is_first: bool) -> bool:
        compiled = kernels()
        if compiled is None or not can_take(payload, total):
            return False
        whole, whole_bytes = self._whole(len(total))
        compiled.add_encoded(self.levels, payload[:whole_bytes], weight, total[:whole], is_first=is_first)
        if whole < len(total):
            rest = np.empty(len(total) - whole, np.float32)
            super().decode_checked_into(payload[whole_bytes:], rest)
            compiled.add(rest, weight, total[whole:], is_first=is_first)
        return True

    def _whole(self, count: int) -> tuple[int, int]:
        """How many of so many values are in whole blocks, and the bytes of those."""
        whole = count - count % BLOCK_VALUES
        return whole, self.encoded_bytes(whole)

    def encode_blocks(self, values: Float32, records: Records) -> None:
        space = self.workspace(len(records))
        if not self._find_scales(values, space):
            values = self.saturate(values)
            self._find_scales(values, space)
        self._quantise(values, space)
        records["scale"] = space.scales
        self.pack(space, records)

    def decode_blocks(self, records: Records, out: Float32) -> None:
        space = self.workspace(len(records))
        space.scales[:] = records["scale"]
        self.unpack(records, space)
        np.copyto(space.values, space.signed_codes)
        for half in space.halves:
            torch.mul(half.rows, half.scale_column, out=half.rows)
        np.copyto(out, space.values)

    def check_records(self, records: Records) -> None:
        scales: NDArray[np.float32] = records["scale"]
        # Written so that a NaN, for which every comparison is false, is refused.
        if not (scales.min() >= 0.0 and scales.max() <= _LARGEST_PEAK / self.levels):
            raise self.malformed("a scale that is negative, too large or not a number")

    def _find_scales(self, values: Float32, space: ScaledWorkspace) -> bool:
        """Sets space.scales and their inverses, space.factors. False when a value is too large or not finite."""
        np.abs(values, out=space.values)
        for half in space.halves:
            torch.amax(half.rows, dim=1, out=half.factors)
        if not space.factors.max() <= _LARGEST_PEAK:
            return False
        np.maximum(space.factors, _SMALLEST_PEAK, out=space.factors)
        np.divide(space.factors, np.float32(self.levels), out=space.scales)
        np.divide(np.float32(1.0), space.scales, out=space.factors)
        return True

    def _quantise(self, values: Float32, space: ScaledWorkspace) -> None:
        """space.codes = values × factors, rounded to the nearest even integer, + bias."""
        rows = values.reshape(-1, BLOCK_VALUES)
        for half in space.halves:
            torch.mul(torch.from_numpy(rows[half.blocks]), half.factor_column, out=half.rows)
        np.add(space.values, np.float32(_ROUNDER + self.bias), out=space.values)
        np.copyto(space.codes, space.integers, casting="unsafe")
