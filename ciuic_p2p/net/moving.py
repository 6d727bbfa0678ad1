"""Moves an open session to a better path that was found later, without a gap: from the relay to one through a third peer, from
either to a direct one.

The TLS connection goes on; only what carries its records changes, and each direction changes by itself. Whoever finds a way
dials it and proves with an opening that it holds the session's keys. Of the two, the peer that decides (pairing.py) picks one
such connection, and says MOVE as the last envelope on the old one; the other reads up to that, answers in the same way, and
both go on where they were: no message is lost, doubled or out of order, and the layer above need not greet again.

Refuses to know how ways are found, and what the lanes do meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from ciuic_p2p.core.paths import DIRECT, rank
from ciuic_p2p.errors import MalformedMessage, PeerUnreachable
from ciuic_p2p.net.envelopes import Envelope, Kind
from ciuic_p2p.net.lane_opening import OPENING_BYTES, PATH_MAGIC, SALT_BYTES, LaneOpening
from ciuic_p2p.net.meters import Meter
from ciuic_p2p.net.session import Session
from ciuic_p2p.net.wires import Dial, Streams, Wire

_NUMBER = struct.Struct("!I")
_MOST_WAITING = 8
"""Connections of the other peer that wait for a decision; more of them close the oldest."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told of a move. left(path, dial, move): what this side sends goes over another path now, of which `dial` makes
    another connection (None when the peer dialled it); `move` is what both peers call this. moved: both directions do."""

    left: Callable[[str, Dial | None, bytes], None]
    moved: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Found:
    """A connection to which the session could move."""

    streams: Streams
    path: str
    dial: Dial | None


class Mover:
    """All methods belong to the event loop's thread."""

    def __init__(self, session: Session, meter: Meter, watch: Watch, *, decides: bool) -> None:
        self._session = session
        self._meter = meter
        self._watch = watch
        self._decides = decides
        self._numbers = count(0 if decides else 1, 2)  # even ones are the deciding peer's: none is used twice
        self._newest_heard = -1
        self._found: dict[int, _Found] = {}
        self._awaited: tuple[int, Streams] | None = None
        self._over = asyncio.Event()
        """Set, and replaced by another one, when the session moves or ends."""
        self._closed = False

    async def offer(self, dial: Dial) -> None:
        """Dials, and returns when the session has moved. Raises PeerUnreachable, RemoteError. The caller sets the deadline."""
        wire = await dial()
        try:
            if self._is_useless(wire.path):
                raise PeerUnreachable("the session ended or moved before a connection was there")
            streams = await wire.streams()
        finally:
            wire.close()
        number = next(self._numbers)
        self._found[number] = _Found(streams, wire.path, dial)
        try:
            self._open(streams, number)
            await self._over.wait()
        finally:
            self._drop(number)
        if self._is_better(wire.path):
            raise PeerUnreachable("the session ended or moved elsewhere before it could move there")

    async def accept(self, wire: Wire, opening: LaneOpening) -> None:
        """A connection that the peer dialled, as its opening proves. Raises PeerUnreachable when it is of no use."""
        self._meter.count_received(OPENING_BYTES)
        number = opening.number
        theirs = bool(number % 2) == self._decides
        if self._is_useless(wire.path) or not theirs or number <= self._newest_heard:
            raise PeerUnreachable("a connection that is of no use to its session")
        self._newest_heard = number
        self._found[number] = _Found(await wire.streams(), wire.path, None)
        if self._is_useless(wire.path):  # it moved or ended meanwhile
            self._drop(number)
        elif self._decides:
            self._leave_for(number)
        else:
            self._forget_oldest()
            self._session.send(Kind.REACHED, _NUMBER.pack(number))

    def take(self, envelope: Envelope) -> None:
        """REACHED or MOVE came. Raises MalformedMessage."""
        if len(envelope.body) != _NUMBER.size:
            raise MalformedMessage(self._session.peer, f"it sent {envelope.kind.name} without saying which connection")
        number = _NUMBER.unpack(envelope.body)[0]
        if envelope.kind is Kind.REACHED:
            self._reached(number)
        elif self._decides:
            self._followed(number)
        else:
            self._follow(number)

    def close(self) -> None:
        """The session has ended: connections that were not taken are closed."""
        self._closed = True
        self._forget_found()

    def _reached(self, number: int) -> None:
        """A connection that this side dialled is at the peer, and not at another machine of that address."""
        found = self._found.get(number)
        if self._decides and found is not None and not self._is_useless(found.path):
            self._leave_for(number)

    def _leave_for(self, number: int) -> None:
        """The deciding side: what it sends goes there from now on; what it hears, when the other has followed."""
        found = self._found.pop(number)
        self._awaited = number, found.streams
        self._go(number, found)

    def _followed(self, number: int) -> None:
        if self._awaited is None or self._awaited[0] != number:
            raise MalformedMessage(self._session.peer, "it moved without being told to")
        self._session.receive_over(self._awaited[1])
        self._awaited = None
        self._watch.moved()

    def _follow(self, number: int) -> None:
        if self._session.path == DIRECT:
            raise MalformedMessage(self._session.peer, "it moved a session that has a direct path")
        found = self._found.pop(number, None)
        if found is None:
            self._session.end(PeerUnreachable(f"peer {self._session.peer} moved to a connection that is gone"))
            return
        self._go(number, found)
        self._session.receive_over(found.streams)
        self._watch.moved()

    def _go(self, number: int, found: _Found) -> None:
        move = _NUMBER.pack(number)
        self._session.send_over(found.streams, found.path, move)
        self._forget_found()
        self._watch.left(found.path, found.dial, move)

    def _open(self, streams: Streams, number: int) -> None:
        keys = self._session.lane_keys
        opening = LaneOpening(keys.session_id, number, secrets.token_bytes(SALT_BYTES))
        streams[1].write(opening.pack(keys.opening_key, PATH_MAGIC))
        self._meter.count_sent(OPENING_BYTES)

    def _is_useless(self, path: str) -> bool:
        """Also while another move is under way: the peer may offer it again."""
        return self._closed or self._session.is_over or self._awaited is not None or not self._is_better(path)

    def _is_better(self, path: str) -> bool:
        return rank(path) < rank(self._session.path)

    def _forget_found(self) -> None:
        """Who waits to move looks what became of it."""
        over, self._over = self._over, asyncio.Event()
        if self._closed:
            self._over.set()
        over.set()
        for number in list(self._found):
            self._drop(number)

    def _forget_oldest(self) -> None:
        theirs = [number for number, found in self._found.items() if found.dial is None]
        for number in theirs[:-_MOST_WAITING]:
            self._drop(number)

    def _drop(self, number: int) -> None:
        found = self._found.pop(number, None)
        if found is not None:
            found.streams[1].transport.abort()
