"""Readings in virtual time: holders that die, lie, stall and truncate, and what is missing in the end."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from ciuic_p2p.core.hedging import (
    ASKS_EACH,
    HEDGE_AFTER,
    MOST_ASKS,
    MOST_AT_ONCE,
    MOST_FAULTS,
    MOST_PATIENCE_S,
    AskShard,
    BlameHolder,
    CancelAsk,
    FinishReading,
    HolderLost,
    HolderReturned,
    LinkEstimate,
    MissingShard,
    Reading,
    ShardCame,
    ShardRefused,
    ShardWrong,
    TimePassed,
    WantedShard,
)
from ciuic_p2p.terms import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
QUICK = LinkEstimate(rtt_s=0.01, goodput_mbps=80.0)
"""1 MB takes 0.1 s."""
MEGABYTE = 1_000_000


def wanted(shard: str, *holders: PeerId) -> WantedShard:
    return WantedShard(shard=shard, size_bytes=MEGABYTE, holders=holders)


def asks(actions) -> list[tuple[PeerId, str]]:
    return [(action.peer, action.shard) for action in actions if isinstance(action, AskShard)]


# -- one thing at a time -----------------------------------------------------------------------------------------------


def test_the_nearest_is_asked_first_and_all_lines_are_used():
    reading = Reading([wanted(f"{i}", A, B) for i in range(9)], {A: QUICK, B: QUICK})
    first = asks(reading.handle(TimePassed(), 0.0))
    assert first[:3] == [(A, "0"), (B, "1"), (A, "2")]
    assert Counter(peer for peer, _ in first) == {A: ASKS_EACH, B: ASKS_EACH}
    assert asks(reading.handle(ShardCame(peer=A, shard="0"), 0.1)) == [(A, "8")]


def test_a_slow_holder_is_hedged_and_the_slower_of_both_is_told_to_stop():
    # given a shard that was asked of the first holder
    reading = Reading([wanted("0", A, B)], {A: QUICK, B: QUICK})
    assert reading.handle(TimePassed(), 0.0) == [AskShard(peer=A, shard="0")]

    # when it takes more than twice the expected time
    hedge_at_s = reading.next_deadline_s()
    assert hedge_at_s == pytest.approx(max(0.25, HEDGE_AFTER * 0.11))
    assert reading.handle(TimePassed(), hedge_at_s) == [AskShard(peer=B, shard="0")]

    # then whoever is first ends it
    assert reading.handle(ShardCame(peer=B, shard="0"), 0.4) == [CancelAsk(peer=A, shard="0"), FinishReading(missing=())]
    assert reading.finished
    assert reading.next_deadline_s() is None


@pytest.mark.parametrize("event", [HolderLost(peer=A), ShardRefused(peer=A, shard="0")])
def test_who_dies_or_has_it_not_is_replaced_without_blame(event):
    reading = Reading([wanted("0", A, B)], {})
    reading.handle(TimePassed(), 0.0)
    assert reading.handle(event, 0.1) == [AskShard(peer=B, shard="0")]


def test_who_sends_something_else_is_blamed_and_asked_last_from_then_on():
    reading = Reading([wanted("0", A, B), wanted("1", A, B), wanted("2", A)], {}, asks_each=1)
    assert asks(reading.handle(TimePassed(), 0.0)) == [(A, "0"), (B, "1")]
    assert reading.handle(ShardWrong(peer=A, shard="0", reason="hash"), 0.1) == [
        BlameHolder(peer=A, shard="0", reason="hash"),
        AskShard(peer=A, shard="2"),
    ]
    # then nobody else has that one; what others have they are asked for
    assert reading.handle(ShardCame(peer=A, shard="2"), 0.2) == []
    assert asks(reading.handle(ShardCame(peer=B, shard="1"), 0.3)) == [(B, "0")]


def test_after_some_faults_a_holder_is_asked_for_nothing():
    reading = Reading([wanted(f"{i}", A) for i in range(9)], {}, asks_each=1)
    actions = reading.handle(TimePassed(), 0.0)
    for i in range(MOST_FAULTS):
        assert asks(actions) == [(A, f"{i}")]
        actions = reading.handle(ShardWrong(peer=A, shard=f"{i}", reason="truncated"), 0.1)
    assert actions[0] == BlameHolder(peer=A, shard="2", reason="truncated")
    assert actions[1].missing == tuple(
        MissingShard(shard=f"{i}", asked=(A,) if i < MOST_FAULTS else (), not_asked=() if i < MOST_FAULTS else (A,))
        for i in range(9)
    )


def test_what_is_missing_is_named_with_who_was_asked_and_who_could_not_be():
    reading = Reading([wanted("0", A, B, C), wanted("1")], {})
    reading.handle(HolderLost(peer=B), 0.0)
    reading.handle(ShardRefused(peer=A, shard="0"), 0.1)
    assert reading.handle(ShardRefused(peer=C, shard="0"), 0.2) == [
        FinishReading(
            missing=(
                MissingShard(shard="0", asked=(A, C), not_asked=(B,)),
                MissingShard(shard="1", asked=(), not_asked=()),
            )
        )
    ]


def test_who_returns_is_asked_again():
    reading = Reading([wanted("0", A), wanted("1", B)], {})
    reading.handle(TimePassed(), 0.0)
    assert reading.handle(HolderLost(peer=A), 0.1) == []
    assert reading.handle(HolderReturned(peer=A), 0.2) == [AskShard(peer=A, shard="0")]


def test_what_does_not_come_when_it_should_is_late_once_nobody_else_can_be_asked():
    # given one shard that one holder has, one that two have, and one whose holder is lost
    reading = Reading([wanted("0", A), wanted("1", A, B), wanted("2", C)], {A: QUICK, B: QUICK, C: QUICK})
    reading.handle(TimePassed(), 0.0)
    assert reading.late() == frozenset()
    reading.handle(HolderLost(peer=C), 0.1)
    assert reading.late() == {"2"}

    # when both are silent for too long, then the other one is asked for what two have
    hedged = []
    while not hedged:
        hedged = asks(reading.handle(TimePassed(), reading.next_deadline_s()))
    assert hedged == [(A, "1")]
    while "0" not in reading.late():
        reading.handle(TimePassed(), reading.next_deadline_s())
    assert "1" not in reading.late()

    # and what comes in the end is late no more
    reading.handle(ShardCame(peer=A, shard="0"), reading.next_deadline_s())
    assert "0" not in reading.late()


def test_what_comes_after_it_was_given_up_is_taken():
    # given a holder that is silent until its patience is over, and is asked again with more of it
    reading = Reading([wanted("0", A)], {})
    reading.handle(TimePassed(), 0.0)
    actions = []
    while not actions:
        actions = reading.handle(TimePassed(), reading.next_deadline_s())
    assert actions == [CancelAsk(peer=A, shard="0"), AskShard(peer=A, shard="0")]
    assert reading.handle(ShardCame(peer=A, shard="0"), 100.0) == [FinishReading(missing=())]


def test_at_the_end_idle_holders_help_the_slow_one():
    # given a quick holder and one that needs two seconds for a shard
    reading = Reading([wanted("0", A, B), wanted("1", B, A)], {A: QUICK, B: LinkEstimate(goodput_mbps=4.0)}, asks_each=1)
    assert asks(reading.handle(TimePassed(), 0.0)) == [(A, "0"), (B, "1")]
    # then it is not waited for
    assert asks(reading.handle(ShardCame(peer=A, shard="0"), 0.1)) == [(A, "1")]


def test_an_overdue_shard_goes_before_those_that_nobody_was_asked_for():
    reading = Reading([wanted(f"{i}", A, B) for i in range(4)], {A: QUICK, B: QUICK}, asks_each=1)
    assert asks(reading.handle(TimePassed(), 0.0)) == [(A, "0"), (B, "1")]
    assert asks(reading.handle(ShardCame(peer=B, shard="1"), 0.1)) == [(B, "2")]
    assert reading.handle(TimePassed(), 0.3) == []
    assert reading.next_deadline_s() > 0.3
    assert asks(reading.handle(ShardCame(peer=B, shard="2"), 0.3)) == [(B, "0")]


def test_who_let_others_answer_is_asked_for_one_shard_at_a_time_until_it_does():
    # given two holders with two shards each to send, of which the first does nothing
    reading = Reading([wanted(f"{i}", A, B) for i in range(9)], {A: QUICK, B: QUICK}, asks_each=2)
    assert asks(reading.handle(TimePassed(), 0.0)) == [(A, "0"), (B, "1"), (A, "2"), (B, "3")]
    reading.handle(ShardCame(peer=B, shard="1"), 0.1)
    reading.handle(TimePassed(), 1.0)
    assert asks(reading.handle(ShardCame(peer=B, shard="3"), 1.0)) == [(B, "0")]

    # when the other one answers for it, then it gets nothing besides what it has
    assert asks(reading.handle(ShardCame(peer=B, shard="0"), 1.1)) == [(B, "2")]
    # and as much as before when it answers
    assert Counter(peer for peer, _ in asks(reading.handle(ShardCame(peer=A, shard="2"), 1.2))) == {A: 2, B: 1}


def test_over_a_slow_line_one_shard_is_asked_for_at_a_time():
    # given a line over which one takes 40 s
    reading = Reading([wanted("0", A), wanted("1", A)], {A: LinkEstimate(goodput_mbps=0.2)})
    assert asks(reading.handle(TimePassed(), 0.0)) == [(A, "0")]
    assert asks(reading.handle(ShardCame(peer=A, shard="0"), 40.3)) == [(A, "1")]


def test_nonsense_changes_nothing():
    reading = Reading([wanted("0", A, B)], {})
    reading.handle(TimePassed(), 0.0)
    for event in (
        ShardCame(peer=A, shard="9"),
        ShardWrong(peer=B, shard="0", reason="never asked"),
        ShardRefused(peer=B, shard="0"),
        HolderLost(peer=C),
        HolderReturned(peer=C),
        ShardCame(peer=C, shard="9"),
    ):
        assert reading.handle(event, 0.1) == []
    with pytest.raises(ValueError, match="twice"):
        Reading([wanted("0"), wanted("0")], {})
    with pytest.raises(ValueError, match="0 asks"):
        Reading([], {}, asks_each=0)


# -- everything at once ------------------------------------------------------------------------------------------------

KINDS = ("honest", "honest", "honest", "dies", "lies", "truncates", "stalls", "stalls at times")


@dataclass
class SimulatedHolder:
    """Sends one shard after the other, as quickly as its line really is."""

    kind: str
    rtt_s: float
    goodput_mbps: float
    holds: set[str]
    dies_at_s: float
    free_at_s: float = 0.0
    open_asks: set[str] = field(default_factory=set)

    @property
    def is_faulty(self) -> bool:
        return self.kind in ("lies", "truncates")


class SimulatedReading:
    """All of it follows from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.shards = [f"{i}" for i in range(rng.randint(1, 40))]
        self.holders = {PeerId(f"p{i}"): self._any_holder() for i in range(rng.randint(1, 7))}
        told = {
            shard: tuple(peer for peer, holder in self.holders.items() if shard in holder.holds or rng.random() < 0.1)
            for shard in self.shards
        }
        # estimates are off by a factor of ten at most
        estimates = {
            peer: LinkEstimate(rtt_s=holder.rtt_s, goodput_mbps=holder.goodput_mbps * 10 ** rng.uniform(-1, 1))
            for peer, holder in self.holders.items()
            if rng.random() < 0.9
        }
        self.reading = Reading(
            [WantedShard(shard=shard, size_bytes=MEGABYTE, holders=told[shard]) for shard in self.shards], estimates
        )
        self.heap = [(holder.dies_at_s, -i, HolderLost(peer=peer)) for i, (peer, holder) in enumerate(self.holders.items())]
        heapq.heapify(self.heap)
        self.counter = itertools.count()
        self.now = 0.0
        self.came: set[str] = set()
        self.asked: Counter[tuple[PeerId, str]] = Counter()
        self.blamed: set[PeerId] = set()
        self.finish: FinishReading | None = None

    def _any_holder(self) -> SimulatedHolder:
        rng = self.rng
        kind = rng.choice(KINDS)
        return SimulatedHolder(
            kind=kind,
            rtt_s=rng.choice([0.001, 0.05, 0.2]),
            goodput_mbps=rng.choice([3.0, 30.0, 300.0]),
            holds={shard for shard in self.shards if rng.random() < rng.choice([0.3, 0.9])},
            dies_at_s=rng.uniform(0, 3) if kind == "dies" else float("inf"),
        )

    def run(self) -> None:
        self._perform(self.reading.handle(TimePassed(), 0.0))
        while self.finish is None:
            deadline_s = self.reading.next_deadline_s()
            if deadline_s is not None and (not self.heap or deadline_s < self.heap[0][0]):
                self.now = deadline_s
                self._perform(self.reading.handle(TimePassed(), self.now))
            else:
                assert self.heap, "nothing will ever happen again, and it has not ended"
                self.now, _, event = heapq.heappop(self.heap)
                assert self.now < float("inf")
                self._happen(event)

    def _happen(self, event) -> None:
        if isinstance(event, HolderLost):
            self.holders[event.peer].open_asks.clear()
        else:
            holder = self.holders[event.peer]
            if event.shard not in holder.open_asks:
                return
            holder.open_asks.remove(event.shard)
            if isinstance(event, ShardCame):
                self.came.add(event.shard)
        self._perform(self.reading.handle(event, self.now))

    def _perform(self, actions) -> None:
        for action in actions:
            match action:
                case AskShard(peer=peer, shard=shard):
                    self._ask(peer, shard)
                case CancelAsk(peer=peer, shard=shard):
                    self.holders[peer].open_asks.discard(shard)
                case BlameHolder(peer=peer):
                    self.blamed.add(peer)
                case FinishReading():
                    self.finish = action
        assert all(len(holder.open_asks) <= ASKS_EACH for holder in self.holders.values())
        at_once = Counter(shard for holder in self.holders.values() for shard in holder.open_asks)
        assert not at_once or max(at_once.values()) <= MOST_AT_ONCE

    def _ask(self, peer: PeerId, shard: str) -> None:
        holder = self.holders[peer]
        assert self.now <= holder.dies_at_s
        assert shard not in self.came
        self.asked[peer, shard] += 1
        holder.open_asks.add(shard)
        if holder.kind == "stalls" or (holder.kind == "stalls at times" and self.rng.random() < 0.3):
            return
        event = self._answer(holder, peer, shard)
        sending_s = 0.0 if isinstance(event, ShardRefused) else MEGABYTE * 8e-6 / holder.goodput_mbps
        holder.free_at_s = max(holder.free_at_s, self.now) + sending_s
        heapq.heappush(self.heap, (holder.free_at_s + holder.rtt_s, next(self.counter), event))

    def _answer(self, holder: SimulatedHolder, peer: PeerId, shard: str):
        if holder.is_faulty and self.rng.random() < 0.5:
            return ShardWrong(peer=peer, shard=shard, reason=holder.kind)
        if shard not in holder.holds:
            return ShardRefused(peer=peer, shard=shard)
        return ShardCame(peer=peer, shard=shard)


@pytest.mark.parametrize("fifty", range(10))
def test_what_is_missing_no_honest_holder_that_lives_has(fifty):
    for seed in range(50 * fifty, 50 * fifty + 50):
        sim = SimulatedReading(seed)
        sim.run()
        missing = {shard.shard for shard in sim.finish.missing}

        # each shard came or is named
        assert missing == set(sim.shards) - sim.came, seed
        for shard in sim.finish.missing:
            # and what is missing no honest holder has that lives
            honest = [peer for peer, holder in sim.holders.items() if holder.kind == "honest" and shard.shard in holder.holds]
            assert not honest, (seed, shard)
            assert set(shard.asked) == {peer for peer, asked in sim.asked if asked == shard.shard}, seed
        # nobody honest was blamed, and nobody asked more often than allowed
        assert all(sim.holders[peer].is_faulty for peer in sim.blamed), seed
        assert max(sim.asked.values(), default=0) <= MOST_ASKS, seed
        # and all of it within what the patience with each holder allows
        assert sim.now <= 2 * MOST_ASKS * MOST_PATIENCE_S, seed


@pytest.mark.parametrize("rates_mbps", [(20, 20, 20, 20, 20), (300, 30, 3, 3), (100, 5, 1)])
def test_all_lines_are_used_and_no_slow_one_is_waited_for_at_the_end(rates_mbps):
    # given honest holders whose lines are known
    sim = SimulatedReading(0)
    sim.holders = {
        PeerId(f"p{i}"): SimulatedHolder("honest", 0.02, rate, set(), float("inf")) for i, rate in enumerate(rates_mbps)
    }
    sim.shards = [f"{i}" for i in range(100)]
    for holder in sim.holders.values():
        holder.holds = set(sim.shards)
    estimates = {peer: LinkEstimate(rtt_s=0.02, goodput_mbps=holder.goodput_mbps) for peer, holder in sim.holders.items()}
    sim.reading = Reading([wanted(shard, *sim.holders) for shard in sim.shards], estimates)
    sim.heap = []

    # when 100 shards are read
    sim.run()

    # then that takes little more than all lines together need, and what was asked twice is what the slow ones had to do
    assert sim.finish == FinishReading(missing=())
    assert sim.now <= 1.3 * len(sim.shards) * MEGABYTE * 8e-6 / sum(rates_mbps)
    slow = sum(rate < max(rates_mbps) for rate in rates_mbps)
    assert sum(sim.asked.values()) - len(sim.shards) <= ASKS_EACH * slow
