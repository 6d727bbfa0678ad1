"""Ways to a peer through a third one: asks for them, and answers when a third peer calls because another asked.

Refuses to know what is said over a way, and which third peer is the best.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count

import structlog

from ciuic_p2p.core.paths import DIRECT, via
from ciuic_p2p.errors import AddressUnusable, PeerUnreachable, RemoteError
from ciuic_p2p.net.contacts import Contacts
from ciuic_p2p.net.envelopes import Kind
from ciuic_p2p.net.racing import Way, take_first
from ciuic_p2p.net.splice_messages import (
    JOINED,
    SPLICE_MAGIC,
    WayAsked,
    pack_asked,
    unpack_called,
    unpack_given,
)
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.wires import Dial, TcpWire, Wire, connect
from ciuic_p2p.terms import PeerId

_log = structlog.get_logger(__name__)
_DEADLINE_S = 12.0
"""To ask, to dial, and until the other peer has dialled."""
_NEXT_ADDRESS_AFTER_S = 0.3
_MOST_CALLS = 64
"""Of one forwarder that are being answered; more are not."""

AddressesOf = Callable[[PeerId], tuple[str, ...]]
"""Where a peer may be dialled, as its record says."""
Prefer = Callable[[PeerId, Sequence[PeerId]], Sequence[PeerId]]
"""Given a target and the peers with a direct session, says which of them to ask, the best first."""
Receive = Callable[[Wire, PeerId], Awaitable[None]]
"""Takes a connection in which this peer did not choose what it is for; from the peer that is named."""


class Ways:
    """All methods belong to the event loop's thread."""

    def __init__(self, contacts: Contacts, addresses_of: AddressesOf, receive: Receive, tasks: TaskSet) -> None:
        self._contacts = contacts
        self._addresses_of = addresses_of
        self._receive = receive
        self._tasks = tasks
        self._numbers = count()
        self._asked: dict[int, tuple[PeerId, asyncio.Future[bytes]]] = {}
        self._answering: Counter[PeerId] = Counter()
        self.prefer: Prefer = lambda _target, beside: beside

    def forwarders(self, target: PeerId) -> list[PeerId]:
        """Whom to ask for a way: the peers with a direct session, the nearest first, unless `prefer` knows better."""
        beside = [
            (contact.link.session.round_trip_s or 0.0, contact.peer)
            for contact in self._contacts
            if contact.link is not None and contact.link.session.path == DIRECT and contact.peer != target
        ]
        return list(self.prefer(target, [peer for _, peer in sorted(beside)]))

    async def dial(self, target: PeerId, forwarder: PeerId) -> Wire:
        """A connection to `target` through `forwarder`. Raises PeerUnreachable, also when it is refused."""
        try:
            async with asyncio.timeout(_DEADLINE_S):
                ticket = await self._ask(target, forwarder)
                return await self._enter(ticket, forwarder, JOINED)
        except TimeoutError:
            raise PeerUnreachable(f"peer {forwarder} gave no way to peer {target} in time") from None

    def take_given(self, forwarder: PeerId, body: bytes) -> None:
        """An answer. Raises MalformedMessage; one that nobody waits for any more is nothing."""
        given = unpack_given(forwarder, body)
        asked_of, answer = self._asked.get(given.number, (None, None))
        if answer is None or asked_of != forwarder or answer.done():
            return
        if given.ticket is not None:
            answer.set_result(given.ticket)
        else:
            answer.set_exception(PeerUnreachable(f"peer {forwarder} gives no way ({given.reason!r:.200})"))

    def take_called(self, forwarder: PeerId, body: bytes) -> None:
        """Another peer wants to come by `forwarder`. Raises MalformedMessage."""
        called = unpack_called(forwarder, body)
        if self._answering[forwarder] < _MOST_CALLS:
            self._answering[forwarder] += 1
            self._tasks.spawn(self._answer(forwarder, called.asker, called.ticket))

    async def _ask(self, target: PeerId, forwarder: PeerId) -> bytes:
        number = next(self._numbers) % (1 << 32)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = forwarder, answer
        try:
            self._contacts.link_to(forwarder).session.send(Kind.WAY, pack_asked(WayAsked(number, target)))
            return await answer
        finally:
            del self._asked[number]

    async def _answer(self, forwarder: PeerId, asker: PeerId, ticket: bytes) -> None:
        try:
            async with asyncio.timeout(_DEADLINE_S):
                wire = await self._enter(ticket, forwarder)
            await self._receive(wire, asker)
        except (TimeoutError, PeerUnreachable, RemoteError) as error:
            _log.info("way.not_entered", forwarder=forwarder, asker=asker, error=str(error))
        finally:
            self._answering[forwarder] -= 1
            self._answering += Counter()  # drops zeros

    async def _enter(self, ticket: bytes, forwarder: PeerId, awaits: bytes = b"") -> Wire:
        """Dials the forwarder with a ticket; returns when it has said `awaits`."""
        wire = await self._dial_forwarder(forwarder)
        try:
            await wire.write(SPLICE_MAGIC + ticket)
            if await wire.read_exactly(len(awaits)) != awaits:
                raise PeerUnreachable(f"peer {forwarder} does not forward as it should")
        except BaseException:  # also when cancelled: nobody else knows of the wire
            wire.close()
            raise
        wire.path = wire.source = via(forwarder)
        return wire

    async def _dial_forwarder(self, forwarder: PeerId) -> Wire:
        """As the session with it was dialled, if this peer did that; else where its record says."""
        link = self._contacts.link_to(forwarder).lanes
        if link.dial is not None:
            wire = await link.dial()
            if wire.path == DIRECT:
                return wire
            wire.close()
        return await _connect_any(self._addresses_of(forwarder))


async def _connect_any(addresses: tuple[str, ...]) -> Wire:
    """The first that answers. Raises PeerUnreachable."""
    found: list[TcpWire] = []

    async def attempt(address: str) -> None:
        try:
            found.append(await connect(address))
        except AddressUnusable as error:
            raise PeerUnreachable(error.what) from error

    try:
        await take_first([Way(partial(attempt, address), _NEXT_ADDRESS_AFTER_S) for address in addresses])
    finally:
        for superfluous in found[1:]:
            superfluous.close()
    return found[0]


def way_through(ways: Ways, target: PeerId, forwarder: PeerId) -> Dial:
    """For dialling such a way again and again: a session's, then its lanes'."""
    return partial(ways.dial, target, forwarder)
