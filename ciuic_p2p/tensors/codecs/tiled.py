"""The walk over a tensor in tiles, and the scratch memory each thread keeps for it. Knows no format."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np

from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.tensors.codecs.base import Bytes, Codec, Float32
from ciuic_p2p.tensors.tiles import require_finite, tiles

Workspace = TypeVar("Workspace")

_KEPT_WORKSPACES = 4
"""Sizes a thread keeps memory for: whole tiles, the last tile of two sizes of part, the padded last block."""


class TiledCodec(Codec, Generic[Workspace]):
    """Hands whole tiles, and one last shorter tile, to `encode_tile` and `decode_tile`."""

    def __init__(self) -> None:
        self._threads = threading.local()

    @abstractmethod
    def encode_tile(self, values: Float32, out: Bytes) -> None:
        """Like encode_into, for at most TILE_VALUES values."""

    @abstractmethod
    def decode_tile(self, payload: Bytes, out: Float32) -> None:
        """Like decode_checked_into, for at most TILE_VALUES values."""

    @abstractmethod
    def new_workspace(self, size: int) -> Workspace:
        """Buffers to work on `size` blocks (values, where a block is one value)."""

    def encode_into(self, values: Float32, out: Bytes) -> None:
        if len(out) != self.encoded_bytes(len(values)):
            raise ValueError(f"{len(values)} values need {self.encoded_bytes(len(values))} bytes, not {len(out)}")
        for tile in tiles(len(values)):
            # torch warns of arrays it must not write to, so it gets a copy of a tile of those.
            part = values[tile] if values.flags.writeable else values[tile].copy()
            self.encode_tile(part, out[self.payload_slice(tile)])

    def decode_checked_into(self, payload: Bytes, out: Float32) -> None:
        for tile in tiles(len(out)):
            self.decode_tile(payload[self.payload_slice(tile)], out[tile])

    def payload_slice(self, tile: slice) -> slice:
        """Where the encoding of the values in `tile` lies."""
        return slice(self.encoded_bytes(tile.start), self.encoded_bytes(tile.stop))

    def workspace(self, size: int) -> Workspace:
        """This thread's buffers for `size` blocks; what they hold is lost at the next call."""
        kept: dict[Any, Workspace] = self._threads.__dict__
        if size not in kept:
            if len(kept) >= _KEPT_WORKSPACES:
                kept.clear()
            kept[size] = self.new_workspace(size)
        return kept[size]

    def saturate(self, values: Float32) -> Float32:
        """A copy of `values` within ± largest_magnitude. Raises MalformedPayload when one is not finite."""
        require_finite(values)
        largest = np.float32(self.largest_magnitude)
        return np.clip(values, -largest, largest)

    def malformed(self, what: str) -> MalformedPayload:
        """The error for a payload that `check` refuses."""
        return MalformedPayload(None, f"{self.name}: {what}")
