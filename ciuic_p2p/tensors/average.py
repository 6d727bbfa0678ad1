"""The weighted mean of one part's contributions.

Does not know whose they are: that none comes twice is the round machine's duty.
"""

from __future__ import annotations

import threading

import numpy as np

from ciuic_p2p.errors import RoundFailed
from ciuic_p2p.tensors.codecs.base import Bytes, Codec, Float32
from ciuic_p2p.tensors.kernels import can_take, kernels
from ciuic_p2p.tensors.tiles import TILE_VALUES, is_finite, require_finite, tiles


class Accumulator:
    """Σ wᵢxᵢ in float32, divided by Σ wᵢ at the end. One thread at a time; different accumulators are independent.

    With n contributions the mean of a value is off by at most (n + 3) · 2⁻²⁴ · Σ wᵢ|xᵢ| / Σ wᵢ: n - 1 additions, and
    one rounding each of weight, product, total and quotient (Higham, Accuracy and Stability of Numerical Algorithms,
    §3.1). That is 1.2e-6 of the mean magnitude for 16 peers. In the last bits it depends on the order of arrival, so
    the owner of a part encodes it once and every member takes those bytes.
    """

    def __init__(self, count: int, memory: Float32 | None = None) -> None:
        """memory: [count] float32 in which to add up, overwritten; own memory when None."""
        self.count = count
        self.total_weight = 0
        self.contributions = 0
        self._sum = np.empty(count, np.float32) if memory is None else memory  # meaningless while contributions == 0

    def reset(self) -> None:
        """Forgets every contribution and keeps the memory."""
        self.total_weight = 0
        self.contributions = 0

    def add(self, values: Float32, weight: int) -> None:
        """values: [count] float32; weight ≥ 0. Raises MalformedPayload, and adds nothing, when a value is not finite."""
        self._require(len(values), weight)
        require_finite(values)
        self._add_checked(values, weight)

    def add_encoded(self, codec: Codec, payload: Bytes, weight: int) -> None:
        """payload: [codec.encoded_bytes(count)] uint8; weight ≥ 0; decoded one tile at a time.

        Raises MalformedPayload, and adds nothing, when `codec.check` refuses the payload.
        """
        self._require(self.count, weight)
        codec.check(payload, self.count)
        if codec.is_plain:
            self._add_checked(payload.view("<f4"), weight)
            return
        if codec.add_checked(payload, weight, self._sum, is_first=self.contributions == 0):
            self._count_in(weight)
            return
        decoded = _THREAD.decoded()
        for tile in tiles(self.count):
            values = decoded[: tile.stop - tile.start]
            codec.decode_checked_into(payload[codec.encoded_bytes(tile.start) : codec.encoded_bytes(tile.stop)], values)
            self._add_tile(tile, values, weight)
        self._count_in(weight)

    def mean_into(self, out: Float32) -> None:
        """out: [count] float32, overwritten; may be the memory in which was added up.

        Raises RoundFailed when no contribution had a weight, or the weighted sum left the range of float32.
        """
        if self.total_weight == 0:
            raise RoundFailed("no contribution carried a weight")
        compiled = kernels()
        if compiled is not None and can_take(self._sum, out):
            self._require_finite_sum(compiled.is_finite(self._sum))
            if out.ctypes.data != self._sum.ctypes.data:
                out[:] = self._sum
            compiled.divide(out, self.total_weight)
            return
        divisor = np.float32(self.total_weight)
        for tile in tiles(self.count):
            self._require_finite_sum(is_finite(self._sum[tile]))
            np.divide(self._sum[tile], divisor, out=out[tile])

    @staticmethod
    def _require_finite_sum(finite: bool) -> None:
        if not finite:
            raise RoundFailed("the weighted sum of the contributions is out of the range of float32")

    def _add_checked(self, values: Float32, weight: int) -> None:
        compiled = kernels()
        if compiled is not None and can_take(values, self._sum):
            compiled.add(values, weight, self._sum, is_first=self.contributions == 0)
        else:
            for tile in tiles(self.count):
                self._add_tile(tile, values[tile], weight)
        self._count_in(weight)

    def _add_tile(self, tile: slice, values: Float32, weight: int) -> None:
        target = self._sum[tile]
        factor = np.float32(weight)
        with np.errstate(over="ignore", invalid="ignore"):  # mean_into looks for it once
            if self.contributions == 0:
                np.multiply(values, factor, out=target)
                return
            if weight == 1:
                np.add(target, values, out=target)
                return
            weighted = _THREAD.weighted()[: len(values)]
            np.multiply(values, factor, out=weighted)
            np.add(target, weighted, out=target)

    def _count_in(self, weight: int) -> None:
        self.total_weight += weight
        self.contributions += 1

    def _require(self, count: int, weight: int) -> None:
        if count != self.count or weight < 0:
            raise ValueError(f"{count} values of weight {weight} for an accumulator of {self.count}")


class _Scratch(threading.local):
    """Two tiles for each thread that adds, made when it first does."""

    _decoded: Float32 | None = None
    _weighted: Float32 | None = None

    def decoded(self) -> Float32:
        if self._decoded is None:
            self._decoded = np.empty(TILE_VALUES, np.float32)
        return self._decoded

    def weighted(self) -> Float32:
        if self._weighted is None:
            self._weighted = np.empty(TILE_VALUES, np.float32)
        return self._weighted


_THREAD = _Scratch()
