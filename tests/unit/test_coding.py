"""Blobs with parity: any k shards of each stripe give the content, whatever its size; a lying shard is refused by its name."""

from __future__ import annotations

import random
from dataclasses import replace

import msgpack
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ciuic_p2p.core.stripes import Stripe
from ciuic_p2p.daemon.rebuilding import _make
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.store.blobs import BlobManifest, write_blob
from ciuic_p2p.store.coding import add_parity, coded_shard_bytes
from ciuic_p2p.store.manifests import CodedManifest
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.tensors.erasure import Code

CODE = Code(k=3, m=2)


def coded(content: bytes, code: Code = CODE, largest_bytes: int = 1000) -> tuple[MemoryStore, CodedManifest, list[Stripe]]:
    store, stripes = MemoryStore(), list[Stripe]()
    plain = write_blob(store, [content], shard_bytes=coded_shard_bytes(len(content), code, largest_bytes))
    return store, add_parity(store, plain, code, stripes.append), stripes


@given(st.integers(1, 20_000), st.integers(2, 5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_any_k_shards_of_each_stripe_give_the_rest(size_bytes: int, k: int, m: int, chance: random.Random) -> None:
    store, manifest, stripes = coded(chance.randbytes(size_bytes), Code(k=k, m=m))
    assert manifest.stripes() == stripes
    for stripe in stripes:
        assume(len(set(stripe.shards)) == len(stripe.shards))  # zeros alone have zeros for parity: copies, then
        lost = chance.sample(stripe.shards, m)
        present = {shard: store.get(shard) for shard in stripe.shards if shard not in lost}
        assert _make(stripe, lost, present) == {shard: store.get(shard) for shard in lost}


def test_equal_shards_are_in_no_stripe_twice() -> None:
    _, manifest, _ = coded(bytes(9000))
    assert len(manifest.shards) == 9
    assert all(len(set(stripe.data)) == len(stripe.data) for stripe in manifest.stripes())


def test_parity_that_is_none_gives_nothing() -> None:
    """What an author that lies about its parity would have others make of it."""
    store, _, stripes = coded(random.Random(1).randbytes(3000))
    stripe = stripes[0]
    other = store.put(b"\1" * stripe.width)
    lying = replace(stripe, parity=(other, stripe.parity[1]))
    present = {shard: store.get(shard) for shard in (*lying.data[:2], other)}
    assert _make(lying, [lying.data[2]], present) == {}


def test_a_manifest_comes_back_as_what_it_was() -> None:
    _, manifest, _ = coded(random.Random(2).randbytes(8000))
    assert BlobManifest.decode(manifest.encode()) == manifest
    assert len(manifest.kept) == len(manifest.shards) + len(manifest.parity)
    _, empty, stripes = coded(b"")
    assert (BlobManifest.decode(empty.encode()), stripes) == (empty, [])


@pytest.mark.parametrize(
    "change",
    [
        {"k": 1}, {"k": 40}, {"m": 0}, {"m": 3}, {"parity": ()},
    ],
    ids=str,
)  # fmt: skip
def test_parity_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    _, manifest, _ = coded(random.Random(3).randbytes(8000))
    fields = dict(zip(("blob", "size_bytes", "shards", "k", "m", "parity"), manifest.to_wire(), strict=True)) | change
    with pytest.raises(MalformedMessage):
        BlobManifest.decode(msgpack.packb([2, list(fields.values())]))


def test_stripes_are_full_and_shards_no_longer_than_they_may_be() -> None:
    for size_bytes in (1, 2, 2999, 3000, 3001, 100_000):
        shard_bytes = coded_shard_bytes(size_bytes, CODE, 1000)
        assert 0 < shard_bytes <= 1000
        shards = -(-size_bytes // shard_bytes)
        assert size_bytes < 3 or shards > (-(-shards // 3) - 1) * 3 + 1
