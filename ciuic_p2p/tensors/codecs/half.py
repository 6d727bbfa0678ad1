"""Values rounded to a 16-bit float, to nearest even, which float16 and bfloat16 share. Knows neither's range.

torch converts, because numpy's float16 conversion (2 GB/s) does not use the processor's instructions for it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ciuic_p2p.tensors.codecs.base import Bytes, Float32
from ciuic_p2p.tensors.codecs.tiled import TiledCodec
from ciuic_p2p.tensors.tiles import TORCH_VALUES, tiles

_BYTES = 2
_SIGN_BIT = 0x8000


class HalfWorkspace:
    """One thread's buffer for the payload of a number of values, as numpy and as torch see it."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        bits = np.empty(size, "<u2")
        self.bytes = bits.view(np.uint8)
        self.signed, self.unsigned = bits.view("<i2"), bits
        self.pieces = [
            (piece, torch.from_numpy(bits[piece]).view(dtype))
            for piece in (slice(start, min(start + TORCH_VALUES, size)) for start in range(0, size, TORCH_VALUES))
        ]
        """What one torch operation may be given: which values, and where they are rounded to."""


class HalfCodec(TiledCodec[HalfWorkspace]):
    """The payload is the little-endian 16-bit floats."""

    block_values = 1
    item_bytes = 2
    dtype: torch.dtype
    infinity_bits: int
    """The pattern of positive infinity; above it, up to the sign bit, are the NaNs."""

    def encoded_bytes(self, count: int) -> int:
        return _BYTES * count

    def new_workspace(self, size: int) -> HalfWorkspace:
        return HalfWorkspace(size, self.dtype)

    def encode_tile(self, values: Float32, out: Bytes) -> None:
        space = self.workspace(len(values))
        _round(values, space)
        if not self._is_finite(space.signed, space.unsigned):
            _round(self.saturate(values), space)
        np.copyto(out, space.bytes)

    def decode_tile(self, payload: Bytes, out: Float32) -> None:
        space = self.workspace(len(out))
        np.copyto(space.bytes, payload)  # received bytes may be read-only, which torch does not know
        for piece, halves in space.pieces:
            torch.from_numpy(out[piece]).copy_(halves)

    def check(self, payload: Bytes, count: int) -> None:
        self.require_size(payload, count)
        for tile in tiles(count):
            part = payload[self.payload_slice(tile)]
            if not self._is_finite(part.view("<i2"), part.view("<u2")):
                raise self.malformed("a value that is not finite")

    def _is_finite(self, signed: NDArray[np.int16], unsigned: NDArray[np.uint16]) -> bool:
        """The same bits twice: as signed integers positive NaNs and infinity are the largest, as unsigned the negative."""
        return int(signed.max()) < self.infinity_bits and int(unsigned.max()) < self.infinity_bits + _SIGN_BIT


def _round(values: Float32, space: HalfWorkspace) -> None:
    for piece, halves in space.pieces:
        halves.copy_(torch.from_numpy(values[piece]))
