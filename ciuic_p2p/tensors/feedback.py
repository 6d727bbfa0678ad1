"""Error feedback: what a codec lost of this round's pseudo-gradient is added to the next one's (Seide 2014; Karimireddy 2019).

Survives a change of group, for it belongs to the sender alone. Knows neither rounds nor which codec is used.
"""

from __future__ import annotations

import math
import threading

import numpy as np

from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.tensors.codecs.base import Bytes, Codec, Float32
from ciuic_p2p.tensors.tiles import TILE_VALUES, tiles

LARGEST_NORM_RATIO = 4.0
"""The residual is capped at this many times the median norm of the group's pseudo-gradients."""


class Feedback:
    """The residual of one run's flat array. Calls for parts that do not overlap may come from several threads at once."""

    def __init__(self, count: int) -> None:
        self.residual = np.zeros(count, np.float32)  # [count] float32

    def encode_into(self, codec: Codec, delta: Float32, start: int, out: Bytes) -> None:
        """p = delta + r;  out = encode(p);  r = p − decode(out), for the values from `start` on.

        delta: [part] float32; out: [codec.encoded_bytes(part)] uint8. Once for each part and round: what must be sent again is
        the same bytes. Raises MalformedPayload when a sum is not finite; the part's residual is then zero.
        """
        part = self._part(start, len(delta))
        if len(out) != codec.encoded_bytes(len(delta)):
            raise ValueError(f"{len(delta)} values need {codec.encoded_bytes(len(delta))} bytes, not {len(out)}")
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # the codec refuses what is not finite
                for tile in tiles(len(delta)):
                    _encode_tile(codec, delta[tile], part[tile], out[_payload_slice(codec, tile)])
        except MalformedPayload:
            part.fill(0.0)
            raise

    def take_back(self, codec: Codec, payload: Bytes, start: int, count: int) -> None:
        """r += decode(payload): a contribution of `count` values that no round took in is made up for later.

        Raises MalformedPayload, and changes nothing, when the payload is not one of `count` values.
        """
        part = self._part(start, count)
        codec.check(payload, count)
        for tile in tiles(count):
            decoded = _THREAD.tile()[: tile.stop - tile.start]
            codec.decode_checked_into(payload[_payload_slice(codec, tile)], decoded)
            np.add(part[tile], decoded, out=part[tile])

    def decay(self, factor: float, missed_rounds: int = 1) -> None:
        """r ×= factor for each missed round; 0 ≤ factor ≤ 1."""
        self._scale(factor**missed_rounds)

    def cap(self, median_norm: float, largest_ratio: float = LARGEST_NORM_RATIO) -> None:
        """Shrinks r to largest_ratio × median_norm where it is longer; median_norm is that of the group's pseudo-gradients."""
        norm, largest = self.norm(), largest_ratio * median_norm
        if norm > largest:
            self._scale(largest / norm)

    def norm(self) -> float:
        """‖r‖₂, summed tile by tile in float64."""
        return math.sqrt(sum(_square_norm(self.residual[tile]) for tile in tiles(len(self.residual))))

    def zero(self) -> None:
        """After the state was taken from others: what is left over belongs to another anchor."""
        self.residual.fill(0.0)

    def _scale(self, factor: float) -> None:
        for tile in tiles(len(self.residual)):
            np.multiply(self.residual[tile], np.float32(factor), out=self.residual[tile])

    def _part(self, start: int, count: int) -> Float32:
        if not 0 <= start <= start + count <= len(self.residual):
            raise ValueError(f"values {start} to {start + count} of a residual of {len(self.residual)}")
        return self.residual[start : start + count]


def _encode_tile(codec: Codec, delta: Float32, residual: Float32, out: Bytes) -> None:
    np.add(residual, delta, out=residual)
    codec.encode_into(residual, out)
    decoded = _THREAD.tile()[: len(delta)]
    codec.decode_checked_into(out, decoded)
    np.subtract(residual, decoded, out=residual)


def _square_norm(values: Float32) -> float:
    norm = float(np.linalg.norm(values))
    return norm * norm


def _payload_slice(codec: Codec, tile: slice) -> slice:
    return slice(codec.encoded_bytes(tile.start), codec.encoded_bytes(tile.stop))


class _Scratch(threading.local):
    """One tile for each thread that encodes, made when it first does."""

    _tile: Float32 | None = None

    def tile(self) -> Float32:
        if self._tile is None:
            self._tile = np.empty(TILE_VALUES, np.float32)
        return self._tile


_THREAD = _Scratch()
