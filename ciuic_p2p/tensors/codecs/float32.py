"""The values as they are: 32 bits each, little-endian. Lossless."""

from __future__ import annotations

import numpy as np

from ciuic_p2p.tensors.codecs.base import Bytes, Codec, Float32
from ciuic_p2p.tensors.tiles import require_finite, tiles

_BYTES = 4


class Plain32(Codec):
    """Neither side lets a value pass that is not finite."""

    name = "float32"
    code = 1
    block_values = 1
    largest_magnitude = float(np.finfo(np.float32).max)
    is_plain = True
    has_kernels = True
    item_bytes = 4

    def encoded_bytes(self, count: int) -> int:
        return _BYTES * count

    def encode_into(self, values: Float32, out: Bytes) -> None:
        if len(out) != _BYTES * len(values):
            raise ValueError(f"{len(values)} values need {_BYTES * len(values)} bytes, not {len(out)}")
        for tile in tiles(len(values)):
            require_finite(values[tile])
            out[_payload_slice(tile)].view("<f4")[:] = values[tile]

    def check(self, payload: Bytes, count: int) -> None:
        self.require_size(payload, count)
        require_finite(payload.view("<f4"))

    def decode_checked_into(self, payload: Bytes, out: Float32) -> None:
        out[:] = payload.view("<f4")


def _payload_slice(tile: slice) -> slice:
    return slice(_BYTES * tile.start, _BYTES * tile.stop)
