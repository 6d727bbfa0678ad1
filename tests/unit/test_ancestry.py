"""core/ancestry.py: what a peer gives up when others' state takes the place of its own."""

from __future__ import annotations

from ciuic_p2p.core.ancestry import MOST_STATES, NOTHING, Ancestry, Moment
from ciuic_p2p.terms import StateHash


def state(name: str) -> StateHash:
    return StateHash(name.ljust(64, "0"))


def grown(*names: str) -> Ancestry:
    ancestry = Ancestry()
    for epoch, name in enumerate(names):
        ancestry.stepped_to(state(name), Moment(epoch, 10 * epoch))
    return ancestry


def test_the_newest_common_state_is_found():
    ours, theirs = grown("a", "b", "c", "d"), grown("a", "b", "x", "y", "z")
    common = ours.replaced_by(state("z"), Moment(4, 99), theirs.short(state("z")))
    assert common == Moment(1, 10)
    assert ours.short(state("z")) == theirs.short(state("z"))


def test_a_state_that_leads_on_gives_up_nothing():
    ours, theirs = grown("a", "b"), grown("a", "b", "c", "d")
    assert ours.replaced_by(state("d"), Moment(3, 30), theirs.short(state("d"))) == Moment(1, 10)


def test_of_another_beginning_all_is_given_up():
    assert grown("a", "b").replaced_by(state("y"), Moment(1, 10), grown("x", "y").short(state("y"))) == NOTHING


def test_what_was_never_held_here_is_not_common():
    ours = grown("a")
    ours.replaced_by(state("c"), Moment(2, 20), grown("a", "b", "c").short(state("c")))
    ours.stepped_to(state("d"), Moment(3, 30))
    # Others went on from "b", which this peer only knows by name: of its own past "a" is the newest that they share.
    assert ours.replaced_by(state("y"), Moment(9, 90), grown("a", "b", "x", "y").short(state("y"))) == Moment(0, 0)


def test_an_unknown_state_has_no_ancestors_and_the_past_is_bounded():
    ancestry = grown(*(f"{number:06}" for number in range(MOST_STATES + 10)))
    assert ancestry.short(state("other")) == ()
    assert len(ancestry.short(state(f"{MOST_STATES + 9:06}"))) == MOST_STATES - 1
