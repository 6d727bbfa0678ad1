"""Tensors of any dtype in the safetensors layout: where each lies in a file, and the bytes of each. Never pickles.

https://github.com/huggingface/safetensors#format. torch is imported only where tensors are touched.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ciuic_p2p.errors import LocalError

if TYPE_CHECKING:
    import torch

ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
"""Of one value, by what the layout calls its dtype."""
_TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}
LENGTH = struct.Struct("<Q")
"""Of the header, which begins the file."""
_ALIGNMENT = 64
"""Of the values in the file: a multiple of every item's size."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor, or a chunk of one, that is to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Plan:
    """A file before its values are there."""

    header: bytes
    order: tuple[int, ...]
    """In which the entries follow each other, without gaps."""
    starts: tuple[int, ...]
    """Of each entry's bytes, counted from the beginning of the file."""
    size_bytes: int


def lay_out(entries: Sequence[Entry], metadata: Mapping[str, str] | None = None) -> Plan:
    """The largest items come first, so that each entry is aligned. Names that are there already get a number."""
    order = tuple(sorted(range(len(entries)), key=lambda i: -ITEM_BYTES[entries[i].dtype]))
    fields: dict[str, Any] = {"__metadata__": dict(metadata or {})}
    offsets, end = [0] * len(entries), 0
    for i in order:
        entry = entries[i]
        offsets[i], end = end, end + entry.size_bytes
        found = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [offsets[i], end]}
        fields[entry.name if entry.name not in fields else f"{entry.name}#{i}"] = found
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH.size + len(text)) % _ALIGNMENT)
    header = LENGTH.pack(len(text)) + text
    return Plan(header, order, tuple(len(header) + offset for offset in offsets), len(header) + end)


def dtype_name(dtype: torch.dtype) -> str | None:
    """None for one that the layout does not have."""
    name = str(dtype).removeprefix("torch.")
    return next((found for found, torch_name in _TORCH_NAMES.items() if torch_name == name), None)


def dtype_named(name: str) -> torch.dtype:
    """Raises LocalError when this version of torch does not have it."""
    import torch

    found = getattr(torch, _TORCH_NAMES[name], None)
    if found is None:
        raise LocalError(f"this version of torch has no dtype {_TORCH_NAMES[name]}", "use a newer one")
    return found


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Of whatever device and strides, row by row, little-endian as the machines are that torch runs on. A copy or a view."""
    import torch

    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def tensor_from(data: Any, start: int, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """data: a uint8 array of numpy, which the tensor then shares."""
    import torch

    size_bytes = math.prod(shape) * ITEM_BYTES[dtype]
    return torch.from_numpy(data[start : start + size_bytes]).view(dtype_named(dtype)).reshape(shape)


def read_header(data: Any) -> tuple[dict[str, tuple[Entry, int]], dict[str, str]]:
    """data: a uint8 array of numpy, the whole file. The entries with where their bytes start, and the metadata.

    Raises ValueError when it is no such file.
    """
    length = LENGTH.unpack(data[: LENGTH.size].tobytes())[0] if len(data) >= LENGTH.size else len(data)
    begin = LENGTH.size + length
    if begin > len(data):
        raise ValueError("the file ends before its header does")
    fields = json.loads(data[LENGTH.size : begin].tobytes())
    metadata = fields.pop("__metadata__", {})
    entries = {}
    for name, found in fields.items():
        entry = Entry(name, found["dtype"], tuple(found["shape"]))
        start, stop = (begin + offset for offset in found["data_offsets"])
        if entry.dtype not in ITEM_BYTES or stop - start != entry.size_bytes or not begin <= start <= stop <= len(data):
            raise ValueError(f"tensor {name!r} is not where the header says")
        entries[name] = (entry, start)
    return entries, metadata
