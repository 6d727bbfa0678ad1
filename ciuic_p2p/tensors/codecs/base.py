"""The contract of every codec: float32 values to bytes and back, the same bytes and the same values on every machine."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Codec(ABC):
    """Stateless and safe to use from several threads at once; heavy loops release the GIL and work in tiles that fit L2."""

    name: str
    code: int
    """One byte on the wire; never given to another codec."""

    @abstractmethod
    def encoded_bytes(self, count: int) -> int:
        """Exact size, in bytes, of `count` encoded values."""

    @abstractmethod
    def encode_into(self, values: Float32, out: Bytes) -> None:
        """values: [count] float32, contiguous; out: [encoded_bytes(count)] uint8, contiguous.

        Raises MalformedPayload when a value is not finite (for codecs that cannot carry it).
        """

    @abstractmethod
    def decode_into(self, payload: Bytes, out: Float32) -> None:
        """payload: [encoded_bytes(count)] uint8; out: [count] float32, overwritten.

        Raises MalformedPayload when the size is wrong or a decoded value would not be finite; `out` is then undefined.
        """

    def encode(self, values: Float32) -> bytes:
        out = np.empty(self.encoded_bytes(len(values)), np.uint8)
        self.encode_into(values, out)
        return out.tobytes()

    def decode(self, payload: bytes | memoryview, count: int) -> Float32:
        out = np.empty(count, np.float32)
        self.decode_into(np.frombuffer(payload, np.uint8), out)
        return out
