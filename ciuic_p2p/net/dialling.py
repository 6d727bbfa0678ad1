"""Keeps sessions up with the peers that are wanted: dials their addresses, then through third peers, then a relay, again and
again with pauses; and while a session is not direct, looks for a better way now and then.

Refuses to know where addresses come from and what a session does.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from ciuic_p2p.core.paths import DIRECT, RELAY
from ciuic_p2p.errors import AddressUnusable, PeerUnreachable, RemoteError, Transient
from ciuic_p2p.net.contacts import Contact, Contacts, Link
from ciuic_p2p.net.linking import Linker, Origin
from ciuic_p2p.net.racing import Way, take_first
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.ways import Ways, way_through
from ciuic_p2p.net.wires import Dial, Streams, StreamWire, Wire, connect, split_address
from ciuic_p2p.terms import PeerId

_log = structlog.get_logger(__name__)
_LASTED_S = 10.0
_random = random.SystemRandom()

OpenStream = Callable[[PeerId], Awaitable[Streams]]
"""Opens a relayed stream to a peer. Raises Transient or RemoteError."""
Take = Callable[[Dial], Coroutine[Any, Any, None]]
"""Dials and makes use of the wire. Raises Transient or RemoteError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialLimits:
    """Pauses and deadlines of dialling."""

    shortest_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    attempt_deadline_s: float = 15.0
    next_address_after_s: float = 0.3
    relay_after_s: float = 3.0
    """After the last address, and after the last third peer: a better way may only be slow."""
    next_forwarder_after_s: float = 1.0
    most_forwarders: int = 3
    """Third peers that are asked for a way in one attempt."""
    shortest_search_pause_s: float = 2.0
    """Before better ways to a peer are tried again; new addresses are tried at once."""
    longest_search_pause_s: float = 60.0


@dataclass(eq=False, slots=True)
class _Wanted:
    """A peer with which a session is kept up."""

    addresses: tuple[str, ...]
    readdressed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there are addresses, or third peers, that were never tried."""
    failed: tuple[str, ...] = ()
    """Addresses that did not answer when a session came up by another way: the next time nobody waits for them."""

    def __post_init__(self) -> None:
        self.readdressed.set()


class Dialler:
    """All methods belong to the event loop's thread."""

    def __init__(self, linker: Linker, contacts: Contacts, ways: Ways, limits: DialLimits, tasks: TaskSet) -> None:
        self._linker = linker
        self._third_peers = ways
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

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Where it is dialled; nothing of one that is not wanted."""
        wanted = self._wanted.get(peer)
        return wanted.addresses if wanted is not None else ()

    def third_peer_came(self, third: PeerId) -> None:
        """It may know a way to those that have no session, or a relayed one."""
        for peer, wanted in self._wanted.items():
            contact = self._contacts.get(peer)
            if peer != third and (contact.link is None or contact.link.session.path == RELAY):
                wanted.readdressed.set()
                contact.changed.set()

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
                if contact.link.session.path != DIRECT and (search is None or search.done()):
                    search = self._tasks.spawn(self._search(contact, wanted))
                await contact.changed.wait()
                contact.changed.clear()
        finally:
            if search is not None:
                search.cancel()
        return time.monotonic() - began > _LASTED_S

    async def _search(self, contact: Contact, wanted: _Wanted) -> None:
        """Until the session is direct: tries other ways with growing pauses, and at once when there are new ones."""
        pause_s = self._limits.shortest_search_pause_s
        while (link := contact.link) is not None and link.session.path != DIRECT:
            await self._pause(wanted.readdressed, pause_s * _random.uniform(0.5, 1.0))
            if wanted.readdressed.is_set():
                pause_s = self._limits.shortest_search_pause_s
                wanted.readdressed.clear()
            pause_s = min(2 * pause_s, self._limits.longest_search_pause_s)
            await self._move(link, wanted.addresses)

    async def _move(self, link: Link, addresses: tuple[str, ...]) -> None:
        offer = partial(self._offer, link)
        ways = self._direct_ways(offer, addresses, self._limits.relay_after_s)
        if link.session.path == RELAY:
            ways += self._forwarded_ways(offer, link.session.peer)
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
        addresses = wanted.addresses
        try:
            await take_first(self._ways(peer, wanted))
            link = self._contacts.get(peer).link
            wanted.failed = addresses if link is not None and link.session.path != DIRECT else ()
        except RemoteError as error:
            _log.warning("peer.refused", peer=peer, error=str(error))
        except Transient as error:
            _log.info("peer.unreachable", peer=peer, error=str(error))

    def _ways(self, peer: PeerId, wanted: _Wanted) -> list[Way]:
        """The direct addresses one after the other, third peers when none of them answers in time, and then the relay."""
        attempt = partial(self._attempt, peer)
        forwarded = self._forwarded_ways(attempt, peer)
        is_hopeless = bool(forwarded) and wanted.addresses == wanted.failed
        last_head_start_s = self._limits.next_address_after_s if is_hopeless else self._limits.relay_after_s
        ways = [*self._direct_ways(attempt, wanted.addresses, last_head_start_s), *forwarded]
        if self.open_stream is not None:
            ways.append(Way(partial(attempt, partial(self._dial_relay, peer, self.open_stream)), 0.0))
        return ways

    def _direct_ways(self, take: Take, addresses: tuple[str, ...], last_head_start_s: float) -> list[Way]:
        dials = [partial(connect, address) for address in addresses]
        return _in_turn(take, dials, self._limits.next_address_after_s, last_head_start_s)

    def _forwarded_ways(self, take: Take, peer: PeerId) -> list[Way]:
        forwarders = self._third_peers.forwarders(peer)[: self._limits.most_forwarders]
        dials = [way_through(self._third_peers, peer, forwarder) for forwarder in forwarders]
        return _in_turn(take, dials, self._limits.next_forwarder_after_s, self._limits.relay_after_s)

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


def _in_turn(take: Take, dials: Sequence[Dial], head_start_s: float, last_head_start_s: float) -> list[Way]:
    """Each with a head start before the next, the last one before whatever comes after them."""
    ways = [Way(partial(take, dial), head_start_s) for dial in dials]
    if ways:
        ways[-1] = Way(ways[-1].attempt, last_head_start_s)
    return ways
