"""Presence by probe periods."""

from __future__ import annotations

from ciuic_p2p.core.liveness import FROZEN_PERIODS, SILENT_PERIODS, Liveness
from ciuic_p2p.terms import PeerId

A, B = PeerId("a"), PeerId("b")


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
