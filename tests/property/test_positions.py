"""Sets of slots against Python's own sets, and positions as a CRDT."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.data.order import Order
from ciuic_p2p.data.positions import Positions
from ciuic_p2p.data.slots import Intervals, Slots
from ciuic_p2p.errors import LocalError, MalformedMessage

COUNT = 12
numbers = st.sets(st.integers(0, 30), max_size=20)
used = st.sets(st.tuples(st.integers(0, 3), st.integers(0, COUNT - 1)))


def intervals(values: set[int]) -> Intervals:
    return Intervals.of((value, value + 1) for value in values)


def slots(pairs: set[tuple[int, int]]) -> Slots:
    return Slots.of((number, slot, slot + 1) for number, slot in pairs)


def values_of(found: Intervals) -> set[int]:
    return {value for start, stop in found.bounds for value in range(start, stop)}


def positions(pairs: set[tuple[int, int]]) -> Positions:
    return Positions(count=COUNT).using(slots(pairs))


def used_by(found: Positions) -> set[tuple[int, int]]:
    return {(number, slot) for number in range(found.finished) for slot in range(COUNT)} | set(found.beyond)


@given(numbers, numbers, st.integers(0, 25))
def test_intervals_are_sets(left: set[int], right: set[int], count: int) -> None:
    a, b = intervals(left), intervals(right)
    assert values_of(a | b) == left | right
    assert values_of(a & b) == left & right
    assert values_of(a - b) == left - right
    assert values_of(a.first(count)) == set(sorted(left)[:count])
    assert a.count == len(left)


@given(used, used, st.integers(0, 25))
def test_slots_are_sets(left: set[tuple[int, int]], right: set[tuple[int, int]], count: int) -> None:
    a, b = slots(left), slots(right)
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert list(a.first(count)) == sorted(left)[:count]


@given(used, used, used)
def test_merging_is_commutative_associative_and_idempotent(a: Any, b: Any, c: Any) -> None:
    x, y, z = positions(a), positions(b), positions(c)
    assert x.merge(y) == y.merge(x)
    assert x.merge(y).merge(z) == x.merge(y.merge(z))
    assert x.merge(x) == x
    assert used_by(x.merge(y)) == used_by(x) | used_by(y) == a | b


@given(used, used, st.integers(0, 40))
def test_what_comes_next_is_neither_used_nor_held(before: Any, held: Any, count: int) -> None:
    found = positions(before).next_unused(count, slots(held))
    free = [(p, s) for p in range(12) for s in range(COUNT) if (p, s) not in before | held]
    assert list(found) == free[:count]


@given(used)
def test_positions_pass_through_json(pairs: Any) -> None:
    before = positions(pairs)
    assert Positions.from_plain(json.loads(json.dumps(before.to_plain()))) == before


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["count", "finished", "beyond"]), inner, max_size=3)
    ),
    max_leaves=12,
)
_STRETCHES = st.lists(st.lists(st.integers(-1, 20), min_size=2, max_size=4), max_size=4)


@given(_PLAIN | st.fixed_dictionaries({"count": st.integers(-1, 20), "finished": st.integers(-1, 3), "beyond": _STRETCHES}))
@settings(max_examples=150)
def test_anything_from_elsewhere_is_positions_or_refused(value: Any) -> None:
    try:
        found = Positions.from_plain(value)
    except MalformedMessage:
        return
    assert Positions.from_plain(found.to_plain()) == found


def test_positions_of_different_datasets_do_not_merge() -> None:
    with pytest.raises(LocalError, match="a dataset of 12 samples do not fit one of 13"):
        Positions(count=12).merge(Positions(count=13))


@given(count=st.integers(1, 3000), seed=st.integers(0, 5), number=st.integers(0, 5))
@settings(max_examples=60)
def test_an_order_has_every_sample_once(count: int, seed: int, number: int) -> None:
    order = Order(count, seed)
    found = list(order.samples_of(Slots.of([(number, 0, count)])))
    assert sorted(found) == list(range(count))
    assert found[count // 2 :] == list(order.samples_of(Slots.of([(number, count // 2, count)])))


def test_orders_differ_by_seed_and_pass_and_never_change() -> None:
    found = {
        (seed, number): tuple(Order(100, seed).samples_of(Slots.of([(number, 0, 100)]))) for seed in (0, 1) for number in (0, 1)
    }
    assert len(set(found.values())) == 4
    # the same on every machine and in every later version, or peers of two versions would train twice on one sample
    assert found[0, 0][:8] == (3, 79, 57, 11, 83, 68, 43, 94)


def test_an_order_shuffles() -> None:
    # given the mean distance of a sample from its slot, which is a third of the dataset when any place is as likely
    count = 100_000
    order = Order(count, 7)
    found = list(order.samples_of(Slots.of([(0, 0, count)])))
    mean = sum(abs(sample - slot) for slot, sample in enumerate(found)) / count
    assert abs(mean / count - 1 / 3) < 0.01
    neighbours = sum(abs(a - b) == 1 for a, b in itertools.pairwise(found))
    assert neighbours < 20


def test_an_order_of_more_samples_than_memory_holds() -> None:
    order = Order(10**15 + 37, 1)
    found = order.samples_at(3, [0, 1, 10**15])
    assert len(set(found.tolist())) == 3
    assert all(0 <= sample < 10**15 + 37 for sample in found.tolist())
