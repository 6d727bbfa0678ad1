"""Which addresses count: the user's always, the peer's own before hearsay; bounded."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ciuic_p2p.errors import ConfigError
from ciuic_p2p.net import addressbook
from ciuic_p2p.net.addressbook import AddressBook, answering
from ciuic_p2p.net.multiaddrs import PeerAddress, encode_multiaddr, is_multiaddr

PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
CONFIGURED, SAID, HEARD = (f"/ip4/10.0.0.{i}/tcp/1" for i in (1, 2, 3))


def test_what_the_peer_says_replaces_what_others_said():
    book = AddressBook()
    book.hear(PEER, [HEARD])
    assert book.addresses_of(PEER) == (HEARD,)
    book.learn(PEER, [SAID])
    book.hear(PEER, [HEARD])
    assert book.addresses_of(PEER) == (SAID,)


def test_what_the_user_wrote_stays_and_comes_first():
    book = AddressBook([PeerAddress(PEER, CONFIGURED)])
    book.learn(PEER, [SAID, CONFIGURED])
    assert book.addresses_of(PEER) == (CONFIGURED, SAID)
    book.forget(PEER)
    assert book.addresses_of(PEER) == (CONFIGURED,)
    assert book.peers() == [PEER]


def test_hearsay_is_not_passed_on():
    book = AddressBook([PeerAddress(PEER, CONFIGURED)])
    book.hear("other", [HEARD])
    assert book.said() == {}


def test_what_is_no_address_is_left_out():
    book = AddressBook()
    book.learn(PEER, ["nonsense", SAID, "/ip4/1.2.3.4/tcp/999999"])
    assert book.addresses_of(PEER) == (SAID,)
    book.learn(PEER, ["nonsense"])
    assert book.addresses_of(PEER) == (SAID,)


def test_the_book_is_bounded(monkeypatch):
    monkeypatch.setattr(addressbook, "MOST_PEERS", 3)
    book = AddressBook()
    for i in range(5):
        book.learn(f"peer{i}", [SAID] * 100)
    assert book.peers() == ["peer2", "peer3", "peer4"]
    assert len(book.addresses_of("peer4")) == 1


def test_a_port_that_nobody_listens_on_is_found_out():
    with socket.create_server(("127.0.0.1", 0)) as open_one, socket.socket() as closed_one:
        closed_one.bind(("127.0.0.1", 0))
        up, down = (f"/ip4/127.0.0.1/tcp/{s.getsockname()[1]}" for s in (open_one, closed_one))
        udp = "/ip4/127.0.0.1/udp/1/quic-v1"
        assert asyncio.run(answering([down, up, udp])) == [up, udp]


def test_a_relayed_address_keeps_the_relays_id_as_libp2p_writes_it():
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}/p2p-circuit"
    assert is_multiaddr(address)
    assert b"\xa5\x03\x26\x00\x24\x08\x01\x12\x20" in encode_multiaddr(address)
    assert encode_multiaddr(address).endswith(b"\xa2\x02")


def test_an_address_to_join_is_split_at_its_last_peer():
    circuit = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}/p2p-circuit"
    parsed = PeerAddress.parse(f"{circuit}/p2p/{PEER}")
    assert parsed == PeerAddress(PEER, circuit)
    assert str(parsed) == f"{circuit}/p2p/{PEER}"
    with pytest.raises(ConfigError, match="not an address to join"):
        PeerAddress.parse(circuit)
