"""For tests of sessions: a relay inside the test's process, and identities of which one decides."""

from __future__ import annotations

import asyncio
import socket

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.wires import Streams
from ciuic_p2p.terms import PeerId
from ciuic_p2p.testing.recorder import PATIENCE_S
from ciuic_p2p.testing.swarm import Swarm, SwarmPeer

_PIECE_BYTES = 16 << 10


class RelayInside:
    """Plays libp2p: carries streams from one peer to another, counts what it carries, and can be slow or go away."""

    def __init__(self, members: Swarm, *, delay_s: float = 0.0) -> None:
        """delay_s: of each piece of 16 KiB."""
        self._members = members
        self._delay_s = delay_s
        self._writers: list[asyncio.StreamWriter] = []
        self._gone = False
        self._open = 0
        self._closed = asyncio.Event()
        self.tasks = TaskSet()
        self.opened = 0
        self.carried_bytes = 0

    def serve(self, dialler: SwarmPeer) -> None:
        async def open_stream(peer: PeerId) -> Streams:
            if self._gone:
                raise PeerUnreachable("there is no relay")
            self.opened += 1
            target = next(each for each in self._members.peers if each.peer == peer)
            ours, near = await self._pair()
            theirs, far = await self._pair()
            self.tasks.spawn(self._carry(near[0], far[1]))
            self.tasks.spawn(self._carry(far[0], near[1]))
            self.tasks.spawn(target.sessions.accept_stream(dialler.peer, *theirs))
            return ours

        dialler.sessions.use_relay(open_stream)

    async def until_left(self) -> None:
        """By both peers: all streams were closed. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while self._open:
                self._closed.clear()
                await self._closed.wait()

    def vanish(self) -> None:
        """Breaks all streams and opens no more."""
        self._gone = True
        for writer in self._writers:
            writer.transport.abort()

    async def _pair(self) -> tuple[Streams, Streams]:
        one, other = socket.socketpair()
        streams = await asyncio.open_connection(sock=one), await asyncio.open_connection(sock=other)
        self._writers.append(streams[1][1])
        return streams

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            while data := await reader.read(_PIECE_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                self.carried_bytes += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one of the peers has closed it
        finally:
            writer.close()
            self._open -= 1
            self._closed.set()


async def identity_beside(peer: PeerId, *, lower: bool) -> Ed25519PrivateKey:
    """An identity whose peer id is lower, or higher, than `peer`."""
    while True:
        identity = Ed25519PrivateKey.generate()
        if (peer_id_of(identity.public_key()) < peer) == lower:
            return identity
