"""The size of a tile, the walk over one, and the check that every value is finite. Knows no codec."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.tensors.kernels import can_take, kernels

Float32 = NDArray[np.float32]

TORCH_VALUES = 28_672
"""Most values for one torch operation: from 32,768 on (`at::internal::GRAIN_SIZE`) torch hands parts to threads of its own."""

TILE_VALUES = 2 * TORCH_VALUES
"""14 × 4096 float32 values (224 KiB): a whole number of every codec's blocks; the few
such buffers that a loop touches fit the L2 cache, and it is long enough that the calls cost little (half of it: a
quarter slower)."""

_POSITIVE_INFINITY_BITS = 0x7F80_0000
_NEGATIVE_INFINITY_BITS = 0xFF80_0000


def tiles(count: int) -> Iterator[slice]:
    """Slices of at most TILE_VALUES that cover `count` values in order."""
    for start in range(0, count, TILE_VALUES):
        yield slice(start, min(start + TILE_VALUES, count))


def is_finite(values: Float32) -> bool:
    """values: [count] float32."""
    compiled = kernels()
    if compiled is not None and can_take(values):
        return compiled.is_finite(values)
    return all(_is_finite_tile(values[tile]) for tile in tiles(len(values)))


def _is_finite_tile(values: Float32) -> bool:
    """Two integer maxima over the bits: five times the speed of numpy.isfinite, and no temporary.

    As signed integers the positive infinities and NaNs are the largest, as unsigned ones the negative.
    """
    signed, unsigned = values.view(np.int32), values.view(np.uint32)
    return int(signed.max()) < _POSITIVE_INFINITY_BITS and int(unsigned.max()) < _NEGATIVE_INFINITY_BITS


def require_finite(values: Float32) -> None:
    """values: [count] float32. Raises MalformedPayload, without a peer, when one is not finite."""
    if not is_finite(values):
        raise MalformedPayload(None, "a value that is not finite")
