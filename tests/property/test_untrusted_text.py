"""Bytes and text from strangers end in a named error, never in another exception."""

from __future__ import annotations

import string

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.joinstring import PREFIX, JoinString, decode_join, encode_join
from ciuic_p2p.core.membership import Membership, RootKey, bind
from ciuic_p2p.core.peerids import peer_id_of, public_key_of
from ciuic_p2p.errors import ConfigError, MalformedMessage, NotAMember
from ciuic_p2p.terms import PeerId

ROOT = RootKey.from_bytes(bytes(range(32)))
PEER = peer_id_of(Ed25519PrivateKey.from_private_bytes(b"p" * 32).public_key())
TOKEN = bind(ROOT.invite(), PEER)
NOW = 1_800_000_000.0
GATE = Membership(ROOT.public_bytes, TOKEN)
JOIN = JoinString(("/ip4/127.0.0.1/tcp/1/p2p/" + PEER, "/ip6/::1/tcp/2/p2p/" + PEER), ROOT.invite())
TEXT = encode_join(JOIN)

addresses = st.lists(st.text(min_size=1, max_size=40), max_size=4)


@given(addresses)
@settings(max_examples=50)
def test_join_strings_survive(given_addresses: list[str]) -> None:
    join = JoinString(tuple(given_addresses), JOIN.invitation)
    assert decode_join(" " + encode_join(join) + "\n") == join


@given(st.integers(0, len(TEXT) - 1), st.characters())
@settings(max_examples=50)
def test_a_mistyped_join_string_is_noticed(position: int, character: str) -> None:
    mistyped = TEXT[:position] + character + TEXT[position + 1 :]
    if mistyped.strip() == TEXT:
        return
    with pytest.raises(ConfigError, match=r"copy it again|begins with"):
        decode_join(mistyped)


@pytest.mark.parametrize("address_length", [1, 2, 3])
def test_bits_that_the_last_character_does_not_need_are_noticed(address_length: int) -> None:
    text = encode_join(JoinString(("a" * address_length,), JOIN.invitation))
    for character in set(string.ascii_letters + string.digits + "-_") - {text[-1]}:
        with pytest.raises(ConfigError, match="copy it again"):
            decode_join(text[:-1] + character)


@given(st.integers(0, len(TEXT) - 1))
@settings(max_examples=50)
def test_half_a_join_string_is_noticed(length: int) -> None:
    with pytest.raises(ConfigError):
        decode_join(TEXT[:length])


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200).map(lambda data: data.decode("latin1"))))
@settings(max_examples=50)
def test_text_that_is_no_join_string(text: str) -> None:
    with pytest.raises(ConfigError):
        decode_join(PREFIX + text)


def test_an_endless_join_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long"):
        decode_join(PREFIX + "A" * 100_000)


@given(st.binary(max_size=300))
@settings(max_examples=50)
def test_bytes_that_are_no_token(token: bytes) -> None:
    with pytest.raises(NotAMember):
        GATE.admit(PEER, token, NOW)


@given(st.integers(0, len(TOKEN) - 1), st.integers(1, 255))
@settings(max_examples=50)
def test_a_changed_token_never_says_more_than_the_true_one(position: int, change: int) -> None:
    """Bytes that its encoding ignores may change; what was signed and what revokes it may not."""
    changed = TOKEN[:position] + bytes([TOKEN[position] ^ change]) + TOKEN[position + 1 :]
    try:
        member = GATE.admit(PEER, changed, NOW)
    except NotAMember:
        return
    assert member == GATE.admit(PEER, TOKEN, NOW)


@given(st.binary(min_size=32, max_size=32))
@settings(max_examples=50)
def test_peer_ids_survive(seed: bytes) -> None:
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    peer = peer_id_of(public)
    assert peer.startswith("12D3KooW")
    assert public_key_of(peer) == public


@given(st.text(max_size=80))
@settings(max_examples=50)
def test_text_that_is_no_peer_id(text: str) -> None:
    with pytest.raises(MalformedMessage):
        public_key_of(PeerId(text))


@pytest.mark.parametrize("wrong", ["1" + PEER, PEER + "1", PEER[:-1], "Qm" + PEER[2:], ""])
def test_spellings_that_are_no_peer_id(wrong: str) -> None:
    with pytest.raises(MalformedMessage):
        public_key_of(PeerId(wrong))
