"""Presence by probe periods."""

from __future__ import annotations

from ciuic_p2p.core.liveness import FROZEN_PERIODS, SILENT_PERIODS, SUSPECT_PERIODS, Liveness
from ciuic_p2p.terms import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def test_a_dead_peer_is_lost_after_three_periods_and_only_once():
    liveness = Liveness()
    liveness.introduced(A, 1)
    liveness.session_closed(A)
    lost = [liveness.period_passed() for _ in range(SILENT_PERIODS + 3)]
    assert lost == [()] * SILENT_PERIODS + [(A,)] + [()] * 2


def test_a_frozen_peer_whose_session_is_open_gets_more_patience():
    liveness = Liveness()
    liveness.introduced(A, 1)
    lost = [liveness.period_passed() for _ in range(FROZEN_PERIODS + 1)]
    assert lost == [()] * FROZEN_PERIODS + [(A,)]


def test_a_peer_that_answers_stays():
    liveness = Liveness()
    liveness.introduced(A, 1)
    liveness.introduced(B, 1)
    for _ in range(10):
        assert liveness.period_passed() in ((), (B,))
        liveness.heard(A)
    assert liveness.present() == {A}


def test_a_broken_session_is_no_loss_and_another_life_is():
    liveness = Liveness()
    liveness.introduced(A, 1)
    liveness.session_closed(A)
    assert liveness.present() == {A}
    assert liveness.open_peers() == ()
    assert liveness.introduced(A, 1) is False
    assert liveness.introduced(A, 2) is True


def test_goodbye_is_a_loss_at_once():
    liveness = Liveness()
    liveness.introduced(A, 1)
    assert liveness.left(A)
    assert not liveness.left(A)
    assert liveness.present() == frozenset()


def silent_for(liveness: Liveness, periods: int, heard: tuple[PeerId, ...] = ()) -> list[tuple[PeerId, ...]]:
    """Who was lost in each of them, while these are heard."""
    lost = []
    for _ in range(periods):
        lost.append(liveness.period_passed())
        for peer in heard:
            liveness.heard(peer)
    return lost


def introduced(*peers: PeerId) -> Liveness:
    liveness = Liveness()
    for peer in peers:
        liveness.introduced(peer, 1)
    return liveness


def test_who_is_silent_to_all_is_lost_as_soon_as_if_its_session_were_broken():
    liveness = introduced(A, B, C)
    for witness in (B, C):
        liveness.suspected(witness, [A])
    assert silent_for(liveness, SILENT_PERIODS + 1, heard=(B, C)) == [()] * SILENT_PERIODS + [(A,)]


def test_a_full_link_that_holds_up_one_path_only_gives_nobody_up():
    # c hears a
    liveness = introduced(A, B, C)
    liveness.suspected(B, [A])
    assert silent_for(liveness, FROZEN_PERIODS, heard=(B, C)) == [()] * FROZEN_PERIODS


def test_the_word_of_a_witness_that_is_held_up_for_a_moment_still_counts():
    # c hears a, and has been silent here for the last two of these periods
    liveness = introduced(A, B, C)
    liveness.suspected(B, [A])
    assert silent_for(liveness, 2, heard=(B, C)) == [()] * 2
    assert silent_for(liveness, 2, heard=(B,)) == [()] * 2


def test_what_a_silent_witness_said_does_not_count_and_without_witnesses_nobody_is_lost_sooner():
    liveness = introduced(A, B)
    liveness.suspected(B, [A])
    assert silent_for(liveness, FROZEN_PERIODS) == [()] * FROZEN_PERIODS


def test_who_is_heard_is_not_lost_whatever_others_say():
    liveness = introduced(A, B)
    liveness.suspected(B, [A])
    assert silent_for(liveness, 2 * FROZEN_PERIODS, heard=(A, B)) == [()] * 2 * FROZEN_PERIODS


def test_a_witness_that_hears_the_peer_again_takes_its_word_back():
    liveness = introduced(A, B)
    liveness.suspected(B, [A])
    liveness.suspected(B, [])
    assert silent_for(liveness, FROZEN_PERIODS, heard=(B,)) == [()] * FROZEN_PERIODS


def test_suspects_are_those_that_are_silent_or_were_given_up_until_they_are_back():
    liveness = introduced(A, B)
    silent_for(liveness, SUSPECT_PERIODS, heard=(B,))
    assert liveness.suspects() == frozenset()
    silent_for(liveness, 1, heard=(B,))
    assert liveness.suspects() == {A}
    silent_for(liveness, FROZEN_PERIODS, heard=(B,))
    assert liveness.present() == {B}
    assert liveness.suspects() == {A}
    liveness.introduced(A, 1)
    assert liveness.suspects() == frozenset()
