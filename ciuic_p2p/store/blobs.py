"""Blobs of any size as shards: written from a stream, read by ranges, both in constant memory. Knows no disk and no peer.

Writing goes on where it was broken off without any record of it: the same content gives the same shards, and a store does
not write a shard that it has. That holds for packed ones as long as zstd stays the same version; what peers must cut into the
same shards independently of each other is written with packing "never".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Literal

import blake3

from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.store.cutting import Source, cut, rest_of
from ciuic_p2p.store.manifests import MOST_SHARDS, BlobManifest, ShardRef, ShardSlice
from ciuic_p2p.store.pipeline import in_order
from ciuic_p2p.store.shards import ShardStore
from ciuic_p2p.tensors.lossless import LEAST_GAIN, pack_known, sampled_gain, unpack
from ciuic_p2p.terms import LARGEST_SHARD_BYTES, BlobHash, ShardId

__all__ = [
    "PACKED_FROM_BYTES",
    "SHARD_BYTES",
    "BlobManifest",
    "GetShard",
    "Packing",
    "Progress",
    "Source",
    "open_shard",
    "read_blob",
    "write_blob",
]

SHARD_BYTES = 8 << 20
"""Default size of a shard's content: a thousand shards for 8 GB, and well over what one round trip costs on any line."""

PACKED_FROM_BYTES = 100_000_000
"""Smaller blobs are not worth the time of packing, unless it is asked for."""

Packing = Literal["auto", "always", "never"]
"""auto: where the blob is known to be that large. always: whatever its size. Both leave a shard whose sample gains less than
5 % as it is."""

GetShard = Callable[[ShardId], bytes | memoryview]
"""Like `ShardStore.get`: what it returns has been compared with the name. Is called from several threads."""

Progress = Callable[[int], None]
"""Is told how many bytes of the blob, from its beginning, are durable."""

_THREADS = 3
"""Enough to hash, pack and wait for the disk at the same time; each holds one shard, and while it packs four copies."""

_ITEM_BYTES = {
    None: 1,
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip


def write_blob(
    store: ShardStore,
    source: Source,
    *,
    dtype: str | None = None,
    packing: Packing = "auto",
    size_bytes: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> BlobManifest:
    """Cuts what `source` gives into shards and puts them; all are durable when the manifest is returned.

    dtype: of most of the content, without `torch.`; None when it is no tensor. size_bytes: of the whole content, where it is
    known and `source` is no file that could say it; only `packing` relies on it. A piece of an iterator may be overwritten
    as soon as the next one is asked for.

    Raises StoreFull and StoreUnusable; the shards put until then stay, so that a later call finds them, or their store
    collects them. Raises ValueError for an unknown dtype, an impossible shard_bytes, and over MOST_SHARDS shards.
    """
    item_bytes = _item_bytes(dtype)
    if not 0 < shard_bytes <= LARGEST_SHARD_BYTES:
        raise ValueError(f"shards of {shard_bytes} bytes")
    packed = _is_packed(packing, rest_of(source) if size_bytes is None else size_bytes)
    whole, refs, done_bytes = blake3.blake3(), [], 0
    pieces = _hashed(cut(source, shard_bytes), whole)
    with closing(in_order(partial(_put, store, item_bytes if packed else None), pieces, _THREADS)) as put:
        for ref in put:
            refs.append(ref)
            done_bytes += ref.size_bytes
            if progress is not None:
                progress(done_bytes)
    return BlobManifest(blob=BlobHash(whole.hexdigest()), size_bytes=done_bytes, shards=tuple(refs))


def read_blob(get: GetShard, manifest: BlobManifest, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
    """The content from `start` to before `stop`, a shard's worth at a time; at most a few shards are held in memory.

    stop: None for the end. Raises ValueError at once for a range that is not in the blob. While it is read, raises what `get`
    does, and MalformedPayload where shards are not what the manifest says; all that was given out before is right, except that
    a manifest whose hash of the whole is wrong is found out after the last byte, and only where all are read.
    """
    stop = manifest.size_bytes if stop is None else stop
    slices = list(manifest.slices(start, stop))
    pieces = map(partial(_content, get), slices) if len(slices) < 2 else in_order(partial(_content, get), slices, _THREADS)
    return pieces if (start, stop) != (0, manifest.size_bytes) else _compared(pieces, manifest)


def open_shard(ref: ShardRef, data: bytes | memoryview) -> bytes | memoryview:
    """The content in a shard's bytes. Unpacking sets aside no more memory than the manifest says. Raises MalformedPayload."""
    if len(data) != ref.stored_bytes:
        raise MalformedPayload(None, f"a shard of {len(data)} bytes, where its blob's manifest says {ref.stored_bytes}")
    if ref.packed:
        data = unpack(memoryview(data), ref.size_bytes)
    if len(data) != ref.size_bytes:
        raise MalformedPayload(None, f"a shard with {len(data)} bytes of its blob, where the manifest says {ref.size_bytes}")
    return data


def _item_bytes(dtype: str | None) -> int:
    if dtype not in _ITEM_BYTES:
        raise ValueError(f"unknown dtype {dtype!r}")
    return _ITEM_BYTES[dtype]


def _is_packed(packing: Packing, size_bytes: int | None) -> bool:
    if packing == "auto":
        return size_bytes is not None and size_bytes > PACKED_FROM_BYTES
    return packing == "always"


def _hashed(pieces: Iterable[memoryview], whole: blake3.blake3) -> Iterator[memoryview]:
    """The same pieces; `whole` has taken each by the time it is given out. Raises ValueError at one too many for a manifest."""
    for number, piece in enumerate(pieces):
        if number == MOST_SHARDS:
            raise ValueError(f"a blob of more than {MOST_SHARDS} shards; larger shards would do")
        whole.update(piece)
        yield piece


def _put(store: ShardStore, item_bytes: int | None, plain: memoryview) -> ShardRef:
    stored = None if item_bytes is None else _packed(plain, item_bytes)
    shard = store.put(plain if stored is None else stored)
    stored_bytes = len(plain if stored is None else stored)
    return ShardRef(shard=shard, size_bytes=len(plain), stored_bytes=stored_bytes, packed=stored is not None)


def _packed(plain: memoryview, item_bytes: int) -> bytes | None:
    """None where it is not worth it: a sample gains too little, or misled."""
    if sampled_gain(plain, item_bytes) < LEAST_GAIN:
        return None
    packed = pack_known(plain, item_bytes, gains=True)
    return packed if len(packed) < len(plain) else None


def _content(get: GetShard, wanted: ShardSlice) -> memoryview:
    """Raises what `get` does, and MalformedPayload."""
    return memoryview(open_shard(wanted.ref, get(wanted.ref.shard)))[wanted.start : wanted.stop]


def _compared(pieces: Iterable[memoryview], manifest: BlobManifest) -> Iterator[memoryview]:
    whole = blake3.blake3()
    for piece in pieces:
        whole.update(piece)
        yield piece
    if whole.hexdigest() != manifest.blob:
        raise MalformedPayload(None, "shards that are not the blob whose manifest names them")
