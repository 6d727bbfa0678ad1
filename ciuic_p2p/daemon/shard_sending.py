"""Gives shards to peers that ask for them, piece by piece and a few ahead of the lanes. Knows neither objects nor rounds.

What is read from the disk is compared with its name before it is sent. While a round is under way only a small share of the
line is used, so that a shard in front of a round's frames never makes them late.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from itertools import islice

import structlog

from ciuic_p2p.core.frames import FrameHeader, FrameKind
from ciuic_p2p.core.messages import encode
from ciuic_p2p.core.shard_messages import AskShards, CancelShards, RefuseShard, shard_of
from ciuic_p2p.errors import PeerUnreachable, ShardMissing, StoreUnusable
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.transport import OutgoingFrame, Transport
from ciuic_p2p.store.fresh import FreshShards
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

    @property
    def is_on(self) -> bool:
        """A round's bytes are under way."""
        return self._is_busy()

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
        fresh: FreshShards,
        store: ShardStore,
        restraint: Restraint,
        tasks: TaskSet,
        damaged: Callable[[ShardId], None],
    ) -> None:
        """fresh: what was put a moment ago, and got its name from its bytes then. damaged: told of shards that were found to be
        wrong, or gone."""
        self._transport = transport
        self._fresh = fresh
        self._store = store
        self._restraint = restraint
        self._tasks = tasks
        self._damaged = damaged
        self._asks: dict[PeerId, dict[int, ShardId]] = {}
        """What each peer waits for, by number, in order."""
        self._sending: dict[PeerId, asyncio.Task[None]] = {}
        self._queues: dict[PeerId, _Queue] = {}
        self._was_on = False
        """Whether a round was under way at the last tick."""

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
        for number in message.numbers:
            asks.pop(number, None)
        if peer in self._queues:
            wanted = frozenset(message.numbers)
            self._queues[peer].drop(wanted)
            self._transport.discard_frames(
                lambda to, header: to == peer and header.kind is FrameKind.SHARD and header.epoch in wanted
            )

    def tick(self) -> None:
        """Several times a second. When a round begins, what waits for a lane makes way for it, and is sent piece by piece."""
        was_on, self._was_on = self._was_on, self._restraint.is_on
        waiting = {peer: queue for peer, queue in self._queues.items() if queue.frames()}
        if self._was_on and not was_on and waiting:
            self._transport.discard_frames(lambda _to, header: header.kind is FrameKind.SHARD)
            for peer, queue in waiting.items():
                self._tasks.spawn(self._send_again(peer, queue))

    def session_ended(self, peer: PeerId) -> None:
        """Whoever still wants what it asked for asks again."""
        self._asks.pop(peer, None)
        self._queues.pop(peer, None)
        sending = self._sending.pop(peer, None)
        if sending is not None:
            sending.cancel()

    async def _serve(self, peer: PeerId) -> None:
        asks = self._asks[peer]
        reads: dict[int, asyncio.Task[bytes | memoryview | None]] = {}
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

    def _read(self, shard: ShardId) -> bytes | memoryview | None:
        """In a thread. None when the store cannot give it."""
        try:
            return self._fresh.take(shard) or self._store.get(shard)
        except (ShardMissing, StoreUnusable) as error:
            log.warning("shard.not_sent", shard=shard[:12], error=str(error))
            return None

    async def _send(
        self, peer: PeerId, asks: dict[int, ShardId], number: int, shard: ShardId, data: bytes | memoryview | None
    ) -> None:
        if data is None:
            self._damaged(shard)
            self._refuse(peer, number)
            return
        queue = self._queues.setdefault(peer, _Queue())
        for part, start in enumerate(range(0, max(len(data), 1), PIECE_BYTES)):
            await queue.room(self._restraint.pieces_ahead())
            await self._restraint.turn(PIECE_BYTES)
            if number not in asks:
                return
            piece = memoryview(data)[start : start + PIECE_BYTES]
            self._transport.send_frames(peer, [queue.add(_header(shard, number, part, len(data)), piece)])

    async def _send_again(self, peer: PeerId, queue: _Queue) -> None:
        for frame in queue.frames():
            await self._restraint.turn(PIECE_BYTES)
            if self._queues.get(peer) is not queue:
                return
            if queue.has(frame):
                with contextlib.suppress(PeerUnreachable):
                    self._transport.send_frames(peer, [frame])

    def _refuse(self, peer: PeerId, number: int) -> None:
        try:
            self._transport.send_message(peer, encode(RefuseShard(number=number)))
        except PeerUnreachable:
            log.debug("shard.refusal_unsent", peer=peer)


def _header(shard: ShardId, number: int, part: int, size_bytes: int) -> FrameHeader:
    return FrameHeader(
        kind=FrameKind.SHARD,
        codec=0,
        run=bytes.fromhex(shard[:16]),
        epoch=number,
        term=0,
        part=part,
        samples=size_bytes,
    )


class _Queue:
    """Frames to one peer that wait for a lane."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[int, int], OutgoingFrame] = {}
        """By number and part, in order."""
        self._changed = asyncio.Event()

    def add(self, header: FrameHeader, piece: memoryview) -> OutgoingFrame:
        """A frame that is forgotten when a lane takes it."""
        key = (header.epoch, header.part)

        def make() -> memoryview:
            with contextlib.suppress(RuntimeError):  # the daemon ends
                self._loop.call_soon_threadsafe(self._forget, key)
            return piece

        frame = self._waiting[key] = OutgoingFrame(header, make)
        return frame

    async def room(self, ahead: int) -> None:
        """Until fewer than so many wait."""
        while len(self._waiting) >= ahead:
            self._changed.clear()
            await self._changed.wait()

    def drop(self, numbers: Collection[int]) -> None:
        """They will not be taken."""
        for key in [key for key in self._waiting if key[0] in numbers]:
            self._forget(key)

    def frames(self) -> list[OutgoingFrame]:
        return list(self._waiting.values())

    def has(self, frame: OutgoingFrame) -> bool:
        return (frame.header.epoch, frame.header.part) in self._waiting

    def _forget(self, key: tuple[int, int]) -> None:
        """Once, though a frame is made again when its lane broke."""
        if self._waiting.pop(key, None) is not None:
            self._changed.set()
