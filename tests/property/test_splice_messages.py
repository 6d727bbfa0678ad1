"""What is said about ways survives the trip, and whatever else comes is one error that names who said it."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st

from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.net.splice_messages import (
    TICKET_BYTES,
    Called,
    WayAsked,
    WayGiven,
    pack_asked,
    pack_called,
    pack_given,
    unpack_asked,
    unpack_called,
    unpack_given,
)
from ciuic_p2p.terms import PeerId

SENDER = PeerId("who said it")
peers = st.binary(min_size=32, max_size=32).map(
    lambda seed: peer_id_of(Ed25519PrivateKey.from_private_bytes(seed).public_key())
)
numbers = st.integers(0, (1 << 32) - 1)
tickets = st.binary(min_size=TICKET_BYTES, max_size=TICKET_BYTES)


@given(numbers, peers)
def test_a_question_arrives(number: int, target: PeerId) -> None:
    assert unpack_asked(SENDER, pack_asked(WayAsked(number, target))) == WayAsked(number, target)


@given(numbers, tickets)
def test_a_ticket_arrives(number: int, ticket: bytes) -> None:
    assert unpack_given(SENDER, pack_given(WayGiven(number, ticket))) == WayGiven(number, ticket)


@given(numbers, st.text(max_size=400))
@example(0, "ä" * 150)
def test_a_refusal_arrives_however_long_its_reason_is(number: int, reason: str) -> None:
    given_back = unpack_given(SENDER, pack_given(WayGiven(number, None, reason.encode(errors="ignore").decode())))
    assert (given_back.number, given_back.ticket) == (number, None)
    assert len(given_back.reason) <= 200


@given(tickets, peers)
def test_a_call_arrives(ticket: bytes, asker: PeerId) -> None:
    assert unpack_called(SENDER, pack_called(Called(ticket, asker))) == Called(ticket, asker)


@pytest.mark.parametrize("unpack", [unpack_asked, unpack_given, unpack_called])
@given(body=st.one_of(st.binary(max_size=300), peers.map(str.encode)))
def test_anything_else_is_one_error_that_names_the_sender(unpack, body: bytes) -> None:
    blamed = SENDER
    try:
        unpack(SENDER, body)
    except MalformedMessage as error:
        blamed = error.peer
    assert blamed == SENDER
