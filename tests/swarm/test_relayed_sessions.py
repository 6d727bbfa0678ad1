"""Sessions and lanes inside real libp2p streams: straight to a peer, and through a relay to one that listens nowhere; and how
they leave those for a direct path and come back."""

from __future__ import annotations

import asyncio

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.membership import Membership, RootKey, bind
from ciuic_p2p.net.dialling import DialLimits
from ciuic_p2p.net.identity import Identity
from ciuic_p2p.net.p2p import P2PNetwork, P2PSettings
from ciuic_p2p.net.sessions import Sessions, SessionsSettings
from ciuic_p2p.testing.proxy import Proxy
from ciuic_p2p.testing.recorder import Recorder
from ciuic_p2p.testing.swarm import probe
from tests.swarm.swarm_kit import LOOPBACK, new_identity

ROOT = RootKey.generate()
EAGER = DialLimits(shortest_search_pause_s=0.2, longest_search_pause_s=0.5)


class RelayedPeer:
    """libp2p and sessions of one peer whose TCP port for sessions nobody is told unless a test does so."""

    def __init__(self, *, listen: tuple[str, ...], join: tuple[str, ...] = ()) -> None:
        self.identity: Identity = new_identity()
        gate = Membership(ROOT.public_bytes, bind(ROOT.invite(), self.identity.peer_id))
        settings = P2PSettings(
            identity_file=self.identity.file,
            listen=listen,
            join=join,
            map_ports=False,
            reachability="auto" if listen else "private",
        )
        self.network = P2PNetwork(settings, gate)
        self.recorder = Recorder()
        key: Ed25519PrivateKey = self.identity.private_key
        self.sessions = Sessions(key, gate, self.recorder, SessionsSettings(listen=("127.0.0.1:0",), dialling=EAGER))
        self.addresses: tuple[str, ...] = ()

    async def __aenter__(self) -> RelayedPeer:
        await self.network.start()
        self.addresses = await self.sessions.start()
        self.network.set_stream_handler(self.sessions.accept_stream)
        self.sessions.use_relay(self.network.open_stream)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sessions.stop()
        await self.network.stop()


async def exchange_frames(one: RelayedPeer, other: RelayedPeer, count: int, size_bytes: int) -> None:
    """Over the session if there is one; else `one` dials, and knows no address."""
    if not one.recorder.opened:
        one.sessions.want(other.identity.peer_id, ())
        await one.recorder.until(lambda: bool(one.recorder.opened))
        await other.recorder.until(lambda: bool(other.recorder.opened))
        assert one.recorder.opened[0] == (other.identity.peer_id, "relay")
    payloads = [bytes([number]) * size_bytes for number in range(count)]
    before = {peer: len(peer.recorder.frames) for peer in (one, other)}
    one.sessions.send_frames(other.identity.peer_id, [probe(n, p) for n, p in enumerate(payloads)])
    other.sessions.send_frames(one.identity.peer_id, [probe(n, p) for n, p in enumerate(payloads)])
    for peer in (one, other):
        await peer.recorder.until(lambda peer=peer: len(peer.recorder.frames) >= before[peer] + count)
        arrived = peer.recorder.frames[before[peer] :]
        assert sorted((h.part, p) for _, h, p in arrived) == list(enumerate(payloads))


async def until_moved(one: RelayedPeer, other: RelayedPeer) -> None:
    for side, far in ((one, other), (other, one)):
        await side.recorder.until(lambda side=side: bool(side.recorder.moved))
        assert side.recorder.moved == [(far.identity.peer_id, "direct")]
        assert side.sessions.facts(far.identity.peer_id).path == "direct"
        assert (len(side.recorder.opened), side.recorder.closed) == (1, [])


def test_frames_cross_a_libp2p_stream_when_no_direct_address_is_known():
    async def scenario() -> None:
        async with RelayedPeer(listen=LOOPBACK) as one:
            addresses = one.network.join_addresses()
            async with RelayedPeer(listen=LOOPBACK, join=addresses) as other:
                await asyncio.wait_for(other.network.joined.wait(), 30)
                await exchange_frames(other, one, count=20, size_bytes=100_000)

    uvloop.run(scenario())


def test_a_peer_that_listens_nowhere_is_reached_through_a_relay():
    async def scenario() -> None:
        async with RelayedPeer(listen=LOOPBACK) as relay:
            addresses = relay.network.join_addresses()
            async with RelayedPeer(listen=(), join=addresses) as hidden, RelayedPeer(listen=LOOPBACK, join=addresses) as other:
                await asyncio.wait_for(hidden.network.joined.wait(), 30)
                await asyncio.wait_for(other.network.joined.wait(), 30)
                other.network.learn_addresses(hidden.identity.peer_id, hidden.network.visible_addresses())
                await exchange_frames(other, hidden, count=4, size_bytes=5_000)

    uvloop.run(scenario())


def test_a_session_in_a_libp2p_stream_moves_to_an_address_that_is_announced_later():
    async def scenario() -> None:
        async with RelayedPeer(listen=LOOPBACK) as one:
            addresses = one.network.join_addresses()
            async with RelayedPeer(listen=LOOPBACK, join=addresses) as other:
                await asyncio.wait_for(other.network.joined.wait(), 30)
                await exchange_frames(other, one, count=20, size_bytes=100_000)

                # when the other's address becomes known
                one.sessions.want(other.identity.peer_id, ("127.0.0.1:1", *other.addresses))

                # then the session goes there, and libp2p is needed no more
                await until_moved(one, other)
                await exchange_frames(other, one, count=20, size_bytes=100_000)
                await one.network.stop()
                await other.network.stop()
                await exchange_frames(other, one, count=20, size_bytes=100_000)
                assert (one.recorder.closed, other.recorder.closed) == ([], [])

    uvloop.run(scenario())


def test_a_session_through_a_relay_moves_when_the_hidden_peer_dials_out():
    async def scenario() -> None:
        async with RelayedPeer(listen=LOOPBACK) as relay:
            addresses = relay.network.join_addresses()
            async with RelayedPeer(listen=(), join=addresses) as hidden, RelayedPeer(listen=LOOPBACK, join=addresses) as other:
                await asyncio.wait_for(hidden.network.joined.wait(), 30)
                await asyncio.wait_for(other.network.joined.wait(), 30)
                other.network.learn_addresses(hidden.identity.peer_id, hidden.network.visible_addresses())
                await exchange_frames(other, hidden, count=4, size_bytes=5_000)

                hidden.sessions.want(other.identity.peer_id, other.addresses)

                # then more goes over the session than a relay of libp2p carries (128 KiB)
                await until_moved(hidden, other)
                await exchange_frames(other, hidden, count=20, size_bytes=100_000)
                assert (hidden.recorder.closed, other.recorder.closed) == ([], [])

    uvloop.run(scenario())


def test_when_the_direct_path_dies_the_libp2p_stream_is_taken_again():
    async def scenario() -> None:
        async with RelayedPeer(listen=LOOPBACK) as one:
            addresses = one.network.join_addresses()
            async with RelayedPeer(listen=LOOPBACK, join=addresses) as other:
                await asyncio.wait_for(other.network.joined.wait(), 30)
                async with Proxy(one.addresses[0]) as proxy:
                    other.sessions.want(one.identity.peer_id, (proxy.address,))
                    for side in (one, other):
                        await side.recorder.until(lambda side=side: bool(side.recorder.opened))
                        assert side.recorder.opened[0][1] == "direct"
                for side in (one, other):
                    await side.recorder.until(lambda side=side: len(side.recorder.opened) == 2)
                    assert side.recorder.opened[1][1] == "relay"
                await exchange_frames(other, one, count=20, size_bytes=100_000)

    uvloop.run(scenario())
