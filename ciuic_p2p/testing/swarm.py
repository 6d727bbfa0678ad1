"""A swarm of `Sessions` in one event loop, over real sockets on loopback. Knows no rounds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.frames import FrameHeader, FrameKind
from ciuic_p2p.core.membership import Membership, RootKey, bind
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.net.introduction import Gate
from ciuic_p2p.net.lane_group import LaneLimits
from ciuic_p2p.net.sessions import Sessions, SessionsSettings
from ciuic_p2p.net.transport import OutgoingFrame
from ciuic_p2p.terms import PeerId
from ciuic_p2p.testing.recorder import Recorder

LISTEN = ("127.0.0.1:0",)
ONE_LANE = SessionsSettings(listen=LISTEN, lanes=LaneLimits(count=1, shortest_delay_s=0.02))


@dataclass(frozen=True, slots=True)
class SwarmPeer:
    """A started peer and what it was told."""

    peer: PeerId
    sessions: Sessions
    heard: Recorder
    addresses: tuple[str, ...]

    async def meet(self, other: SwarmPeer, address: str | None = None) -> None:
        """Dials `other`, at another address than its own if one is given, and waits until both have the session."""
        self.sessions.want(other.peer, other.addresses if address is None else (address,))
        await self.heard.until(lambda: other.peer in self.sessions.connected())
        await other.heard.until(lambda: self.peer in other.sessions.connected())


class Swarm:
    """Peers that share a root key."""

    def __init__(self) -> None:
        self.root = RootKey.generate()
        self.peers: list[SwarmPeer] = []

    def gate(self, peer: PeerId) -> Membership:
        return Membership(self.root.public_bytes, bind(self.root.invite(), peer))

    async def add(
        self,
        settings: SessionsSettings | None = None,
        *,
        identity: Ed25519PrivateKey | None = None,
        gate: Gate | None = None,
    ) -> SwarmPeer:
        """Starts a peer. gate: its own, for one that is no member."""
        identity = identity or Ed25519PrivateKey.generate()
        peer = peer_id_of(identity.public_key())
        heard = Recorder()
        sessions = Sessions(identity, gate or self.gate(peer), heard, settings or SessionsSettings(listen=LISTEN))
        started = SwarmPeer(peer, sessions, heard, await sessions.start())
        self.peers.append(started)
        return started


@asynccontextmanager
async def swarm() -> AsyncIterator[Swarm]:
    """Its peers are stopped in the end."""
    made = Swarm()
    try:
        yield made
    finally:
        for peer in made.peers:
            await peer.sessions.stop()


def probe(part: int, payload: bytes) -> OutgoingFrame:
    """A frame that can be told by its part."""
    header = FrameHeader(kind=FrameKind.PROBE, codec=0, run=b"run-name", epoch=3, term=1, part=part, samples=part * 7)
    return OutgoingFrame(header, lambda: payload)
