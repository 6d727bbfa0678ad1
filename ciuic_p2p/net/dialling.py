"""Keeps sessions up with the peers that are wanted: dials their addresses, then a relay, again and again with pauses.

Refuses to know where addresses come from and what a session does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from ciuic_p2p.errors import AddressUnusable, PeerUnreachable, RemoteError, Transient
from ciuic_p2p.net.contacts import Contacts
from ciuic_p2p.net.linking import Dial, Linker, Origin
from ciuic_p2p.net.racing import Way, take_first
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.wires import Streams, StreamWire, Wire, connect, split_address
from ciuic_p2p.terms import PeerId

_log = structlog.get_logger(__name__)
_random = random.SystemRandom()

OpenStream = Callable[[PeerId], Awaitable[Streams]]
"""Opens a relayed stream to a peer. Raises Transient or RemoteError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialLimits:
    """Pauses and deadlines of dialling."""

    shortest_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    attempt_deadline_s: float = 15.0
    next_address_after_s: float = 0.3
    relay_after_s: float = 3.0


class Dialler:
    """All methods belong to the event loop's thread."""

    def __init__(self, linker: Linker, contacts: Contacts, limits: DialLimits, tasks: TaskSet) -> None:
        self._linker = linker
        self._contacts = contacts
        self._limits = limits
        self._tasks = tasks
        self._addresses: dict[PeerId, tuple[str, ...]] = {}
        self._keeping: dict[PeerId, asyncio.Task[None]] = {}
        self.open_stream: OpenStream | None = None

    def want(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Cheap to call again, with the same or other addresses. Raises AddressUnusable when one is not "host:port"."""
        for address in addresses:
            split_address(address)
        changed = self._addresses.get(peer) != addresses
        self._addresses[peer] = addresses
        contact = self._contacts.get(peer)
        if peer not in self._keeping:
            self._keeping[peer] = self._tasks.spawn(self._keep(peer))
        elif changed and contact.link is None:
            contact.changed.set()

    def unwant(self, peer: PeerId) -> None:
        """No more dialling; an open session stays until it ends."""
        self._addresses.pop(peer, None)
        keeping = self._keeping.pop(peer, None)
        if keeping is not None:
            keeping.cancel()

    def close(self) -> None:
        for peer in list(self._keeping):
            self.unwant(peer)

    async def _keep(self, peer: PeerId) -> None:
        contact = self._contacts.get(peer)
        pause_s = self._limits.shortest_pause_s
        while True:
            contact.changed.clear()
            if contact.link is None:
                await self._reach(peer)
            if contact.link is not None:
                pause_s = self._limits.shortest_pause_s
                await contact.changed.wait()
                continue
            await self._pause(contact.changed, pause_s * _random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, self._limits.longest_pause_s)

    async def _pause(self, changed: asyncio.Event, pause_s: float) -> None:
        """Shorter when a session opened meanwhile or new addresses came."""
        try:
            async with asyncio.timeout(pause_s):
                await changed.wait()
        except TimeoutError:
            pass

    async def _reach(self, peer: PeerId) -> None:
        try:
            await take_first(self._ways(peer))
        except RemoteError as error:
            _log.warning("peer.refused", peer=peer, error=str(error))
        except Transient as error:
            _log.info("peer.unreachable", peer=peer, error=str(error))

    def _ways(self, peer: PeerId) -> list[Way]:
        """The direct addresses one after the other, and the relay when none of them answers in time."""
        addresses = self._addresses.get(peer, ())
        ways = [
            Way(partial(self._attempt, peer, partial(connect, address)), self._limits.next_address_after_s)
            for address in addresses
        ]
        if ways:
            ways[-1] = Way(ways[-1].attempt, self._limits.relay_after_s)
        if self.open_stream is not None:
            ways.append(Way(partial(self._attempt, peer, partial(self._dial_relay, peer, self.open_stream)), 0.0))
        return ways

    async def _attempt(self, peer: PeerId, dial: Dial) -> None:
        try:
            async with asyncio.timeout(self._limits.attempt_deadline_s):
                wire = await dial()
                try:
                    await self._linker.link(wire, Origin(dial=dial, expected=peer))
                finally:
                    wire.close()
        except TimeoutError:
            raise PeerUnreachable("the handshake took too long") from None
        except AddressUnusable as error:
            raise PeerUnreachable(error.what) from error

    async def _dial_relay(self, peer: PeerId, open_stream: OpenStream) -> Wire:
        reader, writer = await open_stream(peer)
        return StreamWire(reader, writer, self._tasks, peer)
