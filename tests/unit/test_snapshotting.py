"""When a snapshot is saved, and when it is complete."""

from __future__ import annotations

from ciuic_p2p.core.snapshotting import MOST_REPORTED, MOST_WANTED, Snapshotting, quorum_of
from ciuic_p2p.terms import PeerId, StateHash

ME, A, B, C, D = (PeerId(name) for name in ("me", "a", "b", "c", "d"))
RIGHT, WRONG = StateHash("1" * 64), StateHash("2" * 64)


def fresh() -> Snapshotting:
    return Snapshotting(ME, every_s=7200.0, next_at_s=7200.0)


def test_more_than_half_make_a_quorum() -> None:
    assert [quorum_of(members) for members in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_only_the_epoch_that_was_asked_for_is_saved_and_once() -> None:
    machine = fresh()
    machine.want(5, now=0.0)
    assert [machine.take_wanted(epoch) for epoch in (3, 4, 5, 5, 6)] == [False, False, True, False, False]


def test_an_epoch_that_was_passed_by_is_not_waited_for() -> None:
    machine = fresh()
    machine.want(5, now=0.0)
    assert not machine.take_wanted(7)
    assert not machine.take_wanted(5)


def test_who_asks_for_every_epoch_gets_a_few() -> None:
    machine = fresh()
    for epoch in range(1000):
        machine.want(epoch, now=0.0)
    assert sum(machine.take_wanted(epoch) for epoch in range(1000)) == MOST_WANTED


def test_one_asked_for_by_anybody_serves_for_the_periodic_one_too() -> None:
    machine = fresh()
    machine.want(5, now=7000.0)
    assert not machine.is_due(7200.0)
    assert machine.is_due(14_200.0)


def test_it_is_complete_when_more_than_half_saved_the_same() -> None:
    machine = fresh()
    machine.reported(A, 5, RIGHT)  # before this peer is done
    assert not machine.is_complete(5)
    machine.saved(5, RIGHT, members=[ME, A, B, C, D])
    assert not machine.is_complete(5)
    machine.reported(B, 5, WRONG)
    assert not machine.is_complete(5)
    machine.reported(C, 5, RIGHT)
    assert machine.is_complete(5)
    assert machine.witnesses(5) == {ME, A, C}
    assert not machine.is_disputed(5)


def test_a_peer_that_says_it_twice_counts_once() -> None:
    machine = fresh()
    machine.saved(5, RIGHT, members=[A, B, C, D])
    machine.reported(A, 5, RIGHT)
    machine.reported(A, 5, RIGHT)
    assert not machine.is_complete(5)


def test_who_is_in_the_minority_knows_it() -> None:
    machine = fresh()
    machine.saved(5, WRONG, members=[A, B])
    machine.reported(A, 5, RIGHT)
    assert not machine.is_disputed(5)
    machine.reported(B, 5, RIGHT)
    assert machine.is_disputed(5)
    assert not machine.is_complete(5)


def test_a_peer_alone_needs_nobody() -> None:
    machine = fresh()
    machine.saved(5, RIGHT, members=[])
    assert machine.is_complete(5)


def test_reports_of_many_epochs_do_not_grow_without_end() -> None:
    machine = fresh()
    for epoch in range(10 * MOST_REPORTED):
        machine.reported(A, epoch, RIGHT)
    assert len(machine._reports) == MOST_REPORTED
