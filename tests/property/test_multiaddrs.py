"""Addresses that a hostile peer may send: refused or encoded, never another exception."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.errors import ConfigError, MalformedMessage
from ciuic_p2p.net.meetings import MOST_PEERS_TOLD, _read_addresses, _read_reply, _unpack
from ciuic_p2p.net.multiaddrs import PeerAddress, is_multiaddr

FEW = settings(max_examples=80, deadline=None)
PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
parts = st.sampled_from(
    ["ip4", "ip6", "dns4", "tcp", "udp", "quic-v1", "p2p", "p2p-circuit", "unix", "127.0.0.1", "::1", "1", PEER, ""]
)
near_misses = st.lists(parts | st.text(max_size=6), max_size=8).map(lambda words: "/" + "/".join(words))


@given(near_misses | st.text(max_size=40))
@FEW
def test_any_text_is_an_address_or_not(text):
    assert is_multiaddr(text) in (True, False)


@given(near_misses | st.text(max_size=40))
@FEW
def test_any_text_is_an_address_to_join_or_refused(text):
    try:
        parsed = PeerAddress.parse(text)
    except ConfigError:
        return
    assert str(parsed) == text


@given(st.binary(max_size=200))
@FEW
def test_any_bytes_are_a_message_or_refused(data):
    with contextlib.suppress(MalformedMessage):
        _read_addresses(PEER, _unpack(PEER, data))
    with contextlib.suppress(MalformedMessage):
        _read_reply(PEER, data)


def test_a_reply_keeps_only_what_names_a_peer():
    reply = msgpack.packb({PEER: ["/ip4/1.2.3.4/tcp/1"], "nonsense": ["/ip4/1.2.3.4/tcp/1"], "other": 1})
    assert _read_reply(PEER, reply) == {PEER: ("/ip4/1.2.3.4/tcp/1",)}


def test_a_reply_that_names_too_many_is_refused():
    reply = msgpack.packb({str(i): [] for i in range(MOST_PEERS_TOLD + 1)})
    with pytest.raises(MalformedMessage):
        _read_reply(PEER, reply)
