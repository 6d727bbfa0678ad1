"""The contract of every codec: float32 values to bytes and back, the same bytes and the same values on every machine."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from ciuic_p2p.errors import MalformedPayload

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Codec(ABC):
    """Stateless and safe to use from several threads at once; heavy loops release the GIL and work in tiles that fit L2.

    An encoding is its blocks one after the other, so for any `start` that is a multiple of `block_values` the bytes from
    `encoded_bytes(start)` on are the encoding of the values from `start` on. Who walks a tensor tile by tile relies on that.

    Decoding is exact arithmetic (at most one float32 multiplication a value): the same payload gives the same bits everywhere.
    """

    name: str
    code: int
    """One byte on the wire; never given to another codec."""
    block_values: int
    """Values that are encoded together; TILE_VALUES is a multiple of it."""
    largest_magnitude: float
    """Finite values beyond it are encoded as if they were ± this."""
    item_bytes: int = 1
    """By which an encoding's bytes lie in planes for lossless packing."""
    is_plain: bool = False
    """An encoding is the values' own little-endian bytes."""
    has_kernels: bool = False
    """Where the compiled loops are ready, a whole part takes one turn at the interpreter's lock (kernels.py)."""
    wants_feedback: bool = False
    """Loses so much of every value that a sender must keep the rest for its next contribution (feedback.py)."""

    @abstractmethod
    def encoded_bytes(self, count: int) -> int:
        """Exact size, in bytes, of `count` encoded values."""

    @abstractmethod
    def encode_into(self, values: Float32, out: Bytes) -> None:
        """values: [count] float32, contiguous; out: [encoded_bytes(count)] uint8, contiguous.

        Raises MalformedPayload when a value is not finite; `out` is then undefined.
        """

    @abstractmethod
    def check(self, payload: Bytes, count: int) -> None:
        """Raises MalformedPayload when the size is wrong or a decoded value would not be finite."""

    @abstractmethod
    def decode_checked_into(self, payload: Bytes, out: Float32) -> None:
        """What decode_into does after its check: for payloads, or whole blocks of one, that `check` has let pass."""

    def add_checked(self, payload: Bytes, weight: int, total: Float32, *, is_first: bool) -> bool:
        """total += weight × what `decode_checked_into` gives, or = where it is the first, in one pass; total: [count] float32.

        False, and nothing was done, where no loop for it is compiled.
        """
        return False

    def decode_into(self, payload: Bytes, out: Float32) -> None:
        """payload: [encoded_bytes(count)] uint8; out: [count] float32, contiguous, overwritten.

        Raises MalformedPayload when the size is wrong or a decoded value would not be finite; `out` is then untouched.
        """
        self.check(payload, len(out))
        self.decode_checked_into(payload, out)

    def encode(self, values: Float32) -> bytes:
        """values: [count] float32, contiguous. Raises MalformedPayload when a value is not finite."""
        out = np.empty(self.encoded_bytes(len(values)), np.uint8)
        self.encode_into(values, out)
        return out.tobytes()

    def decode(self, payload: bytes | memoryview, count: int) -> Float32:
        """[count] float32. Raises MalformedPayload like `check`, before memory for `count` values is set aside."""
        received = np.frombuffer(payload, np.uint8)
        self.check(received, count)
        out = np.empty(count, np.float32)
        self.decode_checked_into(received, out)
        return out

    def require_size(self, payload: Bytes, count: int) -> None:
        """Raises MalformedPayload when `payload` is not exactly as long as `count` encoded values."""
        expected = self.encoded_bytes(count)
        if len(payload) != expected:
            raise MalformedPayload(None, f"{len(payload)} bytes of {self.name} where {count} values take {expected}")
