"""Who counts as admitted, and for how long, in virtual time."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.errors import NotAMember
from ciuic_p2p.net import admission
from ciuic_p2p.net.admission import LARGEST_TOKEN_BYTES, RECHECK_S, Admission


def new_peer():
    return peer_id_of(Ed25519PrivateKey.generate().public_key())


class ListGate:
    """Members are those on the list."""

    def __init__(self, *members):
        self.members = set(members)
        self.asked_at = []

    def my_token(self):
        return b"mine"

    def admit(self, peer, token, now):
        self.asked_at.append(now)
        if peer not in self.members or token != b"token":
            raise NotAMember(peer, "not on the list")


@pytest.fixture
def peer():
    return new_peer()


def test_only_a_welcomed_peer_is_admitted(peer):
    now = [0.0]
    door = Admission(ListGate(peer), lambda: now[0])
    assert not door.is_admitted(peer)
    with pytest.raises(NotAMember):
        door.welcome(peer, b"false")
    assert not door.is_admitted(peer)
    now[0] += admission.REFUSAL_PAUSE_S
    door.welcome(peer, b"token")
    assert door.is_admitted(peer)
    door.forget(peer)
    assert not door.is_admitted(peer)


def test_membership_is_checked_again_after_a_while_whichever_way_the_clock_jumps(peer):
    for jump in (RECHECK_S + 1, -RECHECK_S - 1):
        now = [1000.0]
        gate = ListGate(peer)
        door = Admission(gate, lambda now=now: now[0])
        door.welcome(peer, b"token")
        gate.members.clear()
        assert door.is_admitted(peer), "still within the time"
        now[0] += jump
        assert not door.is_admitted(peer)
        assert gate.asked_at == [1000.0, 1000.0 + jump]
        now[0] = 1000.0
        assert not door.is_admitted(peer), "once out, it must show its token again"


def test_a_huge_token_and_an_id_that_is_no_key_never_reach_the_gate(peer):
    gate = ListGate(peer)
    door = Admission(gate, lambda: 0.0)
    with pytest.raises(NotAMember):
        door.welcome(peer, bytes(LARGEST_TOKEN_BYTES + 1))
    with pytest.raises(NotAMember):
        door.welcome("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG", b"token")
    assert gate.asked_at == []


def test_one_that_was_refused_is_not_looked_at_again_for_a_second(peer):
    now = [1000.0]
    gate = ListGate()
    door = Admission(gate, lambda: now[0])
    for _ in range(5):
        with pytest.raises(NotAMember):
            door.welcome(peer, b"token")
    assert len(gate.asked_at) == 1
    gate.members.add(peer)
    now[0] += admission.REFUSAL_PAUSE_S
    door.welcome(peer, b"token")
    assert door.is_admitted(peer)


def test_the_list_of_admitted_peers_is_bounded(monkeypatch):
    monkeypatch.setattr(admission, "MOST_ADMITTED", 2)
    peers = [new_peer() for _ in range(3)]
    door = Admission(ListGate(*peers), lambda: 0.0)
    for peer in peers:
        door.welcome(peer, b"token")
    assert [door.is_admitted(peer) for peer in peers] == [False, True, True]
