"""The lanes of one session: opens them at first need, keeps them warm, replaces broken ones.

Refuses to know what frames mean.

The peer that dialled the session dials the lanes, because it knows a way that works; the other one asks it to.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import structlog

from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.core.paths import forwarder_of
from ciuic_p2p.errors import MalformedMessage, PeerUnreachable, RemoteError
from ciuic_p2p.net.draining import Drain
from ciuic_p2p.net.lane_opening import OPENING_BYTES, SALT_BYTES, LaneKeys, LaneOpening, unpack_opening
from ciuic_p2p.net.lanes import Lane, LaneParts, breaks_only_the_lane
from ciuic_p2p.net.meters import Meter
from ciuic_p2p.net.outbox import LaneShare, Outbox
from ciuic_p2p.net.sealing import FRAMES_PER_KEY, FrameOpener, FrameSealer, lane_secrets
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.tcpinfo import TcpInfo, prepare_for_bulk
from ciuic_p2p.net.wires import Dial
from ciuic_p2p.terms import PeerId

_log = structlog.get_logger(__name__)
_LIVED_S = 5.0
"""A lane that lasted this long was no failed attempt: the next one is dialled without delay."""
_random = random.SystemRandom()
_STEERING = struct.Struct("!cI")
_LONGEST_PATH = 80
"""Characters: `via` and a peer id."""

FrameReceived = Callable[[FrameHeader, memoryview], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """How many lanes, and how they are kept."""

    count: int = 2
    """Until `resize`."""
    most_mbps: float | None = None
    """Of each lane, in the direction that this peer sends; only direct lanes keep to it."""
    most_dialled: int = 32
    most_accepted: int = 64
    frames_per_key: int = FRAMES_PER_KEY
    shortest_delay_s: float = 0.1
    longest_delay_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneGroupParts:
    """What a group is made of. decides: which of the two this peer is, see pairing.py.

    path: of the session. dial: a new wire to the peer; None at the peer that was dialled.
    ask: tells the dialling peer that so many lanes are wanted.
    say_drained: tells the peer that nothing of this side is under way any more on lanes that were left, and when they were.
    say_steered: tells the peer over which path lanes are dialled from now on. path_chosen: told the same, at both peers.
    end_session: called when the peer broke the protocol, or on a defect."""

    peer: PeerId
    decides: bool
    keys: LaneKeys
    outbox: Outbox
    meter: Meter
    path: str
    dial: Dial | None
    ask: Callable[[int], None]
    say_drained: Callable[[bytes], None]
    say_steered: Callable[[bytes], None]
    path_chosen: Callable[[str], None]
    frame_received: FrameReceived
    end_session: Callable[[Exception], None]


class LaneGroup:
    """All methods belong to the event loop's thread, but `want`, `frame_received` and `lane_ended`."""

    def __init__(self, parts: LaneGroupParts, limits: LaneLimits) -> None:
        self._parts = parts
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet()
        self.dial = parts.dial
        """Makes a new wire to the peer as the session's was made; None where the peer dials."""
        self._lane_dial = parts.dial
        """The same for lanes, which may go by another path."""
        self._keepers: list[asyncio.Task[None]] = []
        self._lanes: dict[Lane, asyncio.Event] = {}
        self._count = limits.count
        self._home = self.path = parts.path
        """Where the session goes, and where lanes are dialled (core/paths.py)."""
        self._steerings = count()
        self._left: set[str] = set()
        """Paths over which no lane may come any more."""
        self._ways: dict[Lane, tuple[str, LaneShare]] = {}
        """By which path each lane goes."""
        self._retired: set[Lane] = set()
        """That are left: they end when they are empty."""
        self._drains: dict[bytes, Drain] = {}
        self._numbers = count(0 if parts.decides else 1, 2)  # either side may dial, in turn: neither uses the other's
        self._used_numbers: set[int] = set()
        self._wanted = False
        self._closed = False
        self.broken_count = 0
        """Lanes that ended while the session went on."""
        self.pace(None)

    def want(self) -> None:
        """There are frames to send. Thread-safe and cheap to call again."""
        if not self._wanted:
            self._wanted = True
            self._loop.call_soon_threadsafe(self._provide)

    def answer(self, count: int) -> None:
        """The other peer asked for so many lanes; 0: as many as this one thinks right."""
        if self.dial is not None:
            self.want()
            self.resize(count)

    def resize(self, count: int) -> None:
        """How many lanes there should be from now on: more at once, fewer never (a warm lane costs next to nothing)."""
        if min(count, self._limits.most_dialled) > self._count:
            self._count = min(count, self._limits.most_dialled)
            if self._wanted:
                self._provide()

    def pace(self, most_mbps: float | None) -> None:
        """What all lanes together may send from now on; None: as fast as they can.

        The outbox gives frames out at that rate. The kernel keeps a lane that got one from sending it all at once.
        """
        if self._limits.most_mbps is not None:
            most_mbps = min(most_mbps or math.inf, self._limits.most_mbps * self._count)
        self._parts.outbox.pace(most_mbps)
        for lane in self._lanes:
            lane.pace(most_mbps)

    def read(self) -> dict[int, TcpInfo]:
        """What the kernel says of each lane, by number; nothing of relayed ones."""
        found = {lane.number: lane.read() for lane in self._lanes}
        return {number: info for number, info in found.items() if info is not None}

    def move(self, path: str, dial: Dial | None, leaving: bytes) -> None:
        """The session goes over another path from now on, which this peer dials if it has `dial`, and the lanes follow.

        leaving: what both peers call this; DRAINED says it."""
        self._home, self.dial = path, dial
        self._leave_for(path, dial, leaving)

    def steer(self, path: str, dial: Dial) -> None:
        """The lanes go over another path from now on, the session stays where it is. Only where this peer dials."""
        if self.dial is None or self._closed or path == self.path:
            return
        leaving = _STEERING.pack(b"S", next(self._steerings))
        self._parts.say_steered(leaving + path.encode())
        self._leave_for(path, dial, leaving)
        self._parts.path_chosen(path)

    def steered(self, said: bytes) -> None:
        """The peer has done that. Raises MalformedMessage."""
        leaving, path = said[: _STEERING.size], said[_STEERING.size :].decode("ascii", errors="replace")
        if self.dial is not None or len(path) > _LONGEST_PATH or (path != self._home and forwarder_of(path) is None):
            raise MalformedMessage(self._parts.peer, "it moved lanes to where they cannot go")
        self._leave_for(path, None, leaving)
        self._parts.path_chosen(path)

    def abandon(self, path: str) -> None:
        """Nothing comes over that path any more, though it is not broken: lanes there end at once, unless the session uses it
        too and ends by itself. What they had under way is sent again."""
        if path == self._home:
            return
        if path == self.path and self.dial is not None:
            self.steer(self._home, self.dial)
        for lane, (way, _) in self._ways.items():
            if way == path:
                lane.close()

    def _leave_for(self, path: str, dial: Dial | None, leaving: bytes) -> None:
        """No frame is begun on other lanes any more; they are closed when both peers know that all that was under way there
        has arrived."""
        self._left.add(self.path)
        self._left.discard(path)
        self.path, self._lane_dial = path, dial
        self._drains = {key: drain for key, drain in self._drains.items() if not drain.is_over}
        left = {lane: share for lane, (way, share) in self._ways.items() if way != path and lane not in self._retired}
        self._retired |= left.keys()
        self._drains[leaving] = Drain(left, partial(self._parts.say_drained, leaving))
        self._stop_keeping()
        if self._wanted:
            self._provide()

    def peer_drained(self, leaving: bytes) -> None:
        """Nothing of the peer is under way any more on the lanes that were left then."""
        if leaving in self._drains:
            self._drains[leaving].peer_drained()

    def accept(self, connection: socket.socket, opening: LaneOpening, path: str) -> None:
        """A lane that the peer dialled, as its opening proves. Raises PeerUnreachable when it is not to be used."""
        if path in self._left:
            raise PeerUnreachable(f"lane {opening.number} of peer {self._parts.peer} comes over the path that was left")
        if self._closed or opening.number in self._used_numbers or len(self._lanes) >= self._limits.most_accepted:
            raise PeerUnreachable(f"lane {opening.number} of peer {self._parts.peer} was used before or is one too many")
        self._used_numbers.add(opening.number)
        self._parts.meter.count_received(OPENING_BYTES)
        self._start(connection, opening, path, dialled=False)

    def verify(self, opening: bytes) -> LaneOpening | None:
        return unpack_opening(opening, self._parts.keys.opening_key)

    def retire(self) -> None:
        """The session is about to end: lanes that the peer closes now are not broken."""
        self._closed = True

    async def close(self) -> None:
        """Ends all lanes; what they carried is gone with the session."""
        self.retire()
        self._parts.outbox.close()
        for drain in self._drains.values():
            drain.close()
        for lane in list(self._lanes):
            lane.close()
        await self._tasks.cancel()

    def frame_received(self, header: FrameHeader, payload: memoryview) -> None:
        self._parts.frame_received(header, payload)

    def lane_ended(self, lane: Lane, error: Exception) -> None:
        with contextlib.suppress(RuntimeError):  # a thread that still takes in a frame may outlive the loop
            self._loop.call_soon_threadsafe(self._forget, lane, error)

    def _provide(self) -> None:
        if self._closed:
            return
        if self.dial is None:
            self._parts.ask(self._count)
            return
        while len(self._keepers) < self._count:
            self._keepers.append(self._tasks.spawn(self._keep_lane(self._lane_dial or self.dial)))

    def _stop_keeping(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        self._keepers = []

    async def _keep_lane(self, dial: Dial) -> None:
        delay_s = self._limits.shortest_delay_s
        while True:
            began = time.monotonic()
            try:
                await self._dial_lane(dial)
            except (PeerUnreachable, RemoteError) as error:
                _log.info("lane.unreachable", peer=self._parts.peer, path=self.path, error=str(error))
                self._go_home()
            delay_s = self._limits.shortest_delay_s if time.monotonic() - began > _LIVED_S else delay_s
            await asyncio.sleep(delay_s * _random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, self._limits.longest_delay_s)

    def _go_home(self) -> None:
        """A path that cannot be dialled is left for the session's own."""
        if self.dial is not None and self.path != self._home:
            self.steer(self._home, self.dial)

    async def _dial_lane(self, dial: Dial) -> None:
        """Opens a lane and waits for its end."""
        opening = LaneOpening(self._parts.keys.session_id, next(self._numbers), secrets.token_bytes(SALT_BYTES))
        self._used_numbers.add(opening.number)  # its copy, sent back to this side, must not open a lane
        packed = opening.pack(self._parts.keys.opening_key)
        wire = await dial()
        try:
            await wire.write(packed)
            connection = await wire.blocking_socket()
        except BaseException:  # also when cancelled: nobody else knows of the wire
            wire.close()
            raise
        self._parts.meter.count_sent(len(packed))
        await self._start(connection, opening, wire.path, dialled=True).wait()

    def _start(self, connection: socket.socket, opening: LaneOpening, path: str, *, dialled: bool) -> asyncio.Event:
        prepare_for_bulk(connection)
        away, towards = lane_secrets(self._parts.keys.secret, opening.number, opening.salt)
        ours, theirs = (away, towards) if dialled else (towards, away)
        parts = LaneParts(
            peer=self._parts.peer,
            number=opening.number,
            connection=connection,
            share=self._parts.outbox.share(self._parts.peer),
            sealer=FrameSealer(ours, self._limits.frames_per_key),
            opener=FrameOpener(self._parts.peer, theirs, self._limits.frames_per_key),
            meter=self._parts.meter,
        )
        lane = Lane(parts, self)
        self._ways[lane] = path, parts.share
        ended = self._lanes[lane] = asyncio.Event()
        lane.pace(self._parts.outbox.most_mbps)
        lane.start()
        _log.debug("lane.opened", peer=self._parts.peer, lane=opening.number, dialled=dialled)
        return ended

    def _forget(self, lane: Lane, error: Exception) -> None:
        self._lanes.pop(lane).set()
        del self._ways[lane]
        was_left = lane in self._retired
        self._retired.discard(lane)
        if self._closed or (was_left and breaks_only_the_lane(error)):
            return
        self.broken_count += 1
        name = type(error).__name__
        _log.warning("lane.broken", peer=self._parts.peer, lane=lane.number, kind=name, error=str(error))
        if not breaks_only_the_lane(error):
            self._parts.end_session(error)
