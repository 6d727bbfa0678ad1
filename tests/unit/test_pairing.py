"""Which connection is the session: one wins when both dial, a restart and a loss that one side noticed replace it."""

from __future__ import annotations

from ciuic_p2p.net.envelopes import Hello, SessionName
from ciuic_p2p.net.pairing import Pairing, decides
from ciuic_p2p.terms import PeerId

MINE, THEIRS, RESTARTED = b"m" * 16, b"t" * 16, b"r" * 16


def hello(instance: bytes = THEIRS, ended: SessionName | None = None) -> Hello:
    return Hello(token=b"", name="", instance=instance, ended=ended)


def test_exactly_one_of_two_decides() -> None:
    assert decides(PeerId("a"), PeerId("b"))
    assert not decides(PeerId("b"), PeerId("a"))


def test_a_second_connection_is_superfluous_while_the_first_is_open() -> None:
    pairing = Pairing()
    assert pairing.may_open(hello())
    pairing.opened(SessionName(MINE, 1), THEIRS)
    assert not pairing.may_open(hello())
    pairing.closed()
    assert pairing.may_open(hello())
    assert pairing.ended == SessionName(MINE, 1)


def test_a_restarted_peer_is_let_in() -> None:
    pairing = Pairing()
    pairing.opened(SessionName(MINE, 1), THEIRS)
    assert pairing.may_open(hello(instance=RESTARTED))


def test_who_says_that_the_session_ended_is_believed_but_only_of_that_session() -> None:
    pairing = Pairing()
    pairing.opened(SessionName(MINE, 2), THEIRS)
    assert not pairing.may_open(hello(ended=SessionName(MINE, 1)))
    assert not pairing.may_open(hello(ended=SessionName(b"x" * 16, 9)))
    assert pairing.may_open(hello(ended=SessionName(MINE, 2)))


def test_of_decisions_that_overtook_each_other_the_later_counts() -> None:
    pairing = Pairing()
    assert pairing.is_newer(SessionName(THEIRS, 1))
    pairing.opened(SessionName(THEIRS, 2), THEIRS)
    assert not pairing.is_newer(SessionName(THEIRS, 1))
    pairing.closed()
    assert not pairing.is_newer(SessionName(THEIRS, 2))
    assert pairing.is_newer(SessionName(THEIRS, 3))
    assert pairing.is_newer(SessionName(RESTARTED, 1))
