"""The 64 largest of every 4096 values: 12 bits of index each, a sign, and which of two magnitudes. 0.23 bits a value.

SparseLoCo, arXiv 2508.15706. Drops all other values: only for senders that keep the rest (feedback.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ciuic_p2p.tensors.codecs.base import Float32
from ciuic_p2p.tensors.codecs.blocks import BlockCodec, Records

_CHUNK_VALUES = 4096
_KEPT = 64
_LARGEST = 2.0**127
_NEGATIVE = 1
_HIGH = 2

Integers = NDArray[np.int64]


class TopKWorkspace:
    """One thread's buffer for a number of chunks."""

    def __init__(self, chunks: int) -> None:
        self.values = np.empty((chunks, _CHUNK_VALUES), np.float32)
        self.flat = self.values.reshape(-1)
        self.starts = np.arange(chunks, dtype=np.int64)[:, None] * _CHUNK_VALUES


class TopK(BlockCodec[TopKWorkspace]):
    """A record holds the two magnitudes, the indices in ascending order, and their 2-bit codes.

    A last chunk is filled up with zeros and its record kept whole; indices that point into the filling decode to nothing.
    """

    name = "topk"
    wants_feedback = True
    code = 7
    block_values = _CHUNK_VALUES
    largest_magnitude = _LARGEST
    record = np.dtype(
        [("low", "<f4"), ("high", "<f4"), ("indices", "u1", (_KEPT * 12 // 8,)), ("codes", "u1", (_KEPT * 2 // 8,))]
    )

    def last_record_bytes(self, count: int) -> int:
        return self.record.itemsize

    def new_workspace(self, size: int) -> TopKWorkspace:
        return TopKWorkspace(size)

    def encode_blocks(self, values: Float32, records: Records) -> None:
        space = self.workspace(len(records))
        np.abs(values, out=space.flat)
        if not space.flat.max() <= _LARGEST:
            values = self.saturate(values)
            np.abs(values, out=space.flat)
        indices = np.argpartition(space.values, _CHUNK_VALUES - _KEPT, axis=1)[:, -_KEPT:]
        indices.sort(axis=1)
        kept = values[indices + space.starts]  # [chunks, 64]
        low, high, is_high = _two_magnitudes(np.abs(kept))
        records["low"], records["high"] = low, high
        records["indices"] = _pack_indices(indices)
        records["codes"] = _pack_codes(np.signbit(kept) * _NEGATIVE + is_high * _HIGH)

    def decode_blocks(self, records: Records, out: Float32) -> None:
        space = self.workspace(len(records))
        codes = _unpack_codes(records["codes"])
        magnitudes = np.where(codes & _HIGH, records["high"][:, None], records["low"][:, None])
        out.fill(0.0)
        out[_unpack_indices(records["indices"]) + space.starts] = np.where(codes & _NEGATIVE, -magnitudes, magnitudes)

    def check_records(self, records: Records) -> None:
        for magnitudes in (records["low"], records["high"]):
            # Written so that a NaN, for which every comparison is false, is refused.
            if not (magnitudes.min() >= 0.0 and magnitudes.max() <= _LARGEST):
                raise self.malformed("a magnitude that is negative, too large or not a number")
        if not (np.diff(_unpack_indices(records["indices"]), axis=1) > 0).all():
            raise self.malformed("indices that do not ascend")


def _two_magnitudes(kept: Float32) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """kept: [chunks, 64] float32, ≥ 0. The means of those up to the row's mean and of those above, and which are above."""
    wide = kept.astype(np.float64)
    is_high = wide > wide.mean(axis=1, keepdims=True)
    high_count = is_high.sum(axis=1)
    high_sum = np.where(is_high, wide, 0.0).sum(axis=1)
    low = np.where(is_high, 0.0, wide).sum(axis=1) / (_KEPT - high_count)  # the smallest is never above the mean
    return low, high_sum / np.maximum(high_count, 1), is_high


def _pack_indices(indices: Integers) -> Integers:
    """[chunks, 64] of 12 bits to [chunks, 96] bytes: two indices in three bytes, low bits first."""
    first, second = indices[:, 0::2], indices[:, 1::2]
    triples = np.stack([first & 0xFF, (first >> 8) | ((second & 0xF) << 4), second >> 4], axis=2)
    return triples.reshape(len(indices), -1)


def _unpack_indices(packed: NDArray[np.uint8]) -> Integers:
    """[chunks, 96] bytes to [chunks, 64]."""
    triples = packed.reshape(len(packed), -1, 3).astype(np.int64)
    first = triples[:, :, 0] | ((triples[:, :, 1] & 0xF) << 8)
    second = (triples[:, :, 1] >> 4) | (triples[:, :, 2] << 4)
    return np.stack([first, second], axis=2).reshape(len(packed), -1)


def _pack_codes(codes: Integers) -> Integers:
    """[chunks, 64] of 2 bits to [chunks, 16] bytes, low bits first."""
    return codes[:, 0::4] | (codes[:, 1::4] << 2) | (codes[:, 2::4] << 4) | (codes[:, 3::4] << 6)


def _unpack_codes(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[chunks, 16] bytes to [chunks, 64]."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)
    return ((packed[:, :, None] >> shifts) & np.uint8(3)).reshape(len(packed), -1)
