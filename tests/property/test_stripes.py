"""Stripes: each shard on a peer of its own, nothing moves without need, and what is lost is rebuilt until all are there."""

from __future__ import annotations

from itertools import combinations

from hypothesis import assume, given
from hypothesis import strategies as st

from ciuic_p2p.core.placement import Holder
from ciuic_p2p.core.repairs import Census
from ciuic_p2p.core.stripes import (
    FetchShard,
    Stripe,
    assign,
    can_be_read,
    plan_stripes,
    spare_peers,
    spare_shards,
    surplus_of,
)
from ciuic_p2p.terms import PeerId, ShardId

ROOM = 1 << 40
Held = dict[ShardId, set[PeerId]]


def stripe_of(k: int, m: int, seed: int = 0) -> Stripe:
    names = [ShardId(f"{seed:08x}{number:056x}") for number in range(k + m)]
    return Stripe(k=k, data=tuple(names[:k]), parity=tuple(names[k:]), sizes=(1000,) * (k + m))


def peers(count: int, regions: int = 3) -> list[Holder]:
    return [
        Holder(peer=PeerId(f"peer{number}"), region=f"r{number % regions}", free_bytes=ROOM, goodput_mbps=100.0)
        for number in range(count)
    ]


def put_by(putter: PeerId, stripe: Stripe, holders: list[Holder]) -> Held:
    """As a put leaves it: who put it has all, the others what is theirs."""
    held: Held = {shard: {putter} for shard in stripe.shards}
    for shard, peer in zip(stripe.shards, assign(stripe, holders, held), strict=True):
        held[shard].add(peer)
    return held


shapes = st.tuples(st.integers(2, 6), st.integers(1, 4), st.integers(0, 1000))


@given(shapes, st.integers(1, 14), st.integers(0, 13))
def test_no_peer_has_more_than_its_share_of_a_stripe(shape: tuple[int, int, int], count: int, putter: int) -> None:
    stripe, holders = stripe_of(*shape), peers(count)
    found = assign(stripe, holders, {})
    assert len(found) == len(stripe.shards)
    most = -(-len(stripe.shards) // count)
    assert all(found.count(peer) <= most for peer in found)
    held = put_by(holders[putter % count].peer, stripe, holders)
    assert all(assign(stripe, holders, held).count(peer) <= most for peer in found)


@given(shapes, st.integers(3, 6))
def test_regions_come_first(shape: tuple[int, int, int], regions: int) -> None:
    stripe, holders = stripe_of(*shape), peers(12, regions)
    region = {holder.peer: holder.region for holder in holders}
    counts = [[region[peer] for peer in assign(stripe, holders, {})].count(f"r{number}") for number in range(regions)]
    assert max(counts) - min(counts) <= 1 or len(stripe.shards) > 12


@given(shapes, st.integers(1, 14), st.integers(0, 13))
def test_after_a_put_nothing_moves_and_who_put_it_lets_go_of_the_rest(
    shape: tuple[int, int, int], count: int, putter: int
) -> None:
    stripe, holders = stripe_of(*shape), peers(count)
    me = holders[putter % count].peer
    held = put_by(me, stripe, holders)
    census = Census(holders, {}, now=0.0)
    assert plan_stripes([stripe], held, census) == ()
    for shard in surplus_of(me, stripe, held, census):
        held[shard].remove(me)
    assert plan_stripes([stripe], held, census) == ()
    assert spare_shards(stripe, held, census) == len(stripe.parity)
    wanted = dict(zip(stripe.shards, assign(stripe, holders, held), strict=True))
    assert all(held[shard] == {peer} for shard, peer in wanted.items())


@given(shapes, st.integers(2, 14), st.sets(st.integers(0, 13), max_size=4))
def test_what_the_gone_held_is_rebuilt_and_nothing_else_is_touched(
    shape: tuple[int, int, int], count: int, gone: set[int]
) -> None:
    # given a stripe after its put, without the surplus
    stripe, holders = stripe_of(*shape), peers(count)
    targets = dict(zip(stripe.shards, assign(stripe, holders, {}), strict=True))
    held: Held = {shard: {peer} for shard, peer in targets.items()}
    lost_peers = {holders[number % count].peer for number in gone}
    staying = [holder for holder in holders if holder.peer not in lost_peers]
    lost = {shard for shard, peer in targets.items() if peer in lost_peers}
    assume(staying and len(lost) <= len(stripe.parity))

    # when some are gone for good, then exactly what they held is made anew, by those who are left
    census = Census(staying, {}, now=0.0)
    assert can_be_read(stripe, held, census.alive)
    plan = plan_stripes([stripe], held, census)
    rebuilt = [each for each in plan if not isinstance(each, FetchShard)]
    assert {each.shard for each in rebuilt} == lost
    if count - len(lost_peers) >= len(stripe.shards):
        assert len(plan) == len(rebuilt)
    for each in plan:
        held[each.shard].add(each.target)
    assert spare_shards(stripe, held, census) == len(stripe.parity)


@given(shapes, st.integers(0, 9))
def test_who_is_silent_for_a_moment_costs_nothing(shape: tuple[int, int, int], silent: int) -> None:
    stripe, holders = stripe_of(*shape), peers(10)
    held: Held = {shard: {peer} for shard, peer in zip(stripe.shards, assign(stripe, holders, {}), strict=True)}
    census = Census(holders, {holders[silent].peer: 0.0}, now=10.0, gone_after_s=600.0)
    assert plan_stripes([stripe], held, census) == ()


def test_what_too_few_have_is_not_rebuilt() -> None:
    stripe, holders = stripe_of(3, 2), peers(5)
    held: Held = {shard: set[PeerId]() for shard in stripe.shards}
    for shard in stripe.shards[:2]:
        held[shard] = {holders[0].peer}
    census = Census(holders, {}, now=0.0)
    assert not [each for each in plan_stripes([stripe], held, census) if not isinstance(each, FetchShard)]
    assert spare_shards(stripe, held, census) == -1


@given(shapes, st.data())
def test_as_many_peers_as_it_says_may_be_lost(shape: tuple[int, int, int], data: st.DataObject) -> None:
    stripe, everyone = stripe_of(*shape), [holder.peer for holder in peers(6)]
    held = {shard: data.draw(st.sets(st.sampled_from(everyone), max_size=3)) for shard in stripe.shards}
    spare = spare_peers(stripe, held, everyone)
    assert (spare < 0) == (not can_be_read(stripe, held, everyone))
    for lost in combinations(everyone, max(spare, 0)):
        assert spare < 0 or can_be_read(stripe, held, set(everyone) - set(lost))


def test_each_on_a_peer_of_its_own_it_can_lose_as_many_as_it_has_parity() -> None:
    stripe, everyone = stripe_of(3, 2), peers(5)
    held: Held = {shard: {holder.peer} for shard, holder in zip(stripe.shards, everyone, strict=True)}
    assert spare_peers(stripe, held, [holder.peer for holder in everyone]) == 2
    on_two: Held = {shard: {everyone[place % 2].peer} for place, shard in enumerate(stripe.shards)}
    assert spare_peers(stripe, on_two, [holder.peer for holder in everyone]) == 0
