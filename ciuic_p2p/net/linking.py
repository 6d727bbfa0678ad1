"""Makes a session out of a wire and holds it until it ends:

TLS, tokens, the choice between connections, then messages and lanes.

Refuses to know where wires come from; it is given accepted and dialled ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import structlog

from ciuic_p2p.errors import PeerUnreachable, RemoteError
from ciuic_p2p.net.contacts import Contact, Contacts, Link
from ciuic_p2p.net.envelopes import Envelope, Kind, SessionName, pack_generation, unpack_generation
from ciuic_p2p.net.introduction import Introducer, receive_kind
from ciuic_p2p.net.lane_group import LaneGroup, LaneGroupParts, LaneLimits
from ciuic_p2p.net.lane_opening import OPENING_BYTES, LaneOpening, session_of
from ciuic_p2p.net.meters import Meter
from ciuic_p2p.net.moving import Mover, Watch
from ciuic_p2p.net.outbox import Outbox
from ciuic_p2p.net.pairing import decides
from ciuic_p2p.net.secure_stream import SecureStream
from ciuic_p2p.net.session import Session, SessionLimits
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.tls import TlsCredentials
from ciuic_p2p.net.transport import Receiver
from ciuic_p2p.net.wires import Dial, Wire
from ciuic_p2p.terms import PeerId

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a wire came about. dial: makes another one like it; None when the other side dialled.

    expected: who must be on the other side, where that is known. first_bytes: what was read from it already."""

    dial: Dial | None = None
    expected: PeerId | None = None
    first_bytes: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkerParts:
    """What all links have in common."""

    credentials: TlsCredentials
    introducer: Introducer
    receiver: Receiver
    session_limits: SessionLimits
    lane_limits: LaneLimits


class Linker:
    """All methods belong to the event loop's thread."""

    def __init__(self, parts: LinkerParts, contacts: Contacts) -> None:
        self._parts = parts
        self._contacts = contacts
        self._holding = TaskSet()
        self._links: dict[bytes, Link] = {}
        self._generations = count(1)
        self.strangers_meter = Meter()
        self.way_told: Callable[[PeerId, Envelope], None] = _ignore
        """What peers say of ways through third ones. Raises MalformedMessage."""
        self.opened: Callable[[PeerId], None] = _ignore
        """A session is up."""

    async def link(self, wire: Wire, origin: Origin) -> None:
        """Returns when the session is open, or is superfluous because another is. Raises RemoteError, PeerUnreachable.

        The caller sets the deadline.
        """
        channel = self._parts.credentials.channel(dialing=origin.dial is not None)
        stream = SecureStream(await wire.streams(), channel, self.strangers_meter)
        held = False
        try:
            link = await self._introduce(wire.path, stream, origin)
            try:
                held = await self._agree(link, stream)
            finally:
                if not held:
                    await self._drop(link)
        finally:
            if not held:
                stream.close()

    async def accept_lane(self, wire: Wire, first_bytes: bytes) -> None:
        """Gives the wire to the session that its opening names. Raises PeerUnreachable when there is none, or it is forged."""
        link, opening = await self._recognise(wire, first_bytes)
        connection = await wire.blocking_socket()
        try:
            link.lanes.accept(connection, opening, wire.path)
        except PeerUnreachable:
            connection.close()
            raise

    async def accept_path(self, wire: Wire, first_bytes: bytes) -> None:
        """Offers the wire to the session that its opening names. Raises PeerUnreachable as `accept_lane` does."""
        link, opening = await self._recognise(wire, first_bytes)
        await link.mover.accept(wire, opening)

    async def close(self, deadline_s: float) -> None:
        """Says goodbye to all."""
        for contact in self._contacts:
            if contact.link is not None:
                contact.link.lanes.retire()
                contact.link.session.say_goodbye()
        await self._holding.finish(deadline_s)

    async def _recognise(self, wire: Wire, first_bytes: bytes) -> tuple[Link, LaneOpening]:
        opening = first_bytes + await wire.read_exactly(OPENING_BYTES - len(first_bytes))
        link = self._links.get(session_of(opening))
        verified = link.lanes.verify(opening) if link is not None else None
        if link is None or verified is None:
            raise PeerUnreachable("a connection that belongs to no session")
        await link.opened.wait()
        return link, verified

    async def _introduce(self, path: str, stream: SecureStream, origin: Origin) -> Link:
        peer = await stream.shake_hands(origin.first_bytes)
        if origin.expected not in (None, peer):
            raise RemoteError(origin.expected, f"peer {peer} answered in its place")
        if peer == self._parts.credentials.peer:
            raise RemoteError(peer, "that is this peer itself")
        known = self._contacts.find(peer)
        ended = known.pairing.ended if known is not None else None
        acquaintance = await self._parts.introducer.introduce(stream, peer, ended)
        stream.meter = self._contacts.get(peer).meter
        session = Session(acquaintance, stream, path, self._parts.session_limits)
        link = self._make_link(session, origin.dial)
        self._links[session.lane_keys.session_id] = link
        return link

    def _make_link(self, session: Session, dial: Dial | None) -> Link:
        outbox = Outbox()
        parts = LaneGroupParts(
            peer=session.peer,
            decides=decides(self._parts.credentials.peer, session.peer),
            keys=session.lane_keys,
            outbox=outbox,
            meter=self._contacts.get(session.peer).meter,
            path=session.path,
            dial=dial,
            ask=lambda count: session.send(Kind.LANES, bytes([count])),
            say_drained=partial(session.send, Kind.DRAINED),
            say_steered=partial(session.send, Kind.STEER),
            path_chosen=partial(self._report_lanes, session),
            frame_received=partial(self._parts.receiver.frame_received, session.peer),
            end_session=session.end,
        )
        lanes = LaneGroup(parts, self._parts.lane_limits)
        watch = Watch(left=lanes.move, moved=partial(self._report_moved, session))
        mover = Mover(session, parts.meter, watch, decides=parts.decides)
        return Link(session, outbox, lanes, mover)

    async def _agree(self, link: Link, stream: SecureStream) -> bool:
        """Whether this connection became the session; if so, it is held from now on."""
        session = link.session
        contact = self._contacts.get(session.peer)
        hello = session.acquaintance.hello
        if decides(self._parts.credentials.peer, session.peer):
            if not contact.pairing.may_open(hello):
                stream.send(Kind.GOODBYE)
                return False
            name = SessionName(self._parts.introducer.instance, next(self._generations))
            stream.send(Kind.OPEN, pack_generation(name.generation))
        else:
            body = await receive_kind(stream, session.peer, Kind.OPEN)
            name = SessionName(hello.instance, unpack_generation(session.peer, body))
            if not contact.pairing.is_newer(name):
                return False
        self._open(contact, link, name)
        return True

    def _open(self, contact: Contact, link: Link, name: SessionName) -> None:
        old = contact.link
        if old is not None:
            error = PeerUnreachable(f"peer {contact.peer} has opened a new session")
            old.session.end(error)
            self._report_closed(contact, old, error)
        contact.link = link
        contact.pairing.opened(name, link.session.acquaintance.hello.instance)
        contact.changed.set()
        _log.info("session.opened", peer=contact.peer, path=link.session.path)
        self._parts.receiver.session_opened(contact.peer, link.session.path)
        link.opened.set()
        self.opened(contact.peer)
        self._holding.spawn(self._hold(contact, link))

    async def _hold(self, contact: Contact, link: Link) -> None:
        error: Exception | None = None
        try:
            message_received = partial(self._parts.receiver.message_received, contact.peer)
            error = await link.session.converse(message_received, partial(self._take, link))
        except Exception as defect:  # the supervisor of one session: a defect in the layer above ends this session only
            _log.exception("session.failed", peer=contact.peer)
            error = defect
        finally:
            self._report_closed(contact, link, error)
            await self._drop(link)

    def _take(self, link: Link, envelope: Envelope) -> None:
        match envelope.kind:
            case Kind.LANES:
                link.lanes.answer(envelope.body[0] if envelope.body else 0)
            case Kind.DRAINED:
                link.lanes.peer_drained(envelope.body)
            case Kind.STEER:
                link.lanes.steered(envelope.body)
            case Kind.WAY | Kind.GIVEN | Kind.CALLED:
                self.way_told(link.session.peer, envelope)
            case _:
                link.mover.take(envelope)

    def _report_moved(self, session: Session) -> None:
        self._contacts.get(session.peer).changed.set()
        _log.info("session.moved", peer=session.peer, path=session.path)
        self._parts.receiver.session_moved(session.peer, session.path)

    def _report_lanes(self, session: Session, path: str) -> None:
        _log.info("lanes.steered", peer=session.peer, path=path)
        self._parts.receiver.lanes_moved(session.peer, path)

    def _report_closed(self, contact: Contact, link: Link, error: Exception | None) -> None:
        """Once: a link that was replaced is reported when that happens, not when its connection ends."""
        if contact.link is not link:
            return
        contact.link = None
        contact.pairing.closed()
        contact.changed.set()
        _log.info("session.closed", peer=contact.peer, why="goodbye" if error is None else str(error))
        link.outbox.close()
        self._parts.receiver.session_closed(contact.peer, error)

    async def _drop(self, link: Link) -> None:
        self._links.pop(link.session.lane_keys.session_id, None)
        link.mover.close()
        await link.lanes.close()


def _ignore(*_: object) -> None:
    """Until somebody wants to be told."""
