"""Blocks of 256 values in 8 bits each and a float32 scale: 8.125 bits a value."""

from __future__ import annotations

import numpy as np

from ciuic_p2p.tensors.codecs.blocks import Records
from ciuic_p2p.tensors.codecs.scaled import BLOCK_VALUES, ScaledCodec, ScaledWorkspace


class Int8(ScaledCodec):
    """Error at most half a scale: 1/254 of the block's largest magnitude."""

    name = "int8"
    code = 4
    levels = 127
    bias = 0
    record = np.dtype([("scale", "<f4"), ("codes", "u1", (BLOCK_VALUES,))])

    def last_record_bytes(self, count: int) -> int:
        return 4 + count

    def pack(self, space: ScaledWorkspace, records: Records) -> None:
        records["codes"] = space.code_rows

    def unpack(self, records: Records, space: ScaledWorkspace) -> None:
        space.code_rows[:] = records["codes"]
