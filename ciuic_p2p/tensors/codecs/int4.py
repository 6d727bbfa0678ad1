"""Blocks of 256 values in 4 bits each and a float32 scale: 4.125 bits a value. Values i and i + 128 of a block share a byte.

The halves, rather than neighbours, share a byte so that packing and unpacking are whole-row operations.
"""

from __future__ import annotations

import numpy as np

from ciuic_p2p.tensors.codecs.blocks import Records
from ciuic_p2p.tensors.codecs.scaled import BLOCK_VALUES, ScaledCodec, ScaledWorkspace

_HALF = BLOCK_VALUES // 2
_FOUR = np.uint64(4)
_LOW_NIBBLES = np.uint64(0x0F0F_0F0F_0F0F_0F0F)
_BIAS = np.uint8(8)


class Int4(ScaledCodec):
    """Error at most half a scale: 1/14 of the block's largest magnitude."""

    name = "int4"
    code = 5
    levels = 7
    bias = int(_BIAS)
    record = np.dtype([("scale", "<f4"), ("codes", "u1", (_HALF,))])

    def last_record_bytes(self, count: int) -> int:
        return 4 + min(count, _HALF)

    def pack(self, space: ScaledWorkspace, records: Records) -> None:
        # Eight codes at a time: a code is below 16, so a shift by 4 never crosses into the next byte.
        np.left_shift(space.last_words, _FOUR, out=space.packed_words)
        np.bitwise_or(space.packed_words, space.first_words, out=space.packed_words)
        records["codes"] = space.packed

    def unpack(self, records: Records, space: ScaledWorkspace) -> None:
        space.packed[:] = records["codes"]
        np.copyto(space.first_words, space.packed_words)
        np.right_shift(space.packed_words, _FOUR, out=space.last_words)
        np.bitwise_and(space.code_words, _LOW_NIBBLES, out=space.code_words)
        np.subtract(space.codes, _BIAS, out=space.codes)
