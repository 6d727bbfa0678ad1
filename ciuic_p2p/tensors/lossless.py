"""Lossless packing of tensor bytes for the store and slow lines: the bytes of each item split into planes, then zstd level 3.

Used where a sample gains at least 5 %: bfloat16 weights shrink to 0.7, float32 ones to 0.85, encrypted bytes not. A
packed blob begins with 10 bytes: how it is packed, the item size, and the original length. Knows neither shards nor
files.
"""

from __future__ import annotations

import struct

import numpy as np
import zstandard

from ciuic_p2p.errors import MalformedPayload

LEVEL = 3
LEAST_GAIN = 0.05
LARGEST_ITEM_BYTES = 16

_AS_IT_IS = 0
_SHUFFLED_ZSTD = 1
_HEAD = struct.Struct("<BBQ")
_SAMPLE_BYTES = 64 << 10
_SAMPLES = 4


def pack(data: bytes | memoryview, item_bytes: int) -> bytes:
    """`data` packed, or copied behind the same head where a sample of it gains too little.

    item_bytes: size of one value, 1 to 16, by which bytes are split into planes; a tail that is no whole item is kept
    at the end.
    """
    _require_item(item_bytes)
    view = memoryview(data).cast("B")
    return pack_known(view, item_bytes, gains=sampled_gain(view, item_bytes) >= LEAST_GAIN)


def pack_known(data: bytes | memoryview, item_bytes: int, *, gains: bool) -> bytes:
    """The same without a sample: `gains` says what one of data of this kind did."""
    _require_item(item_bytes)
    view = memoryview(data).cast("B")
    if gains:
        return _HEAD.pack(_SHUFFLED_ZSTD, item_bytes, len(view)) + _compress(_split_planes(view, item_bytes))
    return _HEAD.pack(_AS_IT_IS, item_bytes, len(view)) + bytes(view)


def _require_item(item_bytes: int) -> None:
    if not 1 <= item_bytes <= LARGEST_ITEM_BYTES:
        raise ValueError(f"items of {item_bytes} bytes")


def unpack(packed: bytes | memoryview, largest_bytes: int) -> bytes:
    """The bytes that were packed.

    Raises MalformedPayload for what `pack` did not write, and, before any memory is set aside, for more than largest_bytes.
    """
    view = memoryview(packed).cast("B")
    if len(view) < _HEAD.size:
        raise MalformedPayload(None, f"a packed blob of {len(view)} bytes, shorter than its head")
    method, item_bytes, size = _HEAD.unpack_from(view)
    body = view[_HEAD.size :]
    if size > largest_bytes:
        raise MalformedPayload(None, f"a packed blob that announces {size} bytes, at most {largest_bytes} are taken")
    if not 1 <= item_bytes <= LARGEST_ITEM_BYTES:
        raise MalformedPayload(None, f"a packed blob with items of {item_bytes} bytes")
    if method == _AS_IT_IS and len(body) == size:
        return bytes(body)
    if method == _SHUFFLED_ZSTD:
        return _join_planes(_decompress(body, size), item_bytes)
    raise MalformedPayload(None, "a packed blob of an unknown kind or of the wrong length")


def sampled_gain(data: bytes | memoryview, item_bytes: int) -> float:
    """The part of its size, below 1, that packing four spread-out samples (all of it, when small) saves; negative
    when they grow."""
    view = memoryview(data).cast("B")
    if len(view) == 0:
        return 0.0
    sample = _take_samples(view, item_bytes)
    return 1.0 - len(_compress(_split_planes(sample, item_bytes))) / len(sample)


def _take_samples(view: memoryview, item_bytes: int) -> memoryview:
    if len(view) <= _SAMPLES * _SAMPLE_BYTES:
        return view
    size = _SAMPLE_BYTES // item_bytes * item_bytes
    stride = (len(view) - size) // (_SAMPLES - 1) // item_bytes * item_bytes
    return memoryview(b"".join(view[start : start + size] for start in range(0, stride * _SAMPLES, stride)))


def _split_planes(view: memoryview, item_bytes: int) -> bytes:
    """All first bytes, then all second bytes, …, then the tail: exponents beside exponents compress."""
    raw = np.frombuffer(view, np.uint8)
    items = len(raw) // item_bytes
    if item_bytes == 1:
        return raw.tobytes()
    planes = np.empty(len(raw), np.uint8)
    planes[: items * item_bytes].reshape(item_bytes, items)[:] = raw[: items * item_bytes].reshape(items, item_bytes).T
    planes[items * item_bytes :] = raw[items * item_bytes :]
    return planes.tobytes()


def _join_planes(data: bytes, item_bytes: int) -> bytes:
    planes = np.frombuffer(data, np.uint8)
    items = len(planes) // item_bytes
    raw = np.empty(len(planes), np.uint8)
    raw[: items * item_bytes].reshape(items, item_bytes)[:] = planes[: items * item_bytes].reshape(item_bytes, items).T
    raw[items * item_bytes :] = planes[items * item_bytes :]
    return raw.tobytes()


def _compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(data)


def _decompress(body: memoryview, size: int) -> bytes:
    """Raises MalformedPayload unless `body` is one zstd frame that itself announces `size` bytes and holds them."""
    try:
        # zstandard sets aside what the frame announces, so that must be compared first.
        if zstandard.get_frame_parameters(body).content_size != size:
            raise MalformedPayload(None, "a packed blob whose zstd frame announces another size than its head")
        data = zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedPayload(None, f"a packed blob that zstd refuses: {error}") from error
    if len(data) != size:
        raise MalformedPayload(None, f"a packed blob of {len(data)} bytes that announces {size}")
    return data
