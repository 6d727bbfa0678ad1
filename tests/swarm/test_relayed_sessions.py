"""Sessions and lanes inside real libp2p streams: straight to a peer, and through a relay to one that listens nowhere."""

from __future__ import annotations

import asyncio

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.membership import Membership, RootKey, bind
from ciuic_p2p.net.identity import Identity
from ciuic_p2p.net.p2p import P2PNetwork, P2PSettings
from ciuic_p2p.net.sessions import Sessions, SessionsSettings
from ciuic_p2p.testing.recorder import Recorder
from ciuic_p2p.testing.swarm import probe
from tests.swarm.swarm_kit import LOOPBACK, new_identity

ROOT = RootKey.generate()


class RelayedPeer:
    """libp2p and sessions of one peer whose TCP port for sessions nobody is told."""

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
        self.sessions = Sessions(key, gate, self.recorder, SessionsSettings(listen=("127.0.0.1:0",)))

    async def __aenter__(self) -> RelayedPeer:
        await self.network.start()
        await self.sessions.start()
        self.network.set_stream_handler(self.sessions.accept_stream)
        self.sessions.use_relay(self.network.open_stream)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sessions.stop()
        await self.network.stop()


async def exchange_frames(one: RelayedPeer, other: RelayedPeer, count: int, size_bytes: int) -> None:
    one.sessions.want(other.identity.peer_id, ())
    await one.recorder.until(lambda: bool(one.recorder.opened))
    await other.recorder.until(lambda: bool(other.recorder.opened))
    assert one.recorder.opened[0] == (other.identity.peer_id, "relay")
    payloads = [bytes([number]) * size_bytes for number in range(count)]
    one.sessions.send_frames(other.identity.peer_id, [probe(n, p) for n, p in enumerate(payloads)])
    other.sessions.send_frames(one.identity.peer_id, [probe(n, p) for n, p in enumerate(payloads)])
    for peer in (one, other):
        await peer.recorder.until(lambda peer=peer: len({h.part for _, h, _ in peer.recorder.frames}) == count)
        assert {h.part: p for _, h, p in peer.recorder.frames} == dict(enumerate(payloads))


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
