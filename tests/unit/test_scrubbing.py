"""Which shards are read again, and when: all once in a period, evenly, never too many bytes at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.core.scrubbing import MOST_BYTES_PER_S, Pass, Rest, Scrubbing, Verify
from ciuic_p2p.terms import ShardId

WEEK_S = 604_800.0
BEGUN_S = 1_800_000_000.0


def names(count: int) -> list[ShardId]:
    return [ShardId(f"{number:064x}") for number in range(1, count + 1)]


def read_until(machine: Scrubbing, sizes: dict[ShardId, int], now_s: float, end_s: float) -> list[tuple[float, ShardId]]:
    """When each was read, by a disk that takes no time."""
    read = []
    while now_s < end_s:
        match machine.next(sizes, now_s):
            case Verify(shard=shard):
                read.append((now_s, shard))
                machine.verified(shard, sizes[shard], now_s)
            case Rest(seconds=seconds):
                assert seconds >= 0
                now_s += max(seconds, 0.001)
    return read


def test_a_pass_is_spread_over_the_period() -> None:
    sizes = dict.fromkeys(names(100), 1 << 20)
    read = read_until(Scrubbing(WEEK_S), sizes, BEGUN_S, BEGUN_S + WEEK_S)
    assert [shard for _, shard in read] == names(100)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(read)]
    assert gaps == pytest.approx([WEEK_S / 100] * 99, rel=0.05)


def test_the_next_pass_begins_with_the_next_period() -> None:
    sizes = dict.fromkeys(names(3), 1)
    read = read_until(Scrubbing(WEEK_S), sizes, BEGUN_S, BEGUN_S + 2 * WEEK_S)
    assert [shard for _, shard in read] == names(3) * 2
    assert read[3][0] >= BEGUN_S + WEEK_S


def test_a_large_store_is_read_no_faster_than_the_bound() -> None:
    sizes = dict.fromkeys(names(200), 8 << 20)
    read = read_until(Scrubbing(1.0), sizes, BEGUN_S, BEGUN_S + 100)
    assert len(read) * (8 << 20) <= MOST_BYTES_PER_S * 100 + (8 << 20)
    assert len(read) >= 49


def test_an_empty_store_rests() -> None:
    machine = Scrubbing(WEEK_S)
    assert machine.next({}, BEGUN_S) == Rest(seconds=WEEK_S)
    assert machine.standing.ended_at_s == BEGUN_S


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    machine, sizes = Scrubbing(WEEK_S), dict.fromkeys(names(2), 1)
    read_until(machine, sizes, BEGUN_S, BEGUN_S + 1.5 * WEEK_S)
    again = read_until(machine, sizes, BEGUN_S - 9 * WEEK_S, BEGUN_S - 5 * WEEK_S)
    assert {shard for _, shard in again} == set(names(2))


@given(st.integers(1, 30), st.integers(0, 29), st.sets(st.integers(0, 29)))
def test_a_daemon_that_starts_again_goes_on_where_it_was(count: int, broken_off: int, gone: set[int]) -> None:
    sizes = dict.fromkeys(names(count), 1 << 20)
    machine = Scrubbing(WEEK_S)
    before: list[ShardId] = []
    now_s = BEGUN_S
    while len(before) < min(broken_off, count):
        match machine.next(sizes, now_s):
            case Verify(shard=shard):
                before.append(shard)
                machine.verified(shard, 1 << 20, now_s)
            case Rest(seconds=seconds):
                now_s += max(seconds, 0.001)
    left = {shard: size for number, (shard, size) in enumerate(sizes.items()) if number not in gone}
    read = read_until(Scrubbing(WEEK_S, machine.standing), left, now_s, BEGUN_S + WEEK_S)
    if machine.standing != Pass():
        assert [shard for _, shard in read] == [shard for shard in left if shard not in before]
