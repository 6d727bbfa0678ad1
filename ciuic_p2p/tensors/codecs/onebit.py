"""The sign of each value, and the mean magnitude of 64 as a bfloat16: 1.25 bits a value (Seide 2014, 1-bit SGD).

Loses most of every value: only for senders that keep the rest (feedback.py). That residual also absorbs the scale's
rounding, so a bfloat16 does, where a float32 would add a fifth to the bytes.
"""

from __future__ import annotations

import numpy as np
import torch

from ciuic_p2p.tensors.codecs.base import Float32
from ciuic_p2p.tensors.codecs.blocks import BlockCodec, Records
from ciuic_p2p.tensors.tiles import TORCH_VALUES

_BLOCK_VALUES = 64
_TORCH_BLOCKS = TORCH_VALUES // _BLOCK_VALUES
_LARGEST_SUM = np.float32(2.0**127)
_LARGEST_SCALE_BITS = 0x7F7F
"""The largest finite bfloat16; infinity, NaNs and negative numbers have larger patterns."""

_SIGNS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1), np.float32(-1.0), np.float32(1.0))
"""[256, 8] float32: the eight signs that a byte holds."""


class Half:
    """As much of a workspace as one torch operation may be given, in torch's eyes."""

    def __init__(self, rows: torch.Tensor, scales: torch.Tensor) -> None:
        self.rows = rows  # [blocks, 64] float32
        self.scales = scales
        self.scale_column = scales.view(-1, 1)


class OneBitWorkspace:
    """One thread's buffers for a number of blocks; torch sees the same memory as numpy."""

    def __init__(self, blocks: int) -> None:
        self.values = np.empty(blocks * _BLOCK_VALUES, np.float32)
        self.eights = self.values.reshape(-1, 8)
        self.negative = np.empty(blocks * _BLOCK_VALUES, np.bool_)
        self.sign_words = np.empty(blocks, "<u8")
        self.sign_bytes = self.sign_words.view(np.uint8)
        self.scales = np.empty(blocks, np.float32)
        self.scale_bits = self.scales.view(np.uint32)
        rows = torch.from_numpy(self.values).view(blocks, _BLOCK_VALUES)
        self.halves = [
            Half(rows[half], torch.from_numpy(self.scales[half]))
            for half in (slice(0, _TORCH_BLOCKS), slice(_TORCH_BLOCKS, blocks))
            if half.start < blocks
        ]


class OneBit(BlockCodec[OneBitWorkspace]):
    """Bit 7 of a record's first sign byte is the block's first value; 1 is negative."""

    name = "onebit"
    wants_feedback = True
    code = 6
    block_values = _BLOCK_VALUES
    largest_magnitude = float(_LARGEST_SUM) / _BLOCK_VALUES
    record = np.dtype([("scale", "<u2"), ("signs", "<u8")])

    def last_record_bytes(self, count: int) -> int:
        return 2 + -(-count // 8)

    def padding(self, values: Float32) -> float:
        """The mean magnitude, so that it stays the block's."""
        return float(np.mean(np.abs(values), dtype=np.float64))

    def new_workspace(self, size: int) -> OneBitWorkspace:
        return OneBitWorkspace(size)

    def encode_blocks(self, values: Float32, records: Records) -> None:
        space = self.workspace(len(records))
        self._sum_magnitudes(values, space)
        if not space.scales.max() <= _LARGEST_SUM:
            values = self.saturate(values)
            self._sum_magnitudes(values, space)
        np.multiply(space.scales, np.float32(1.0 / _BLOCK_VALUES), out=space.scales)
        records["scale"] = _round_to_bfloat16(space)
        np.signbit(values, out=space.negative)
        records["signs"] = np.packbits(space.negative).view("<u8")

    def decode_blocks(self, records: Records, out: Float32) -> None:
        space = self.workspace(len(records))
        np.left_shift(records["scale"], 16, out=space.scale_bits, dtype=np.uint32)
        space.sign_words[:] = records["signs"]
        np.take(_SIGNS, space.sign_bytes, axis=0, out=space.eights, mode="clip")
        for half in space.halves:
            torch.mul(half.rows, half.scale_column, out=half.rows)
        np.copyto(out, space.values)

    def check_records(self, records: Records) -> None:
        if int(records["scale"].max()) > _LARGEST_SCALE_BITS:
            raise self.malformed("a scale that is negative or not finite")

    def _sum_magnitudes(self, values: Float32, space: OneBitWorkspace) -> None:
        np.abs(values, out=space.values)
        for half in space.halves:
            torch.sum(half.rows, dim=1, out=half.scales)


def _round_to_bfloat16(space: OneBitWorkspace) -> np.typing.NDArray[np.uint32]:
    """The upper 16 bits of the scales' patterns, rounded to nearest even."""
    bits = space.scale_bits
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
