"""Pieces of a state are asked of those who can give them: more of the quick ones, and the end waits for nobody slow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.core.piecework import LEAST_OWED, OWED_BY_ALL, Piecework
from ciuic_p2p.terms import PeerId

QUICK, SLOW, LATE = PeerId("quick"), PeerId("slow"), PeerId("late")


def give(work: Piecework, owed: dict[PeerId, list[int]], donor: PeerId, count: int) -> None:
    for _ in range(count):
        if owed[donor]:
            work.found(owed[donor].pop(0))


def ask(work: Piecework, owed: dict[PeerId, list[int]]) -> dict[PeerId, tuple[int, ...]]:
    asked = work.asks()
    for donor, pieces in asked.items():
        owed.setdefault(donor, []).extend(pieces)
    return asked


def test_a_quick_donor_gives_most_and_the_end_does_not_wait_for_a_slow_one() -> None:
    work, owed, given_by = Piecework(range(100)), {QUICK: [], SLOW: []}, {QUICK: 0, SLOW: 0}
    work.add_donor(QUICK)
    work.add_donor(SLOW)
    turns = 0
    while work.missing:
        ask(work, owed)
        turns += 1
        for donor, speed in ((QUICK, 10), (SLOW, 1)):
            before = len(work.missing)
            give(work, owed, donor, speed if turns % 2 or donor == QUICK else 0)
            given_by[donor] += before - len(work.missing)
    assert given_by[QUICK] > 85
    assert turns < 25, "100 pieces at 10 a turn, and 12 on order at each"


def test_no_donor_is_asked_for_more_than_it_may_owe() -> None:
    work = Piecework(range(1000))
    work.add_donor(QUICK)
    assert work.asks() == {QUICK: tuple(range(OWED_BY_ALL))}
    assert work.asks() == {}
    for piece in range(OWED_BY_ALL // 2):
        assert work.found(piece)
    assert work.asks() == {QUICK: tuple(range(OWED_BY_ALL, OWED_BY_ALL + OWED_BY_ALL // 2))}
    for number in range(20):
        work.add_donor(PeerId(f"one of many {number}"))
    assert {len(pieces) for pieces in work.asks().values()} == {LEAST_OWED}


def test_who_answers_first_is_asked_for_its_share_when_others_are_expected() -> None:
    work = Piecework(range(1000))
    work.add_donor(QUICK)
    assert work.asks(expected=4) == {QUICK: tuple(range(OWED_BY_ALL // 4))}
    assert work.asks(expected=4) == {}
    assert work.asks() == {QUICK: tuple(range(OWED_BY_ALL // 4, OWED_BY_ALL))}, "nobody is expected any more"


def test_what_a_dropped_donor_owes_is_asked_of_another_and_who_comes_late_helps() -> None:
    work = Piecework(range(6))
    work.add_donor(SLOW)
    work.asks()
    work.add_donor(LATE)
    assert work.asks() == {LATE: (5,)}, "the last that the slow one owes"
    assert work.asks() == {}
    work.found(5)
    assert work.asks() == {LATE: (4,)}
    work.drop_donor(SLOW)
    work.found(4)
    assert work.asks() == {LATE: (0, 1, 2, 3)}
    assert not work.found(5), "it is here already"


@given(
    st.integers(0, 60), st.lists(st.tuples(st.sampled_from(["add", "drop", "give", "stall"]), st.integers(0, 3)), max_size=80)
)
def test_every_piece_is_owed_or_waits_whatever_happens(pieces: int, events: list[tuple[str, int]]) -> None:
    work, names = Piecework(range(pieces)), [PeerId(f"donor-{n}") for n in range(4)]
    owed: dict[PeerId, list[int]] = {}
    for kind, which in events:
        match kind:
            case "add":
                work.add_donor(names[which])
            case "drop":
                work.drop_donor(names[which])
                owed.pop(names[which], None)
            case "give":
                for piece in owed.pop(names[which], [])[:5]:
                    work.found(piece)
            case "stall":
                work.stalled()
                owed.clear()
        ask(work, owed)
    # in the end one willing donor is enough
    last = PeerId("last")
    work.add_donor(last)
    for name in names:
        work.drop_donor(name)
    turns = 0
    while work.missing:
        for asked in work.asks().values():
            for piece in asked:
                work.found(piece)
        turns += 1
        assert turns <= pieces + 1
