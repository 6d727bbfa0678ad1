"""Takes shards from several holders at once: performs what core/hedging.py wants. Knows neither objects nor disks.

A shard's pieces are put together in lane threads; it is compared with its name in another one, and only then handed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count

import structlog

from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.core.hedging import (
    ASKS_EACH,
    AskShard,
    BlameHolder,
    CancelAsk,
    FinishReading,
    HolderLost,
    HolderReturned,
    LinkEstimate,
    MissingShard,
    Reading,
    ReadingAction,
    ReadingEvent,
    ShardCame,
    ShardRefused,
    ShardWrong,
    TimePassed,
    WantedShard,
)
from ciuic_p2p.core.messages import encode
from ciuic_p2p.core.shard_messages import LARGEST_NUMBER, MOST_ASKED, AskShards, CancelShards, RefuseShard, shard_name
from ciuic_p2p.daemon.shard_sending import PIECE_BYTES
from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.transport import Transport
from ciuic_p2p.store.buffers import take_buffer
from ciuic_p2p.store.shards import shard_id_of
from ciuic_p2p.terms import PeerId, ShardId

log = structlog.get_logger(__name__)

MOST_MEMORY_BYTES = 256 << 20
"""Of one reading, for what is on its way."""

TakeShard = Callable[[ShardId, memoryview], None]
"""Keeps the bytes, which were compared with the shard's name. Called in threads, several at once,
perhaps twice for one shard. What it raises ends the reading."""


class _Arrival:
    """One shard on its way from one holder."""

    def __init__(self, reading: _Run, peer: PeerId, shard: ShardId, size_bytes: int) -> None:
        self.reading = reading
        self.peer = peer
        self.shard = shard
        self._size_bytes = size_bytes
        self._data: memoryview | None = None
        self._parts: set[int] = set()
        self._pieces = self._missing = max(-(-size_bytes // PIECE_BYTES), 1)
        self._lock = threading.Lock()

    def take(self, header: FrameHeader, payload: memoryview) -> memoryview | str | None:
        """The whole shard, or what is wrong with it; None while pieces are wanting. In a lane's thread."""
        if header.samples != self._size_bytes:
            return f"it has {header.samples} bytes there, not {self._size_bytes}"
        start = header.part * PIECE_BYTES
        if header.part >= self._pieces or start + len(payload) != min(start + PIECE_BYTES, self._size_bytes):
            return "a piece of it is too long or too short"
        with self._lock:
            if header.part in self._parts:
                return None  # also when all are here: nobody changes what is being compared
            self._parts.add(header.part)
            data = self._data = take_buffer(self._size_bytes) if self._data is None else self._data
        data[start : start + len(payload)] = payload  # not under the lock: lanes copy at the same time
        with self._lock:
            self._missing -= 1
            return None if self._missing else data


class ShardReader:
    """All readings of this peer. Lives in the event loop's thread, but for `frame_received`."""

    def __init__(self, transport: Transport, link: Callable[[PeerId], LinkEstimate], tasks: TaskSet) -> None:
        """link: what is known of the link from a peer."""
        self._transport = transport
        self._link = link
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._arrivals: dict[int, _Arrival] = {}
        self._runs: set[_Run] = set()

    async def read(
        self,
        wanted: Collection[WantedShard],
        take: TakeShard,
        came: Callable[[ShardId], None] = lambda _shard: None,
        late: Callable[[Collection[ShardId]], None] | None = None,
    ) -> tuple[MissingShard, ...]:
        """Returns when all that can be had was taken; what could not. came: told in the loop of each that was taken; late: of
        those that do not come when they should, with nobody else to ask.

        Raises what `take` does.
        """
        if not wanted:
            return ()
        holders = {peer for shard in wanted for peer in shard.holders}
        run = _Run(self, wanted, {peer: self._link(peer) for peer in holders}, take, came, late)
        for peer in holders - self._transport.connected():
            run.tell(HolderLost(peer=peer))
        self._runs.add(run)
        try:
            return await run.run()
        finally:
            self._runs.discard(run)
            self._withdraw([number for number, arrival in self._arrivals.items() if arrival.reading is run])

    # -- what comes ------------------------------------------------------------------------------------------------------

    def frame_received(self, peer: PeerId, header: FrameHeader, payload: memoryview) -> None:
        """In a lane's thread. What nobody waits for any more is dropped."""
        arrival = self._arrivals.get(header.epoch)
        if arrival is None or arrival.peer != peer or bytes.fromhex(arrival.shard[:16]) != header.run:
            return
        found = arrival.take(header, payload)
        if found is not None:
            with contextlib.suppress(RuntimeError):  # the daemon ends
                self._loop.call_soon_threadsafe(self._arrived, header.epoch, arrival, found)

    def refused(self, peer: PeerId, message: RefuseShard) -> None:
        arrival = self._arrivals.get(message.number)
        if arrival is not None and arrival.peer == peer:
            del self._arrivals[message.number]
            arrival.reading.tell(ShardRefused(peer=peer, shard=arrival.shard))

    def session_ended(self, peer: PeerId) -> None:
        for number in [number for number, arrival in self._arrivals.items() if arrival.peer == peer]:
            del self._arrivals[number]
        for run in self._runs:
            run.tell(HolderLost(peer=peer))

    def peer_arrived(self, peer: PeerId) -> None:
        for run in self._runs:
            run.tell(HolderReturned(peer=peer))

    def _arrived(self, number: int, arrival: _Arrival, found: memoryview | str) -> None:
        if self._arrivals.get(number) is not arrival:
            return
        del self._arrivals[number]
        if isinstance(found, str):
            arrival.reading.tell(ShardWrong(peer=arrival.peer, shard=arrival.shard, reason=found))
        else:
            self._tasks.spawn(arrival.reading.check(arrival.peer, arrival.shard, found))

    # -- what readings want (_Run) -----------------------------------------------------------------------------------------

    def ask(self, run: _Run, asks: Iterable[tuple[PeerId, ShardId, int]]) -> None:
        by_peer: dict[PeerId, list[tuple[int, bytes]]] = {}
        for peer, shard, size_bytes in asks:
            number = next(self._numbers) & LARGEST_NUMBER
            self._arrivals[number] = _Arrival(run, peer, shard, size_bytes)
            by_peer.setdefault(peer, []).append((number, shard_name(shard)))
        for peer, wanted in by_peer.items():
            try:
                for start in range(0, len(wanted), MOST_ASKED):
                    message = AskShards(asks=tuple(wanted[start : start + MOST_ASKED]))
                    self._transport.send_message(peer, encode(message))
            except PeerUnreachable:
                run.tell(HolderLost(peer=peer))

    def cancel(self, run: _Run, peer: PeerId, shard: ShardId) -> None:
        self._withdraw(
            [
                number
                for number, arrival in self._arrivals.items()
                if arrival.reading is run and (arrival.peer, arrival.shard) == (peer, shard)
            ]
        )

    def _withdraw(self, numbers: Iterable[int]) -> None:
        by_peer: dict[PeerId, list[int]] = {}
        for number in numbers:
            by_peer.setdefault(self._arrivals.pop(number).peer, []).append(number)
        for peer, cancelled in by_peer.items():
            try:
                for start in range(0, len(cancelled), MOST_ASKED):
                    message = CancelShards(numbers=tuple(cancelled[start : start + MOST_ASKED]))
                    self._transport.send_message(peer, encode(message))
            except PeerUnreachable:
                continue


class _Run:
    """One reading, from its first ask to its end."""

    def __init__(
        self,
        reader: ShardReader,
        wanted: Collection[WantedShard],
        links: Mapping[PeerId, LinkEstimate],
        take: TakeShard,
        came: Callable[[ShardId], None],
        late: Callable[[Collection[ShardId]], None] | None,
    ) -> None:
        self._reader = reader
        self._sizes = {ShardId(shard.shard): shard.size_bytes for shard in wanted}
        self._machine = Reading(wanted, links, _asks_each(wanted, len(links)))
        self._take = take
        self._came = came
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[ReadingEvent | Exception] = asyncio.Queue()
        self._missing: tuple[MissingShard, ...] = ()

    def tell(self, event: ReadingEvent) -> None:
        self._events.put_nowait(event)

    async def run(self) -> tuple[MissingShard, ...]:
        self.tell(TimePassed())
        while not self._machine.finished:
            event = await self._next()
            if isinstance(event, Exception):
                raise event
            self._do(self._machine.handle(event, self._loop.time()))
            if isinstance(event, ShardCame):
                self._came(ShardId(event.shard))
            if self._late is not None:
                self._late([ShardId(shard) for shard in self._machine.late()])
        return self._missing

    async def check(self, peer: PeerId, shard: ShardId, data: memoryview) -> None:
        """Ends in an event, whatever happens."""
        event: ReadingEvent | Exception
        try:
            event = await asyncio.to_thread(self._judge, peer, shard, data)
        except Exception as error:  # whatever it is, it is the reading's caller who must hear of it
            event = error
        self._events.put_nowait(event)

    def _judge(self, peer: PeerId, shard: ShardId, data: memoryview) -> ReadingEvent:
        if shard_id_of(data) != shard:
            return ShardWrong(peer=peer, shard=shard, reason="its bytes are not those of its name")
        self._take(shard, data)
        return ShardCame(peer=peer, shard=shard)

    async def _next(self) -> ReadingEvent | Exception:
        try:
            async with asyncio.timeout_at(self._machine.next_deadline_s()):
                return await self._events.get()
        except TimeoutError:
            return TimePassed()

    def _do(self, actions: list[ReadingAction]) -> None:
        asks: list[tuple[PeerId, ShardId, int]] = []
        for action in actions:
            match action:
                case AskShard(peer=peer, shard=shard):
                    asks.append((peer, ShardId(shard), self._sizes[ShardId(shard)]))
                case CancelAsk(peer=peer, shard=shard):
                    self._reader.cancel(self, peer, ShardId(shard))
                case BlameHolder(peer=peer, shard=shard, reason=reason):
                    log.warning("shard.wrong", peer=peer, shard=shard[:12], reason=reason)
                case FinishReading(missing=missing):
                    self._missing = missing
        self._reader.ask(self, asks)


def _asks_each(wanted: Collection[WantedShard], holders: int) -> int:
    """So many that what is on its way has room in memory."""
    largest_bytes = max((shard.size_bytes for shard in wanted), default=1)
    return max(1, min(ASKS_EACH, MOST_MEMORY_BYTES // max(largest_bytes * holders, 1)))
