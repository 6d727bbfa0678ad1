"""Repairs of shards: the same plan on every peer, never a copy too few, and quiet once all is where it belongs."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.placement import UNIT_BYTES, Holder, place
from ciuic_p2p.core.repairs import Census, Copy, Drop, HeldShard, lost_shards, plan_drops, plan_repairs
from ciuic_p2p.terms import PeerId

FEW = settings(max_examples=60, deadline=None)
SHARD_BYTES = 8 << 20
REGIONS = ("us", "eu", "as")


def some_holders(count: int, free_bytes: int = 64 * UNIT_BYTES) -> list[Holder]:
    return [
        Holder(peer=PeerId(f"p{i}"), region=REGIONS[i % 3], free_bytes=free_bytes, goodput_mbps=100.0) for i in range(count)
    ]


def placed(holders, count: int, replicas: int = 3) -> dict[str, set[PeerId]]:
    return {f"{i:04x}": set(place(f"{i:04x}", holders, replicas, SHARD_BYTES)) for i in range(count)}


def told(held: dict[str, set[PeerId]]) -> list[HeldShard]:
    return [HeldShard(shard=shard, size_bytes=SHARD_BYTES, holders=frozenset(peers)) for shard, peers in held.items()]


def carry_out(held: dict[str, set[PeerId]], copies: tuple[Copy, ...], drops: tuple[Drop, ...] = ()) -> None:
    for copy in copies:
        assert copy.source in held[copy.shard]
        held[copy.shard].add(copy.target)
    for drop in drops:
        held[drop.shard].remove(drop.holder)


def filled(holders, held) -> list[Holder]:
    """What the holders say after that."""
    taken = Counter(peer for peers in held.values() for peer in peers)
    return [
        dataclasses.replace(
            holder,
            free_bytes=holder.free_bytes + holder.shard_bytes - taken[holder.peer] * SHARD_BYTES,
            shard_bytes=taken[holder.peer] * SHARD_BYTES,
        )
        for holder in holders
    ]


def test_what_is_where_it_belongs_stays():
    holders = some_holders(6)
    shards = told(placed(holders, 200))
    census = Census(holders, {}, now=0.0)
    assert plan_repairs(shards, census, 3) == plan_drops(shards, census, 3) == ()


def test_any_two_of_six_lost_with_their_disks_cost_nothing_and_one_plan_restores_three_copies():
    holders = some_holders(6)
    for lost in itertools.combinations([holder.peer for holder in holders], 2):
        held = placed(holders, 60)
        census = Census(holders, dict.fromkeys(lost, 0.0), now=1000.0)
        assert lost_shards(told(held), census) == ()
        carry_out(held, plan_repairs(told(held), census, 3))
        assert all(len(peers - set(lost)) == 3 for peers in held.values())


def test_a_holder_counts_until_it_is_gone_and_is_asked_for_nothing():
    # given a peer that fell silent
    holders = some_holders(6)
    held = told(placed(holders, 100))
    silent = {PeerId("p2"): 100.0}

    # then nothing is done before its time is over
    assert plan_repairs(held, Census(holders, silent, now=699.9), 3) == ()
    copies = plan_repairs(held, Census(holders, silent, now=700.0), 3)

    # and then each of its shards gets one copy, from and to others
    assert sorted(copy.shard for copy in copies) == sorted(shard.shard for shard in held if PeerId("p2") in shard.holders)
    assert all(PeerId("p2") not in (copy.source, copy.target) for copy in copies)


def test_the_rarest_come_first_and_sources_share_the_work():
    holders = some_holders(9)
    held = {"rare": {PeerId("p0")}} | {f"{i:02x}": {PeerId("p0"), PeerId("p1")} for i in range(60)}
    copies = plan_repairs(told(held), Census(holders, {}, 0.0), 3)
    assert [copy.shard for copy in copies[:2]] == ["rare", "rare"]
    sent = Counter(copy.source for copy in copies)
    assert sent[PeerId("p0")] == pytest.approx(31, abs=8)


def test_what_nobody_holds_is_named_with_who_should_return():
    holders = some_holders(3)
    held = {"aa": {PeerId("p0"), PeerId("p8")}, "bb": {PeerId("p1")}}
    census = Census(holders, {PeerId("p0"): 0.0}, now=1.0)
    assert [(lost.shard, lost.holders) for lost in lost_shards(told(held), census)] == [("aa", {"p0", "p8"})]
    assert all(copy.shard == "bb" for copy in plan_repairs(told(held), census, 3))


def test_no_more_is_moved_in_one_plan_than_the_bound_and_repairs_are_not_bounded_by_it():
    # given a peer that comes to five others, and one that goes for good
    holders = some_holders(7)
    held = placed(holders[:6], 300)
    census = Census(holders, {PeerId("p5"): 0.0}, now=1e6)
    copies = plan_repairs(told(held), census, 3, most_moved_bytes=5 * SHARD_BYTES)

    # then what lost a copy is repaired whole, and to each target at most five others are moved
    short = {shard for shard, peers in held.items() if PeerId("p5") in peers}
    assert {copy.shard for copy in copies} >= short
    moved = Counter(copy.target for copy in copies if copy.shard not in short)
    assert moved == {PeerId("p6"): 5}


def test_a_surplus_copy_is_kept_while_one_that_should_hold_it_is_silent():
    holders = some_holders(6)
    held = placed(holders, 1)
    (wanted,) = held.values()
    surplus = next(holder.peer for holder in holders if holder.peer not in wanted)
    shards = told({"0000": wanted | {surplus}})
    assert plan_drops(shards, Census(holders, {}, 0.0), 3) == (Drop(shard="0000", holder=surplus),)
    assert plan_drops(shards, Census(holders, {min(wanted): 0.0}, 1.0), 3) == ()
    assert plan_drops(told({"0000": {*list(wanted)[:2], surplus}}), Census(holders, {}, 0.0), 3) == ()
    # and where there are fewer peers than copies to be made
    few = [holder for holder in holders if holder.peer in list(wanted)[:2]]
    assert plan_drops(told({"0000": wanted}), Census(few, {}, 0.0), 3) == ()


def test_targets_are_not_given_more_than_they_have_room_for():
    # given room for 20 shards on each of six peers, and 60 shards on one that needs two copies more each
    holders = some_holders(6, free_bytes=20 * SHARD_BYTES)
    held = {f"{i:02x}": {PeerId("p0")} for i in range(60)}
    copies = plan_repairs(told(held), Census(holders, {}, 0.0), 3)
    coming = Counter(copy.target for copy in copies)
    assert set(coming) == {f"p{i}" for i in range(1, 6)}
    assert all(count == 20 for count in coming.values())


@given(st.integers(0, 1 << 32), st.randoms(use_true_random=False))
@FEW
def test_every_peer_makes_the_same_plan_of_the_same_facts(seed, rng):
    holders, shards, silent = any_facts(random.Random(seed))
    shuffled_holders, shuffled_shards = list(holders), list(shards)
    rng.shuffle(shuffled_holders)
    rng.shuffle(shuffled_shards)
    mine, theirs = Census(holders, silent, 1e3), Census(shuffled_holders, silent, 1e3)
    copies = plan_repairs(shards, mine, 3)
    assert copies == plan_repairs(shuffled_shards, theirs, 3)
    assert plan_drops(shards, mine, 3) == plan_drops(shuffled_shards, theirs, 3)
    # and nobody is to fetch what it has, or the same twice
    assert len({(copy.shard, copy.target) for copy in copies}) == len(copies)
    holders_of = {held.shard: held.holders for held in shards}
    assert all(copy.target in mine.alive - holders_of[copy.shard] for copy in copies)
    assert all(copy.source in mine.alive & holders_of[copy.shard] for copy in copies)


def any_facts(rng: random.Random):
    holders = [
        Holder(
            peer=PeerId(f"p{i}"),
            region=rng.choice(REGIONS),
            free_bytes=rng.choice([0, 3 * SHARD_BYTES, 1 << 34, 1 << 40]),
            goodput_mbps=rng.choice([0.0, 5.0, 100.0, 1000.0]),
        )
        for i in range(rng.randint(1, 10))
    ]
    peers = [holder.peer for holder in holders] + [PeerId("forgotten")]
    held = {f"{i:02x}": set(rng.sample(peers, rng.randint(0, min(6, len(peers))))) for i in range(30)}
    silent = {peer: rng.choice([0.0, 900.0]) for peer in peers if rng.random() < 0.2}
    return holders, told(held), silent


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_and_goes_no_drop_costs_a_copy_and_it_comes_to_rest(seed):
    # given peers that come, fall silent, come back, and go for good, two at most between plans
    rng = random.Random(seed)
    holders = some_holders(8, free_bytes=rng.choice([1 << 30, 1 << 34]))
    held = placed(holders, 40)
    silent: dict[PeerId, float] = {}
    for period in range(12):
        now = 700.0 * period
        if len(holders) - len(silent) > 5:
            silent[rng.choice([h.peer for h in holders if h.peer not in silent])] = now - rng.choice([0.0, 650.0])
        if silent and rng.random() < 0.4:
            silent.pop(rng.choice(sorted(silent)))
        if rng.random() < 0.3:
            holders = [
                *holders,
                dataclasses.replace(holders[0], peer=PeerId(f"new{period}"), shard_bytes=0, free_bytes=1 << 34),
            ]
        holders = filled(holders, held)
        census = Census(holders, silent, now)
        drops = plan_drops(told(held), census, 3)
        dropped = defaultdict(set)
        for drop in drops:
            dropped[drop.shard].add(drop.holder)
        assert all(len(held[shard] & census.alive - gone) >= 3 for shard, gone in dropped.items())
        carry_out(held, plan_repairs(told(held), census, 3), drops)
        assert lost_shards(told(held), census) == ()

    # when nothing happens any more
    for _ in range(20):
        holders = filled(holders, held)
        census = Census(holders, silent, 1e6)
        carry_out(held, plan_repairs(told(held), census, 3), plan_drops(told(held), census, 3))

    # then each shard is exactly where it should be, and nothing is planned
    holders = filled(holders, held)
    census = Census(holders, silent, 1e6)
    assert plan_repairs(told(held), census, 3) == plan_drops(told(held), census, 3) == ()
    for shard, peers in held.items():
        alive = peers & census.alive
        assert len(alive) == 3
        assert alive == set(place(shard, census.staying.values(), 3, SHARD_BYTES, holding=peers))
