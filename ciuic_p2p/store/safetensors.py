"""The safetensors layout: eight bytes that give the length of a JSON header, the header, the tensors one after the other.

https://github.com/huggingface/safetensors#format. Knows no torch; every tensor is little-endian float32.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ciuic_p2p.errors import MalformedPayload

_LENGTH = struct.Struct("<Q")
LARGEST_HEADER_BYTES = 100_000_000
"""As the format has it."""
_VALUE_BYTES = 4
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one lies among the values, counted in float32 from the end of the header."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def make_header(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> bytes:
    """The same bytes for the same arguments; padded, so that the values that follow are aligned."""
    entries: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    for tensor in tensors:
        start = _VALUE_BYTES * tensor.start
        offsets = [start, start + _VALUE_BYTES * tensor.count]
        entries[tensor.name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return _LENGTH.pack(len(text)) + text


def header_bytes(beginning: bytes) -> int:
    """Of a file whose first eight bytes these are, those eight included. Raises MalformedPayload."""
    if len(beginning) < _LENGTH.size:
        raise MalformedPayload(None, "a file of tensors that ends before its header")
    length: int = _LENGTH.unpack(beginning[: _LENGTH.size])[0]
    if length > LARGEST_HEADER_BYTES:
        raise MalformedPayload(None, f"a header of {length} bytes")
    return _LENGTH.size + length
