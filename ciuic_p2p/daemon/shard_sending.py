"""Gives shards to peers that ask for them, piece by piece and a few ahead of the lanes. Knows neither objects nor rounds.

What is read from the disk is compared with its name before it is sent. While a round is under way only a small share of the
line is used, so that a shard in front of a round's frames never makes them late.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import islice

import structlog

from ciuic_p2p.core.frames import FrameHeader, FrameKind
from ciuic_p2p.core.messages import encode
from ciuic_p2p.core.shard_messages import AskShards, CancelShards, RefuseShard, shard_of
from ciuic_p2p.errors import PeerUnreachable, ShardMissing, StoreUnusable
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.transport import OutgoingFrame, Transport
from ciuic_p2p.store.shards import ShardStore
from ciuic_p2p.terms import PeerId, ShardId

log = structlog.get_logger(__name__)

PIECE_BYTES = 512 << 10
"""One frame: it occupies a line of 100 Mbit/s for 40 ms."""

READ_AHEAD = 2
"""Shards of one peer in memory: while one is sent, the next is read and compared with its name."""

MOST_WAITING = 1024
"""Asks of one peer; more are refused."""

AHEAD_S = 0.05
"""So much of the line is handed to the lanes before they need it: what lies there is in the way of a round that begins."""
MOST_AHEAD = 16
"""Pieces, where the line is fast or not measured."""

BUSY_SHARE = 0.05
"""Of the line, for all shards together while a round is under way."""
LOOK_AGAIN_S = 0.05


class Restraint:
    """When the next piece may leave. One for all peers that are sent to."""

    def __init__(self, is_busy: Callable[[], bool], line_mbps: Callable[[], float]) -> None:
        """is_busy: a round's bytes are under way. line_mbps: of this peer, 0 while it was not measured."""
        self._is_busy = is_busy
        self._line_mbps = line_mbps
        self._next_at_s = float("-inf")

    def pieces_ahead(self) -> int:
        line_mbps = self._line_mbps()
        ahead = int(line_mbps * 125_000 * AHEAD_S / PIECE_BYTES) if line_mbps > 0 else MOST_AHEAD
        return min(max(ahead, 1), MOST_AHEAD)

    async def turn(self, size_bytes: int, guess_mbps: float = 100.0) -> None:
        """Returns when so many bytes may be sent. guess_mbps: for a line that was not measured."""
        loop = asyncio.get_running_loop()
        while self._is_busy() and loop.time() < self._next_at_s:  # noqa: ASYNC110 — the time is half of the condition
            await asyncio.sleep(LOOK_AGAIN_S)  # nobody tells when a round ends
        if self._is_busy():
            share_mbps = BUSY_SHARE * (self._line_mbps() or guess_mbps)
            self._next_at_s = loop.time() + size_bytes * 8e-6 / share_mbps


class ShardSender:
    """Lives in the event loop's thread."""

    def __init__(
        self,
        transport: Transport,
        store: ShardStore,
        restraint: Restraint,
        tasks: TaskSet,
        damaged: Callable[[ShardId], None],
    ) -> None:
        """damaged: told of shards that were found to be wrong, or gone."""
        self._transport = transport
        self._store = store
        self._restraint = restraint
        self._tasks = tasks
        self._damaged = damaged
        self._asks: dict[PeerId, dict[int, ShardId]] = {}
        """What each peer waits for, by number, in order."""
        self._sending: dict[PeerId, asyncio.Task[None]] = {}
        self._current: dict[PeerId, _Pieces] = {}
        """Of the shard that each peer is sent now."""

    def asked(self, peer: PeerId, message: AskShards) -> None:
        asks = self._asks.setdefault(peer, {})
        for number, name in message.asks:
            if len(asks) < MOST_WAITING:
                asks[number] = shard_of(name)
            else:
                self._refuse(peer, number)
        if asks and peer not in self._sending:
            self._sending[peer] = self._tasks.spawn(self._serve(peer))

    def cancelled(self, peer: PeerId, message: CancelShards) -> None:
        """Also what waits for a lane is not sent any more."""
        asks = self._asks.get(peer, {})
        numbers = frozenset(message.numbers) & asks.keys()
        for number in numbers:
            del asks[number]
        current = self._current.get(peer)
        if current is not None and current.number in numbers:
            current.give_up()
        if numbers:
            self._transport.discard_frames(
                lambda to, header: to == peer and header.kind is FrameKind.SHARD and header.epoch in numbers
            )

    def session_ended(self, peer: PeerId) -> None:
        """Whoever still wants what it asked for asks again."""
        self._asks.pop(peer, None)
        self._current.pop(peer, None)
        sending = self._sending.pop(peer, None)
        if sending is not None:
            sending.cancel()

    async def _serve(self, peer: PeerId) -> None:
        asks = self._asks[peer]
        reads: dict[int, asyncio.Task[bytes | None]] = {}
        try:
            while asks:
                for number, shard in islice(asks.items(), READ_AHEAD):
                    if number not in reads:
                        reads[number] = asyncio.ensure_future(asyncio.to_thread(self._read, shard))
                number, shard = next(iter(asks.items()))
                data = await reads.pop(number)
                await self._send(peer, asks, number, shard, data)
                asks.pop(number, None)
                for cancelled in reads.keys() - asks.keys():
                    reads.pop(cancelled).cancel()
        except PeerUnreachable:
            asks.clear()
        finally:
            for read in reads.values():
                read.cancel()
            if self._sending.get(peer) is asyncio.current_task():
                del self._sending[peer]
                self._current.pop(peer, None)

    def _read(self, shard: ShardId) -> bytes | None:
        """In a thread. None when the store cannot give it."""
        try:
            return self._store.get(shard)
        except (ShardMissing, StoreUnusable) as error:
            log.warning("shard.not_sent", shard=shard[:12], error=str(error))
            return None

    async def _send(self, peer: PeerId, asks: dict[int, ShardId], number: int, shard: ShardId, data: bytes | None) -> None:
        if data is None:
            self._damaged(shard)
            self._refuse(peer, number)
            return
        pieces = self._current[peer] = _Pieces(data, shard, number, asyncio.get_running_loop())
        for part in range(pieces.count):
            await pieces.wait_for_room(part, self._restraint.pieces_ahead())
            await self._restraint.turn(PIECE_BYTES)
            if number not in asks:
                return
            self._transport.send_frames(peer, [pieces.frame(part)])

    def _refuse(self, peer: PeerId, number: int) -> None:
        try:
            self._transport.send_message(peer, encode(RefuseShard(number=number)))
        except PeerUnreachable:
            log.debug("shard.refusal_unsent", peer=peer)


class _Pieces:
    """A shard as frames, and how many of them lanes have taken."""

    def __init__(self, data: bytes, shard: ShardId, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._data = memoryview(data)
        self._header = bytes.fromhex(shard[:16])
        self.number = number
        self._loop = loop
        self._taken: set[int] = set()
        self._is_wanted = True
        self._changed = asyncio.Event()
        self.count = max(-(-len(data) // PIECE_BYTES), 1)

    def frame(self, part: int) -> OutgoingFrame:
        header = FrameHeader(
            kind=FrameKind.SHARD,
            codec=0,
            run=self._header,
            epoch=self.number,
            term=0,
            part=part,
            samples=len(self._data),
        )

        def make() -> memoryview:
            with contextlib.suppress(RuntimeError):  # the daemon ends
                self._loop.call_soon_threadsafe(self._note_taken, part)
            return self._data[part * PIECE_BYTES : (part + 1) * PIECE_BYTES]

        return OutgoingFrame(header, make)

    async def wait_for_room(self, sent: int, ahead: int) -> None:
        """Until fewer than `ahead` of the first `sent` pieces wait for a lane, or nobody wants them any more."""
        while self._is_wanted and sent - len(self._taken) >= ahead:
            self._changed.clear()
            await self._changed.wait()

    def give_up(self) -> None:
        """What waited for a lane will not be taken."""
        self._is_wanted = False
        self._changed.set()

    def _note_taken(self, part: int) -> None:
        """Once, though a frame is made again when its lane broke."""
        self._taken.add(part)
        self._changed.set()
