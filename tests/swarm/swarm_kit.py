"""Peers for the tests of the libp2p network: real child processes on loopback, real keys, membership by a root key's signature."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.records import Capacity, PeerRecord
from ciuic_p2p.errors import NotAMember
from ciuic_p2p.net.discovery import Discovery, Pace
from ciuic_p2p.net.home import Home
from ciuic_p2p.net.identity import Identity
from ciuic_p2p.net.p2p import P2PNetwork, P2PSettings
from ciuic_p2p.terms import PeerId

SWARM = "testswarm"
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
QUICK = Pace(publish_every_s=0.5, poll_every_s=0.2, fresh_for_s=3.0)


class RootGate:
    """A member is whoever shows the root key's signature of its own peer id."""

    def __init__(self, root: Ed25519PrivateKey, peer: PeerId) -> None:
        self._root = root.public_key()
        self._token = root.sign(peer.encode())
        self.revoked: set[PeerId] = set()
        self.asked: list[PeerId] = []

    def my_token(self) -> bytes:
        return self._token

    def admit(self, peer: PeerId, token: bytes, now: float) -> None:
        self.asked.append(peer)
        try:
            self._root.verify(token, peer.encode())
        except InvalidSignature:
            raise NotAMember(peer, "no token of this swarm") from None
        if peer in self.revoked:
            raise NotAMember(peer, "revoked")


class Notes:
    """Remembers what discovery reported, and lets a test wait for it."""

    def __init__(self) -> None:
        self.records: dict[PeerId, PeerRecord] = {}
        self.lost: list[PeerId] = []
        self._changed = asyncio.Condition()

    def record_arrived(self, record: PeerRecord) -> None:
        self.records[record.peer_id] = record
        self._wake()

    def peer_lost(self, peer: PeerId) -> None:
        self.lost.append(peer)
        self._wake()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(holds)

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._waker = asyncio.ensure_future(notify())


@dataclass
class TestPeer:
    """One peer: identity in a folder of its own, network, discovery."""

    __test__ = False
    name: str
    identity: Identity
    gate: RootGate
    network: P2PNetwork
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        self.discovery = Discovery(self.network, self.identity, SWARM, self.describe, self.notes)
        self.discovery.pace = QUICK

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    def describe(self) -> PeerRecord:
        return PeerRecord(
            peer_id=self.peer_id,
            name=self.name,
            region="eu",
            version="0.1.0",
            capacity=Capacity(cores=2, memory_bytes=1 << 30, free_disk_bytes=1 << 30),
            started_at_s=1_700_000_000,
        )


def new_identity() -> Identity:
    with Home.open(tempfile.mkdtemp(prefix="ciuic-test-")) as home:
        return Identity.of_home(home)


class TestSwarm:
    """Makes peers of one root key and stops whatever it has started."""

    __test__ = False

    def __init__(self) -> None:
        self.root = Ed25519PrivateKey.generate()
        self._peers: list[TestPeer] = []

    def peer(self, name: str, join: tuple[str, ...] = (), *, identity: Identity | None = None, **settings: object) -> TestPeer:
        identity = identity or new_identity()
        gate = RootGate(self.root, identity.peer_id)
        given = {"listen": LOOPBACK, "map_ports": False, "auto_relay": False, "call_limit_s": 3.0} | settings
        peer = TestPeer(name, identity, gate, P2PNetwork(P2PSettings(identity_file=identity.file, join=join, **given), gate))
        self._peers.append(peer)
        return peer

    async def started(self, name: str, join: tuple[str, ...] = (), **settings: object) -> TestPeer:
        peer = self.peer(name, join, **settings)
        await peer.network.start()
        return peer

    async def stop(self) -> None:
        for peer in self._peers:
            await peer.discovery.stop()
            await peer.network.stop()


@asynccontextmanager
async def swarm() -> AsyncIterator[TestSwarm]:
    it = TestSwarm()
    try:
        yield it
    finally:
        await it.stop()


async def eventually(holds: Callable[[], object], what: str, limit_s: float = 20.0) -> None:
    """For states that nobody announces."""
    try:
        async with asyncio.timeout(limit_s):
            while not holds():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never came true: {what}") from None


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
