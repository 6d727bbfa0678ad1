"""The `Transport` over the network:

sessions with all peers that are wanted or that come, direct, through a third peer or relayed, and their lanes.

Puts its parts together and refuses to know rounds, and where addresses come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.core.membership import Member
from ciuic_p2p.core.paths import DIRECT, via
from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.contacts import Contacts, Link
from ciuic_p2p.net.dialling import Dialler, DialLimits, OpenStream
from ciuic_p2p.net.envelopes import INSTANCE_BYTES, Envelope, Kind
from ciuic_p2p.net.forwarding import Forwarder, ForwardFacts, ForwardLimits
from ciuic_p2p.net.introduction import Gate, Introducer
from ciuic_p2p.net.lane_group import LaneLimits
from ciuic_p2p.net.linking import Linker, LinkerParts
from ciuic_p2p.net.reception import Reception
from ciuic_p2p.net.session import SessionLimits
from ciuic_p2p.net.strangers import StrangerLimits
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.tcpinfo import TcpInfo
from ciuic_p2p.net.tls import TlsCredentials
from ciuic_p2p.net.transport import OutgoingFrame, Receiver, Traffic, Transport
from ciuic_p2p.net.ways import Prefer, Ways, way_through
from ciuic_p2p.net.wires import StreamWire
from ciuic_p2p.terms import PeerId

_GOODBYE_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsSettings:
    """listen: "host:port" each, port 0 for any. name: shown to other peers."""

    listen: tuple[str, ...] = ("0.0.0.0:0",)
    name: str = ""
    session: SessionLimits = field(default_factory=SessionLimits)
    lanes: LaneLimits = field(default_factory=LaneLimits)
    strangers: StrangerLimits = field(default_factory=StrangerLimits)
    dialling: DialLimits = field(default_factory=DialLimits)
    forwarding: ForwardLimits = field(default_factory=ForwardLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """What is known of an open session. path: as core/paths.py writes it. round_trip_s: of the last ping, None before it."""

    member: Member
    name: str
    path: str
    round_trip_s: float | None
    lanes_broken: int


class Sessions(Transport):
    """Made in the event loop's thread; `start`, then `want` peers, in the end `stop`."""

    def __init__(
        self, identity: Ed25519PrivateKey, gate: Gate, receiver: Receiver, settings: SessionsSettings | None = None
    ) -> None:
        settings = settings or SessionsSettings()
        credentials = TlsCredentials(identity, time.time())
        parts = LinkerParts(
            credentials=credentials,
            introducer=Introducer(gate, settings.name, secrets.token_bytes(INSTANCE_BYTES)),
            receiver=receiver,
            session_limits=settings.session,
            lane_limits=settings.lanes,
        )
        self.peer = credentials.peer
        self._settings = settings
        self._tasks = TaskSet()
        self._contacts = Contacts()
        self._linker = Linker(parts, self._contacts)
        self._reception = Reception(self._linker, settings.strangers, self._tasks)
        self._forwarder = Forwarder(self._contacts, settings.forwarding, self._tasks, lambda: self._reception.is_open)
        self._ways = Ways(self._contacts, lambda peer: self._dialler.addresses_of(peer), self._reception.receive, self._tasks)
        self._dialler = Dialler(self._linker, self._contacts, self._ways, settings.dialling, self._tasks)
        self._reception.accept_splice = self._forwarder.accept
        self._linker.way_told = self._way_told
        self._linker.opened = self._dialler.third_peer_came

    async def start(self) -> tuple[str, ...]:
        """Returns the addresses listened on. Raises AddressUnusable."""
        return self._reception.open(self._settings.listen)

    async def stop(self) -> None:
        """Says goodbye to all and ends within a few seconds. Cannot be started again."""
        self._reception.close()
        self._dialler.close()
        await self._linker.close(_GOODBYE_DEADLINE_S)
        await self._tasks.cancel()

    def use_relay(self, open_stream: OpenStream) -> None:
        """From now on a peer that no direct address reaches is dialled so."""
        self._dialler.open_stream = open_stream

    def prefer_forwarders(self, prefer: Prefer) -> None:
        """From now on third peers are asked for a way in that order; before, the nearest first."""
        self._ways.prefer = prefer

    def want(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Keep a session with this peer, a direct one if that can be. addresses: "host:port" each; none when only a relay
        reaches it.

        Cheap to call again. Raises AddressUnusable when an address is not of that form.
        """
        self._dialler.want(peer, addresses)

    def unwant(self, peer: PeerId) -> None:
        """No more dialling; an open session stays until it ends."""
        self._dialler.unwant(peer)

    def drop(self, peer: PeerId, error: Exception) -> None:
        """Ends the session with a peer, for a reason that `session_closed` is then told. Nothing without a session."""
        contact = self._contacts.find(peer)
        if contact is not None and contact.link is not None:
            contact.link.session.end(error)

    async def accept_stream(self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A relayed stream that `peer` opened. Returns when it is known what it is for; the stream lives on, or was closed."""
        await self._reception.receive(StreamWire(reader, writer, self._tasks, peer), expected=peer)

    def pace(self, peer: PeerId, most_mbps: float | None) -> None:
        """What may be sent to this peer in bulk from now on, in the loop's thread. Nothing without a session."""
        link = self._link(peer)
        if link is not None:
            link.lanes.pace(most_mbps)

    def resize(self, peer: PeerId, lanes: int) -> None:
        """How many lanes to keep to this peer, in the loop's thread. Nothing without a session."""
        link = self._link(peer)
        if link is not None:
            link.lanes.resize(lanes)

    def read_lanes(self, peer: PeerId) -> dict[int, TcpInfo]:
        """What the kernel says of each direct lane, by its number."""
        link = self._link(peer)
        return link.lanes.read() if link is not None else {}

    def is_direct(self, peer: PeerId) -> bool:
        """Whether there is a session over a direct connection; its lanes may go elsewhere."""
        link = self._link(peer)
        return link is not None and link.session.path == DIRECT

    def lanes_go_directly(self, peer: PeerId) -> bool:
        """Not through a third peer, nor over a relay."""
        link = self._link(peer)
        return link is not None and link.lanes.path == DIRECT

    def may_steer(self, peer: PeerId) -> bool:
        """Whether this peer says by which path the lanes to `peer` go: it dials them, and the session is direct."""
        link = self._link(peer)
        return link is not None and self.is_direct(peer) and link.lanes.dial is not None

    def steer(self, peer: PeerId, forwarder: PeerId | None) -> None:
        """The lanes to a peer go through a third one from now on, or directly: None. By themselves they come back when that
        way cannot be dialled; `lanes_moved` is told either way. Nothing unless `may_steer`."""
        link = self._link(peer)
        if link is None or link.lanes.dial is None or link.session.path != DIRECT:
            return
        if forwarder is None:
            link.lanes.steer(DIRECT, link.lanes.dial)
        else:
            link.lanes.steer(via(forwarder), way_through(self._ways, peer, forwarder))

    def forsake(self, forwarder: PeerId) -> None:
        """A peer that is silent: lanes that go through it end, and others take over."""
        for contact in self._contacts:
            if contact.link is not None:
                contact.link.lanes.abandon(via(forwarder))

    def pace_forwarding(self, most_mbps: float | None) -> None:
        """What may be carried for others from now on; None: as fast as it comes."""
        self._forwarder.allowance.most_mbps = most_mbps

    def forwarding(self) -> ForwardFacts:
        """What this peer carries between others."""
        return self._forwarder.facts()

    def waits_for(self, peer: PeerId) -> bool:
        """Whether frames to this peer are queued or not acknowledged."""
        link = self._link(peer)
        return link is not None and link.outbox.unacknowledged() > 0

    def _way_told(self, peer: PeerId, envelope: Envelope) -> None:
        match envelope.kind:
            case Kind.WAY:
                self._forwarder.take_asked(peer, envelope.body)
            case Kind.GIVEN:
                self._ways.take_given(peer, envelope.body)
            case _:
                self._ways.take_called(peer, envelope.body)

    def _link(self, peer: PeerId) -> Link | None:
        contact = self._contacts.find(peer)
        return contact.link if contact is not None else None

    def connected(self) -> frozenset[PeerId]:
        return frozenset(contact.peer for contact in self._contacts if contact.link is not None)

    def send_message(self, peer: PeerId, message: bytes) -> None:
        """Raises ValueError over LARGEST_MESSAGE_BYTES, PeerUnreachable without a session."""
        self._contacts.link_to(peer).session.send(Kind.MESSAGE, message)

    def send_frames(self, peer: PeerId, frames: Iterable[OutgoingFrame]) -> None:
        queued = tuple(frames)
        link = self._contacts.link_to(peer)
        if not link.outbox.put(queued):
            raise PeerUnreachable(f"the session with peer {peer} has just ended")
        if queued:
            link.lanes.want()

    def prepare(self, peer: PeerId) -> None:
        with contextlib.suppress(PeerUnreachable):
            self._contacts.link_to(peer).lanes.want()

    def discard_frames(self, unwanted: Callable[[PeerId, FrameHeader], bool]) -> None:
        """`unwanted` looks at its arguments only and takes no lock."""
        for contact in self._contacts:
            link = contact.link
            if link is not None:
                link.outbox.discard(partial(unwanted, contact.peer))

    def traffic(self) -> Traffic:
        meters = [self._linker.strangers_meter, self._forwarder.meter, *(contact.meter for contact in self._contacts)]
        readings = [meter.read() for meter in meters]
        return Traffic(sum(each.bytes_sent for each in readings), sum(each.bytes_received for each in readings))

    def traffic_with(self, peer: PeerId) -> Traffic:
        """Bytes to and from one peer, since its token was found good."""
        contact = self._contacts.find(peer)
        return contact.meter.read() if contact is not None else Traffic(0, 0)

    def facts(self, peer: PeerId) -> SessionFacts:
        """Raises PeerUnreachable without a session."""
        link = self._contacts.link_to(peer)
        return SessionFacts(
            member=link.session.acquaintance.member,
            name=link.session.acquaintance.hello.name,
            path=link.session.path,
            round_trip_s=link.session.round_trip_s,
            lanes_broken=link.lanes.broken_count,
        )
