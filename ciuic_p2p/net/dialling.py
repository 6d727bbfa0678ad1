"""Keeps sessions up with the peers that are wanted: dials their addresses, then a relay, again and again with pauses; and
while a session is relayed, looks for a direct way now and then.

Refuses to know where addresses come from and what a session does.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from ciuic_p2p.errors import AddressUnusable, PeerUnreachable, RemoteError, Transient
from ciuic_p2p.net.contacts import Contact, Contacts, Link
from ciuic_p2p.net.linking import Linker, Origin
from ciuic_p2p.net.racing import Way, take_first
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.wires import RELAY, Dial, Streams, StreamWire, Wire, connect, split_address
from ciuic_p2p.terms import PeerId

_log = structlog.get_logger(__name__)
_LASTED_S = 10.0
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
    shortest_search_pause_s: float = 2.0
    """Before the direct addresses of a peer with a relayed session are tried again; new ones are tried at once."""
    longest_search_pause_s: float = 60.0


@dataclass(eq=False, slots=True)
class _Wanted:
    """A peer with which a session is kept up."""

    addresses: tuple[str, ...]
    readdressed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there are addresses that were never tried."""

    def __post_init__(self) -> None:
        self.readdressed.set()


class Dialler:
    """All methods belong to the event loop's thread."""

    def __init__(self, linker: Linker, contacts: Contacts, limits: DialLimits, tasks: TaskSet) -> None:
        self._linker = linker
        self._contacts = contacts
        self._limits = limits
        self._tasks = tasks
        self._wanted: dict[PeerId, _Wanted] = {}
        self._keeping: dict[PeerId, asyncio.Task[None]] = {}
        self.open_stream: OpenStream | None = None

    def want(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Cheap to call again, with the same or other addresses. Raises AddressUnusable when one is not "host:port"."""
        for address in addresses:
            split_address(address)
        wanted = self._wanted.get(peer)
        if wanted is None:
            wanted = self._wanted[peer] = _Wanted(addresses)
            self._keeping[peer] = self._tasks.spawn(self._keep(peer, wanted))
        elif wanted.addresses != addresses:
            wanted.addresses = addresses
            wanted.readdressed.set()
            self._contacts.get(peer).changed.set()

    def unwant(self, peer: PeerId) -> None:
        """No more dialling; an open session stays until it ends."""
        self._wanted.pop(peer, None)
        keeping = self._keeping.pop(peer, None)
        if keeping is not None:
            keeping.cancel()

    def close(self) -> None:
        for peer in list(self._keeping):
            self.unwant(peer)

    async def _keep(self, peer: PeerId, wanted: _Wanted) -> None:
        contact = self._contacts.get(peer)
        pause_s = self._limits.shortest_pause_s
        while True:
            contact.changed.clear()
            if contact.link is None:
                await self._reach(peer, wanted)
            if contact.link is not None and await self._lasted(contact, wanted):
                pause_s = self._limits.shortest_pause_s
            await self._pause(contact.changed, pause_s * _random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, self._limits.longest_pause_s)

    async def _lasted(self, contact: Contact, wanted: _Wanted) -> bool:
        """Waits until the session ends. False when it was short: then the pauses grow as if there had been none."""
        began = time.monotonic()
        search: asyncio.Task[None] | None = None
        try:
            while contact.link is not None:
                if contact.link.session.path == RELAY and (search is None or search.done()):
                    search = self._tasks.spawn(self._search(contact, wanted))
                await contact.changed.wait()
                contact.changed.clear()
        finally:
            if search is not None:
                search.cancel()
        return time.monotonic() - began > _LASTED_S

    async def _search(self, contact: Contact, wanted: _Wanted) -> None:
        """Until the session is direct: tries the addresses with growing pauses, and at once when there are new ones."""
        pause_s = self._limits.shortest_search_pause_s
        while (link := contact.link) is not None and link.session.path == RELAY:
            await self._pause(wanted.readdressed, pause_s * _random.uniform(0.5, 1.0))
            if wanted.readdressed.is_set():
                pause_s = self._limits.shortest_search_pause_s
                wanted.readdressed.clear()
            pause_s = min(2 * pause_s, self._limits.longest_search_pause_s)
            await self._move(link, wanted.addresses)

    async def _move(self, link: Link, addresses: tuple[str, ...]) -> None:
        ways = [
            Way(partial(self._offer, link, partial(connect, address)), self._limits.next_address_after_s)
            for address in addresses
        ]
        try:
            await take_first(ways)
        except (Transient, RemoteError) as error:
            _log.debug("peer.not_direct", peer=link.session.peer, error=str(error))

    async def _pause(self, changed: asyncio.Event, pause_s: float) -> None:
        """Shorter when what is waited for happens: a session opened meanwhile, new addresses came."""
        try:
            async with asyncio.timeout(pause_s):
                await changed.wait()
        except TimeoutError:
            pass

    async def _reach(self, peer: PeerId, wanted: _Wanted) -> None:
        wanted.readdressed.clear()
        try:
            await take_first(self._ways(peer, wanted.addresses))
        except RemoteError as error:
            _log.warning("peer.refused", peer=peer, error=str(error))
        except Transient as error:
            _log.info("peer.unreachable", peer=peer, error=str(error))

    def _ways(self, peer: PeerId, addresses: tuple[str, ...]) -> list[Way]:
        """The direct addresses one after the other, and the relay when none of them answers in time."""
        ways = [
            Way(partial(self._attempt, peer, partial(connect, address)), self._limits.next_address_after_s)
            for address in addresses
        ]
        if ways:
            ways[-1] = Way(ways[-1].attempt, self._limits.relay_after_s)
        if self.open_stream is not None:
            ways.append(Way(partial(self._attempt, peer, partial(self._dial_relay, peer, self.open_stream)), 0.0))
        return ways

    async def _offer(self, link: Link, dial: Dial) -> None:
        try:
            async with asyncio.timeout(self._limits.attempt_deadline_s):
                await link.mover.offer(dial)
        except TimeoutError:
            raise PeerUnreachable("the session did not move in time") from None
        except AddressUnusable as error:
            raise PeerUnreachable(error.what) from error

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
