"""The other peers as this one sees them: records, sessions, presence, links. Probes them; reports who came and who is lost.

Lives in the event loop's thread, but for the goodput meters, which lane threads feed. Knows no runs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from ciuic_p2p.core.frames import FrameHeader, FrameKind
from ciuic_p2p.core.liveness import MOST_SUSPECTS, Liveness
from ciuic_p2p.core.measuring import GoodputMeter, RttMeter
from ciuic_p2p.core.messages import Introduction, LinkMeasure, LinkReport, Message, Ping, Pong, Suspects, encode
from ciuic_p2p.core.paths import DIRECT, RELAY, Leg
from ciuic_p2p.core.records import PeerRecord, decode_record
from ciuic_p2p.core.sampling import probing_period_s
from ciuic_p2p.core.topology import Link, Place
from ciuic_p2p.errors import AddressUnusable, MalformedMessage, PeerUnreachable
from ciuic_p2p.net.sessions import Sessions
from ciuic_p2p.net.transport import OutgoingFrame
from ciuic_p2p.terms import UNKNOWN_REGION, PeerId

log = structlog.get_logger(__name__)

MOST_PROBES_UNANSWERED = 16
PROBE_FRAME_BYTES = 64 << 10
PROBE_FRAMES = 8
"""Half a MiB: enough for a first figure, little beside one round."""
PROBE_AGAIN_S = 300.0
"""A link that carried nothing for so long is timed again, or later on a slow line."""
MOST_RECORDS_KNOWN = 256


class Watcher(Protocol):
    """Who is told, in the loop's thread."""

    def peer_arrived(self, peer: PeerId) -> None:
        """A session is open and the peer has introduced itself."""

    def peer_gone(self, peer: PeerId) -> None:
        """It left, died or froze."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """timed_bytes: in all bursts that were long enough to time. burst_bytes: in the last one of them."""

    timed_bytes: int
    burst_bytes: int


@dataclass(slots=True)
class Neighbour:
    """One other peer."""

    record: PeerRecord | None = None
    raw_record: bytes = b""
    path: str = DIRECT
    """By which bulk comes and goes."""
    rtt: RttMeter = field(default_factory=RttMeter)
    goodput: GoodputMeter = field(default_factory=GoodputMeter)
    """Of what comes from it."""
    probes: dict[int, float] = field(default_factory=dict)
    timed_s: float = float("-inf")
    """When the link last carried enough to be timed."""
    reported: dict[PeerId, LinkMeasure] = field(default_factory=dict)
    """What it says of its own links."""


class Neighbours:
    """Everyone this peer has heard of."""

    def __init__(self, me: PeerId, swarm_id: str, own_record: Callable[[], bytes], watcher: Watcher) -> None:
        self.me = me
        self.known: dict[PeerId, Neighbour] = {}
        self.sessions: Sessions | None = None
        self._swarm_id = swarm_id
        self._own_record = own_record
        self._watcher = watcher
        self._liveness = Liveness()
        self._number = 0
        self._suspects_told: frozenset[PeerId] = frozenset()
        self._meters = threading.Lock()

    # -- records -------------------------------------------------------------------------------------------------------

    def record_arrived(self, record: PeerRecord, raw: bytes = b"") -> None:
        """From the DHT or from a peer: the newest one counts, and a session to its peer is wanted."""
        if record.peer_id == self.me:
            return
        neighbour = self.known.setdefault(record.peer_id, Neighbour())
        if neighbour.record is None or record.sequence > neighbour.record.sequence:
            neighbour.record = record
            neighbour.raw_record = raw or neighbour.raw_record
            self._want(record)

    def name_of(self, peer: PeerId) -> str:
        neighbour = self.known.get(peer)
        return neighbour.record.name if neighbour is not None and neighbour.record is not None else peer[-8:]

    def rtt_ms(self, peer: PeerId) -> float:
        """Median of the newest probes; 0 while there is none."""
        neighbour = self.known.get(peer)
        return neighbour.rtt.median_ms if neighbour is not None else 0.0

    def goodput_mbps(self, peer: PeerId) -> float:
        """Of what comes from it; 0 while nothing was measured."""
        return self._measure(peer).goodput_mbps if peer in self.known else 0.0

    def _want(self, record: PeerRecord) -> None:
        if self.sessions is None or record.leaving:
            return
        try:
            self.sessions.want(record.peer_id, record.session_addresses)
        except AddressUnusable as error:
            log.warning("peer.address_unusable", peer=record.peer_id, error=str(error))

    # -- sessions ------------------------------------------------------------------------------------------------------

    def session_opened(self, peer: PeerId, path: str) -> None:
        self.session_moved(peer, path)
        others = [n.raw_record for p, n in self.known.items() if p != peer and n.raw_record and p in self.present()]
        self._send(peer, Introduction(records=(self._own_record(), *others[:MOST_RECORDS_KNOWN])))

    def session_moved(self, peer: PeerId, path: str) -> None:
        """What was measured over another path says nothing of this one."""
        neighbour = self.known.setdefault(peer, Neighbour())
        with self._meters:
            if neighbour.path != path:
                neighbour.path = path
                neighbour.probes.clear()
                neighbour.rtt, neighbour.goodput, neighbour.timed_s = RttMeter(), GoodputMeter(), float("-inf")

    def lanes_moved(self, peer: PeerId, path: str) -> None:
        """Round trips are those of the session, which stays."""
        neighbour = self.known.setdefault(peer, Neighbour())
        with self._meters:
            neighbour.path, neighbour.goodput = path, GoodputMeter()

    def session_closed(self, peer: PeerId, error: Exception | None) -> None:
        self._liveness.session_closed(peer)
        if error is None:
            self._lose(peer, "left")

    def message_received(self, peer: PeerId, message: Message) -> bool:
        """True when the message was for this part of the daemon. Raises MalformedMessage."""
        now = time.monotonic()
        self._liveness.heard(peer)
        match message:
            case Introduction():
                self._introduced(peer, message)
            case Ping():
                self._send(peer, Pong(number=message.number))
            case Pong():
                self._answered(peer, message.number, now)
            case LinkReport():
                self.known[peer].reported = {link.peer: link for link in message.links[:MOST_RECORDS_KNOWN]}
            case Suspects():
                self._liveness.suspected(peer, message.peers)
            case _:
                return False
        return True

    def frame_received(self, peer: PeerId, header: FrameHeader, size_bytes: int) -> None:
        """In a lane's thread."""
        neighbour = self.known.get(peer)
        if neighbour is None:
            return
        with self._meters:
            now = time.monotonic()
            neighbour.goodput.add(size_bytes, now)
            neighbour.timed_s = now
        self._liveness.heard(peer)

    def lost_in_dht(self, peer: PeerId) -> None:
        """Its record says goodbye or has run out; a peer with a session is believed more than the DHT."""
        if self.sessions is not None and peer not in self.present():
            self.sessions.unwant(peer)
            self.known.pop(peer, None)

    def _introduced(self, peer: PeerId, message: Introduction) -> None:
        if not message.records:
            raise MalformedMessage(peer, "it introduced itself without a record")
        record = decode_record(message.records[0], self._swarm_id)
        if record.peer_id != peer:
            raise MalformedMessage(peer, "it introduced itself with another peer's record")
        for raw in message.records:
            self.record_arrived(decode_record(raw, self._swarm_id), raw)
        if self._liveness.introduced(peer, record.started_at_s):
            self._watcher.peer_gone(peer)  # its daemon was started again and remembers nothing
        if self._suspects_told:
            self._send(peer, self._suspects())
        log.info("peer.arrived", peer=peer, name=record.name, region=record.region, path=self.known[peer].path)
        self._watcher.peer_arrived(peer)

    # -- probes --------------------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """Once a period: pings, and gives up who was silent."""
        now = time.monotonic()
        for peer in self._liveness.period_passed():
            self._gone(peer, "silent")
        self._tell_suspects()
        for peer in self._liveness.open_peers():
            self._number += 1
            probes = self.known[peer].probes
            while len(probes) >= MOST_PROBES_UNANSWERED:
                probes.pop(next(iter(probes)))
            probes[self._number] = now
            log.debug("ping.sent", peer=peer, number=self._number)
            self._send(peer, Ping(number=self._number))

    def _tell_suspects(self) -> None:
        """When they are others than at the period before."""
        suspects = self._liveness.suspects()
        if suspects != self._suspects_told:
            self._suspects_told = suspects
            for peer in self._liveness.open_peers():
                self._send(peer, self._suspects())

    def _suspects(self) -> Suspects:
        return Suspects(peers=tuple(sorted(self._suspects_told)[:MOST_SUSPECTS]))

    def time_links(self, sampled: Collection[PeerId], line_mbps: float) -> None:
        """Sends a small burst over those links that carried nothing for long; the receiver times it."""
        now = time.monotonic()
        period_s = probing_period_s(len(sampled), PROBE_FRAMES * PROBE_FRAME_BYTES, line_mbps, PROBE_AGAIN_S)
        for peer in self._liveness.open_peers():
            neighbour = self.known[peer]
            if peer in sampled and now - neighbour.timed_s > period_s and self.sessions is not None:
                neighbour.timed_s = now
                header = FrameHeader(kind=FrameKind.PROBE, codec=0, run=bytes(8), epoch=0, term=0, part=0)
                frames = [OutgoingFrame(header, lambda: bytes(PROBE_FRAME_BYTES))] * PROBE_FRAMES
                with contextlib.suppress(PeerUnreachable):
                    self.sessions.send_frames(peer, frames)

    def report_links(self, sampled: Collection[PeerId]) -> None:
        """To all, of these links."""
        report = LinkReport(links=tuple(self._measure(peer) for peer in self.present() if peer in sampled))
        for peer in self._liveness.open_peers():
            self._send(peer, report)

    def present(self) -> frozenset[PeerId]:
        return self._liveness.present()

    def links(self) -> dict[tuple[PeerId, PeerId], Link]:
        """Every measured direction, this peer's own and what the others report: (from, to) → link."""
        found: dict[tuple[PeerId, PeerId], Link] = {}
        for peer in self.present():
            found |= {
                (other, peer): Link(measure.rtt_ms, measure.jitter_ms, measure.goodput_mbps)
                for other, measure in self.known[peer].reported.items()
            }
        for peer in self.present():
            measure = self._measure(peer)
            found[peer, self.me] = Link(measure.rtt_ms, measure.jitter_ms, measure.goodput_mbps)
            found.setdefault((self.me, peer), Link(measure.rtt_ms, measure.jitter_ms, 0.0))
        return found

    def legs(self) -> dict[tuple[PeerId, PeerId], Leg]:
        """The same, without those that go through a third peer."""
        return {
            (source, target): Leg(
                rtt_ms=max(link.rtt_ms, 0.0), goodput_mbps=max(link.goodput_mbps, 0.0), is_relayed=path == RELAY
            )
            for (source, target), link in self.links().items()
            if (path := self.path(source, target)) in (DIRECT, RELAY)
        }

    def transfer(self, peer: PeerId) -> Transfer:
        """What came from a peer since its path is what it is."""
        neighbour = self.known.get(peer, Neighbour())
        with self._meters:
            return Transfer(neighbour.goodput.timed_bytes, neighbour.goodput.burst_bytes)

    def path(self, source: PeerId, target: PeerId) -> str:
        """Between two peers, as this one sees it or as the receiving one reports it; direct if nobody says otherwise."""
        other = target if source == self.me else source
        if self.me in (source, target):
            return self.known[other].path if other in self.known else DIRECT
        reporter = self.known.get(target)
        measure = reporter.reported.get(source) if reporter is not None else None
        return measure.path if measure is not None else DIRECT

    def region_of(self, peer: PeerId) -> str:
        neighbour = self.known.get(peer)
        return neighbour.record.region if neighbour is not None and neighbour.record is not None else UNKNOWN_REGION

    def places(self) -> dict[PeerId, Place]:
        """Of the others whose record is here."""
        return {
            peer: Place(neighbour.record.name, neighbour.record.region)
            for peer, neighbour in self.known.items()
            if neighbour.record is not None
        }

    def _measure(self, peer: PeerId) -> LinkMeasure:
        neighbour = self.known[peer]
        with self._meters:
            goodput_mbps = neighbour.goodput.read(time.monotonic())
        return LinkMeasure(
            peer=peer,
            rtt_ms=neighbour.rtt.median_ms,
            jitter_ms=neighbour.rtt.jitter_ms,
            goodput_mbps=goodput_mbps,
            path=neighbour.path,
        )

    def _answered(self, peer: PeerId, number: int, now: float) -> None:
        sent_s = self.known[peer].probes.pop(number, None)
        if sent_s is not None:
            self.known[peer].rtt.add((now - sent_s) * 1000)
            log.debug("ping.answered", peer=peer, number=number, seconds=round(now - sent_s, 4))

    def _send(self, peer: PeerId, message: Message) -> None:
        if self.sessions is not None:
            with contextlib.suppress(PeerUnreachable):
                self.sessions.send_message(peer, encode(message))

    def _lose(self, peer: PeerId, why: str) -> None:
        if self._liveness.left(peer):
            self._gone(peer, why)

    def _gone(self, peer: PeerId, why: str) -> None:
        log.info("peer.gone", peer=peer, name=self.name_of(peer), why=why)
        if self.sessions is not None:
            self.sessions.discard_frames(lambda to, _header: to == peer)
            if why == "left":
                self.sessions.unwant(peer)
            else:
                self.sessions.drop(peer, PeerUnreachable(f"peer {peer} was silent for too long"))
        self._watcher.peer_gone(peer)
