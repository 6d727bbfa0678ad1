"""How leases are given out, and what goes back."""

from __future__ import annotations

from typing import Any

import pytest

from ciuic_p2p.data.leases import Ledger, Trainer, divide, settle
from ciuic_p2p.data.positions import UNBOUNDED, Positions
from ciuic_p2p.data.slots import Slots
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def trainers(**speeds: float) -> list[Trainer]:
    return [Trainer(peer=PeerId(peer), samples_per_s=speed) for peer, speed in speeds.items()]


def beginning(count: int, ahead: int, **speeds: float) -> Ledger:
    return settle(Ledger(positions=Positions(count=count)), trainers(**speeds), {}, ahead)


def test_shares_follow_speed() -> None:
    ledger = beginning(1000, 100, a=1.0, b=3.0)
    assert list(ledger.lease_of(A).stretches()) == [(0, 0, 25)]
    assert list(ledger.lease_of(B).stretches()) == [(0, 25, 100)]


def test_nobody_is_left_without_a_sample() -> None:
    assert divide(10, trainers(a=1e-9, b=1.0)) == {A: 1, B: 10}


def test_largest_remainders_make_up_the_whole() -> None:
    assert divide(10, trainers(a=1.0, b=1.0, c=1.0)) == {A: 4, B: 3, C: 3}


def test_a_lost_trainers_lease_goes_back_but_for_what_it_reported() -> None:
    # given two trainers of which one reports half
    ledger = beginning(100, 40, a=1.0, b=1.0)
    ledger = settle(ledger, trainers(a=1.0, b=1.0), {A: Slots.of([(0, 0, 10)])}, 20)
    assert list(ledger.lease_of(A).stretches()) == [(0, 10, 20)]
    # when it is lost
    ledger = settle(ledger, trainers(b=1.0), {}, 40)
    # then the other is given the rest, before anything new
    assert list(ledger.lease_of(B).stretches()) == [(0, 10, 50)]
    assert list(ledger.positions.beyond.stretches()) == [(0, 0, 10)]


def test_a_report_counts_only_for_what_its_sender_holds() -> None:
    ledger = beginning(100, 40, a=1.0, b=1.0)
    everything = Slots.of([(0, 0, 100), (7, 0, 100)])
    after = settle(ledger, trainers(a=1.0, b=1.0), {A: everything, C: everything}, 20)
    assert after.positions.beyond == ledger.lease_of(A)
    assert after.lease_of(B) == ledger.lease_of(B)


def test_a_slow_trainer_keeps_its_lease() -> None:
    ledger = beginning(100, 40, a=1.0, b=1.0)
    after = settle(ledger, trainers(a=0.001, b=1.0), {B: ledger.lease_of(B)}, 40)
    assert after.lease_of(A) == ledger.lease_of(A)


def test_leases_go_on_into_the_next_pass() -> None:
    ledger = beginning(10, 24, a=1.0)
    assert list(ledger.lease_of(A).stretches()) == [(0, 0, 10), (1, 0, 10), (2, 0, 4)]
    assert settle(ledger, trainers(a=1.0), {A: ledger.lease_of(A).first(21)}, 1).positions.finished == 2


def test_the_end_of_a_stream_is_found_by_one_and_holds_for_all() -> None:
    # given a stream of 5 chunks, of which nobody knows how many there are
    ledger = settle(Ledger(positions=Positions(count=UNBOUNDED)), trainers(a=1.0, b=1.0), {}, 8)
    # when the first uses its four, and the second finds that there are none after chunk 4
    reports = {A: ledger.lease_of(A), B: Slots.of([(0, 4, 5)])}
    ledger = settle(ledger, trainers(a=1.0, b=1.0), reports, 2, ended=Slots.of([(0, 5, UNBOUNDED)]))
    # then the pass is finished, and the next one begins
    assert (ledger.positions.finished, ledger.positions.beyond.count) == (1, 0)
    assert list(ledger.lease_of(A).stretches()) == [(1, 0, 1)]
    assert list(ledger.lease_of(B).stretches()) == [(1, 1, 2)]


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_is_a_positive_number(speed: float) -> None:
    with pytest.raises(ValueError, match="samples a second"):
        trainers(a=speed)


@pytest.mark.parametrize(
    "held",
    [
        [["b", [[0, 0, 2]]], ["a", [[0, 2, 4]]]],
        [["a", [[0, 0, 2]]], ["b", [[0, 1, 4]]]],
        [["a", [[0, 0, 11]]]],
        [["a", []]],
        [["a", [[0, 8, 9]]]],
        [[1, [[0, 0, 2]]]],
        {"a": [[0, 0, 2]]},
    ],
)
def test_a_ledger_that_cannot_be_is_refused(held: Any) -> None:
    positions = Positions(count=10).using(Slots.of([(0, 8, 10)])).to_plain()
    with pytest.raises(MalformedMessage):
        Ledger.from_plain({"positions": positions, "held": held})
