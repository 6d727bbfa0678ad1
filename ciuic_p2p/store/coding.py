"""Parity for a blob whose shards are in a store, stripe by stripe, in the memory of one stripe. Knows no peer."""

from __future__ import annotations

from collections.abc import Callable

from ciuic_p2p.core.stripes import Stripe
from ciuic_p2p.store.blobs import SHARD_BYTES, BlobManifest
from ciuic_p2p.store.manifests import CodedManifest, ShardRef, data_groups, stripe_of
from ciuic_p2p.store.shards import ShardStore
from ciuic_p2p.tensors.erasure import Code, encode


def add_parity(store: ShardStore, manifest: BlobManifest, code: Code, done: Callable[[Stripe], None]) -> CodedManifest:
    """Puts the parity of its stripes; all of it is durable when this returns. done: told of each stripe that is.

    Raises ShardMissing when a shard is not in the store (any more), StoreFull, StoreUnusable.
    """
    parity: list[ShardRef] = []
    for group in data_groups(manifest.shards, code):
        made = [_put(store, shard) for shard in encode([store.get(ref.shard) for ref in group], code)]
        parity += made
        done(stripe_of(code, group, made))
    return CodedManifest(
        blob=manifest.blob,
        size_bytes=manifest.size_bytes,
        shards=manifest.shards,
        k=code.k,
        m=code.m,
        parity=tuple(parity),
    )


def coded_shard_bytes(size_bytes: int, code: Code, largest_bytes: int = SHARD_BYTES) -> int:
    """So that all stripes are about equally full: one that is not has as much parity as one that is."""
    stripes = max(-(-size_bytes // (code.k * largest_bytes)), 1)
    return max(-(-size_bytes // (code.k * stripes)), 1)


def _put(store: ShardStore, shard: bytearray) -> ShardRef:
    name = store.put(memoryview(shard))
    return ShardRef(shard=name, size_bytes=len(shard), stored_bytes=len(shard), packed=False)
