"""The third peer's part: agrees to splices between two others, within limits, and joins the connections that they dial to it.

It sees who speaks with whom and how much, and nothing of what: the bytes are the two peers' own TLS session and sealed lanes.
Refuses to know why they want it, and how bytes are moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from ciuic_p2p.core.paths import DIRECT
from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.contacts import Contacts
from ciuic_p2p.net.envelopes import Kind
from ciuic_p2p.net.meters import Meter
from ciuic_p2p.net.splice_messages import (
    JOINED,
    TICKET_BYTES,
    Called,
    WayGiven,
    pack_called,
    pack_given,
    unpack_asked,
)
from ciuic_p2p.net.splicing import Allowance, most_splices, splice
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.wires import Wire
from ciuic_p2p.terms import PeerId

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardLimits:
    """What this peer does for others."""

    is_on: bool = True
    most: int = 256
    """Splices at once; each is one lane, or a session. Fewer where this process may not open that many files."""
    most_an_asker: int = 64
    """So that one member cannot take all."""
    join_deadline_s: float = 10.0
    """Until both peers have dialled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFacts:
    """What this peer does for others, and did since it started."""

    is_on: bool
    splices: int
    carried_bytes: int
    refused: int
    """Times that a way was asked for and not given."""


@dataclass(eq=False, slots=True)
class _Splice:
    """ends: the asker's and the target's ticket → its connection, None until it has dialled."""

    asker: PeerId
    target: PeerId
    tickets: tuple[bytes, bytes]
    ends: dict[bytes, socket.socket] = field(default_factory=dict)
    joined: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self) -> None:
        for connection in self.ends.values():
            connection.close()


class Forwarder:
    """All methods belong to the event loop's thread."""

    def __init__(self, contacts: Contacts, limits: ForwardLimits, tasks: TaskSet, listens: Callable[[], bool]) -> None:
        self._contacts = contacts
        self._limits = limits
        self._tasks = tasks
        self._listens = listens
        self._tickets: dict[bytes, _Splice] = {}
        """Not used yet."""
        self._of_asker: Counter[PeerId] = Counter()
        self._refused = 0
        self.allowance = Allowance(time.monotonic)
        self.meter = Meter()

    def facts(self) -> ForwardFacts:
        return ForwardFacts(
            is_on=self._limits.is_on,
            splices=self._of_asker.total(),
            carried_bytes=self.meter.read().bytes_sent,
            refused=self._refused,
        )

    def take_asked(self, asker: PeerId, body: bytes) -> None:
        """A peer with a session asks for a way. Raises MalformedMessage."""
        asked = unpack_asked(asker, body)
        reason = self._refusal(asker, asked.target)
        if reason is None:
            tickets = (secrets.token_bytes(TICKET_BYTES), secrets.token_bytes(TICKET_BYTES))
            made = _Splice(asker, asked.target, tickets)
            self._tickets |= dict.fromkeys(tickets, made)
            self._of_asker[asker] += 1
            self._tasks.spawn(self._serve(made))
            self._tell(asked.target, Kind.CALLED, pack_called(Called(tickets[1], asker)))
            self._tell(asker, Kind.GIVEN, pack_given(WayGiven(asked.number, tickets[0])))
        else:
            self._refused += 1
            _log.info("way.refused", asker=asker, target=asked.target, reason=reason)
            self._tell(asker, Kind.GIVEN, pack_given(WayGiven(asked.number, None, reason)))

    async def accept(self, wire: Wire) -> None:
        """A connection that says it has a ticket. Raises PeerUnreachable when that is not good, or was used."""
        ticket = await wire.read_exactly(TICKET_BYTES)
        made = self._tickets.pop(ticket, None)
        if made is None or wire.path != DIRECT:
            raise PeerUnreachable("a connection for a splice that there is not")
        made.ends[ticket] = await wire.blocking_socket()
        if len(made.ends) == len(made.tickets):
            made.joined.set()

    def _refusal(self, asker: PeerId, target: PeerId) -> str | None:
        """Why not; None when there is nothing against it."""
        if not self._limits.is_on or not self._listens():
            return "this peer does not forward"
        if asker == target or not self._is_beside(target):
            return "this peer has no direct session with it"
        if self._of_asker[asker] >= self._limits.most_an_asker or self._of_asker.total() >= min(
            self._limits.most, most_splices()
        ):
            return "there are too many splices"
        return None

    def _is_beside(self, peer: PeerId) -> bool:
        contact = self._contacts.find(peer)
        return contact is not None and contact.link is not None and contact.link.session.path == DIRECT

    def _tell(self, peer: PeerId, kind: Kind, body: bytes) -> None:
        with contextlib.suppress(PeerUnreachable):  # the splice then waits for it in vain
            self._contacts.link_to(peer).session.send(kind, body)

    async def _serve(self, made: _Splice) -> None:
        """The supervisor of one splice."""
        try:
            async with asyncio.timeout(self._limits.join_deadline_s):
                await made.joined.wait()
            near, far = (made.ends[ticket] for ticket in made.tickets)
            near.send(JOINED)
            _log.debug("splice.joined", asker=made.asker, target=made.target)
            await splice(near, far, self.allowance, self._carried)
        except TimeoutError:
            _log.info("splice.not_joined", asker=made.asker, target=made.target, dialled=len(made.ends))
        except OSError as error:
            _log.debug("splice.broke", asker=made.asker, target=made.target, error=str(error))
        finally:
            made.close()
            for ticket in made.tickets:
                self._tickets.pop(ticket, None)
            self._of_asker[made.asker] -= 1
            self._of_asker += Counter()  # drops zeros, or it would grow with every asker

    def _carried(self, size_bytes: int) -> None:
        self.meter.count_received(size_bytes)
        self.meter.count_sent(size_bytes)
