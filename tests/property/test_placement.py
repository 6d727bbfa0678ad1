"""Placement: the same on every peer, regions first, and little moves when peers come and go."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.placement import UNIT_BYTES, Holder, order_sources, place, settle_goodput, weight_level
from ciuic_p2p.terms import PeerId

FEW = settings(max_examples=100, deadline=None)
SHARD_BYTES = 8 << 20

regions = st.sampled_from(["us", "eu", "as", "sa"])
holders_of_any_kind = st.lists(st.tuples(regions, st.integers(0, 1 << 45), st.floats(0, 1e5)), min_size=1, max_size=14).map(
    lambda rows: tuple(
        Holder(peer=PeerId(f"p{i}"), region=region, free_bytes=free, goodput_mbps=goodput)
        for i, (region, free, goodput) in enumerate(rows)
    )
)
shards = st.text("0123456789abcdef", min_size=4, max_size=8)


def plain_holder(number: int, region: str = "eu", **changes) -> Holder:
    fields = {"peer": PeerId(f"p{number}"), "region": region, "free_bytes": 64 * UNIT_BYTES, "goodput_mbps": 100.0}
    return Holder(**(fields | changes))


def placed(holders, replicas, count=1000):
    return {f"{i:04x}": place(f"{i:04x}", holders, replicas, SHARD_BYTES) for i in range(count)}


@given(shards, holders_of_any_kind, st.integers(1, 6), st.randoms(use_true_random=False))
@FEW
def test_the_order_of_what_a_peer_knows_does_not_matter(shard, holders, replicas, rng):
    shuffled = list(holders)
    rng.shuffle(shuffled)
    assert place(shard, shuffled, replicas, SHARD_BYTES) == place(shard, holders, replicas, SHARD_BYTES)


@given(shards, holders_of_any_kind, st.integers(1, 6))
@FEW
def test_no_region_gets_another_copy_before_all_have_as_many(shard, holders, replicas):
    # given those with room
    able = [holder for holder in holders if holder.free_bytes >= SHARD_BYTES]
    of_region = Counter(holder.region for holder in able)

    # when a shard is placed
    chosen = place(shard, holders, replicas, SHARD_BYTES)

    # then as many hold it as can, and a region with fewer copies than another one less has no more peers
    region_of = {holder.peer: holder.region for holder in able}
    copies = Counter(region_of[peer] for peer in chosen)
    assert len(set(chosen)) == len(chosen) == min(replicas, len(able))
    most = max(copies.values(), default=0)
    assert all(copies[region] >= min(most - 1, of_region[region]) for region in of_region)


@given(shards, holders_of_any_kind, st.integers(1, 6), st.data())
@FEW
def test_a_leaving_peer_moves_its_shards_alone_to_one_new_holder_each(shard, holders, replicas, data):
    """By this, read backwards, one that comes takes one copy of the shards it gets, and moves no others."""
    leaving = data.draw(st.sampled_from(holders)).peer
    before = place(shard, holders, replicas, SHARD_BYTES)
    after = place(shard, [holder for holder in holders if holder.peer != leaving], replicas, SHARD_BYTES)
    if leaving not in before:
        assert after == before
    else:
        assert set(before) - {leaving} <= set(after)
        assert len(set(after) - set(before)) <= 1


@given(shards, holders_of_any_kind, st.integers(1, 6), st.data())
@FEW
def test_a_peer_that_gets_a_better_line_loses_nothing(shard, holders, replicas, data):
    chosen = data.draw(st.sampled_from(holders))
    better = dataclasses.replace(chosen, goodput_mbps=chosen.goodput_mbps * 16)
    after = place(shard, [better if holder is chosen else holder for holder in holders], replicas, SHARD_BYTES)
    before = place(shard, holders, replicas, SHARD_BYTES)
    assert set(after) - set(before) <= {chosen.peer}
    assert chosen.peer in after or chosen.peer not in before


@given(shards, holders_of_any_kind, st.integers(1, 6))
@FEW
def test_who_has_a_shard_needs_no_room_for_it(shard, holders, replicas):
    before = place(shard, holders, replicas, SHARD_BYTES)
    # when those that took it are full by that
    full = [
        dataclasses.replace(holder, free_bytes=0, shard_bytes=holder.free_bytes) if holder.peer in before else holder
        for holder in holders
    ]
    assert place(shard, full, replicas, SHARD_BYTES, holding=before) == before
    assert not set(place(shard, full, replicas, SHARD_BYTES)) & set(before)


def test_when_one_of_ten_leaves_its_copies_move_and_no_others():
    # given 1000 shards in three copies on ten peers of three regions
    holders = [plain_holder(i, "useuas"[i % 3 * 2 :][:2]) for i in range(10)]
    before = placed(holders, 3)

    # when any of them leaves
    for leaving in holders:
        after = placed([holder for holder in holders if holder is not leaving], 3)
        moved = {shard for shard in before if set(after[shard]) != set(before[shard])}
        assert moved == {shard for shard, chosen in before.items() if leaving.peer in chosen}
        # then what it held moves: a third or a quarter of the shards, as its region has three peers or four
        of_its_region = sum(holder.region == leaving.region for holder in holders)
        assert len(moved) == pytest.approx(1000 / of_its_region, rel=0.15)


def test_shards_are_shared_by_weight():
    # given a peer with 16 times the space of each of nine others, one region
    holders = [plain_holder(0, free_bytes=1024 * UNIT_BYTES), *(plain_holder(i) for i in range(1, 10))]
    held = Counter(peer for chosen in placed(holders, 1, 4000).values() for peer in chosen)

    # then it has four times as many: space and goodput count by their square roots
    assert weight_level(holders[0]) - weight_level(holders[1]) == 2
    assert held[PeerId("p0")] == pytest.approx(4000 * 4 / 13, rel=0.1)
    assert all(held[holder.peer] == pytest.approx(4000 / 13, rel=0.25) for holder in holders[1:])


def test_small_changes_and_taking_shards_move_nothing():
    holders = [plain_holder(i, "useuas"[i % 3 * 2 :][:2], free_bytes=100 * UNIT_BYTES) for i in range(10)]
    filled = [
        dataclasses.replace(holder, free_bytes=UNIT_BYTES, shard_bytes=99 * UNIT_BYTES, goodput_mbps=90.0 + i)
        for i, holder in enumerate(holders)
    ]
    assert placed(filled, 3) == placed(holders, 3)


def test_a_told_goodput_stays_until_it_is_far_off():
    assert settle_goodput(140.0, told_mbps=100.0) == 100.0
    assert settle_goodput(60.0, told_mbps=100.0) == 100.0
    assert settle_goodput(200.0, told_mbps=100.0) == 200.0
    assert settle_goodput(0.0, told_mbps=100.0) == 0.0
    assert settle_goodput(3.0, told_mbps=0.0) == 3.0


@pytest.mark.parametrize(
    "changes", [{"free_bytes": -1}, {"shard_bytes": -1}, {"goodput_mbps": -1.0}, {"goodput_mbps": float("nan")}]
)
def test_a_holder_that_cannot_be_fails_at_construction(changes):
    with pytest.raises(ValueError, match="p1"):
        plain_holder(1, **changes)


def test_less_than_one_replica_is_refused():
    with pytest.raises(ValueError, match="0 replicas"):
        place("aa", [plain_holder(1)], 0, 1)


def test_the_nearest_source_comes_first_and_the_unmeasured_late():
    # given one that is near, one near with a slow line, one across an ocean, one nobody measured, and one without goodput
    holders = [
        plain_holder(0),
        plain_holder(1, goodput_mbps=10.0),
        plain_holder(2),
        plain_holder(3),
        plain_holder(4, goodput_mbps=0),
    ]
    rtt_ms = {PeerId("p0"): 10.0, PeerId("p1"): 10.0, PeerId("p2"): 150.0, PeerId("p4"): 1.0}
    me = plain_holder(5)
    assert order_sources(me.peer, [*holders, me], rtt_ms) == ("p0", "p2", "p3", "p1", "p4")


def test_equal_sources_are_asked_in_another_order_by_each_reader():
    holders = [plain_holder(i) for i in range(6)]
    first = Counter(order_sources(PeerId(f"reader {i}"), holders, {})[0] for i in range(600))
    assert len(first) == 6
    assert max(first.values()) < 150
