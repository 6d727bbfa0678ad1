"""Shards between peers: pieces put together, holders that refuse, lie, truncate or leave, and rounds that come first."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterable

import pytest

from ciuic_p2p.core.frames import FrameHeader, FrameKind
from ciuic_p2p.core.hedging import LinkEstimate, MissingShard, WantedShard
from ciuic_p2p.core.messages import AskShards, CancelShards, RefuseShard, decode, encode
from ciuic_p2p.daemon.shard_reading import ShardReader
from ciuic_p2p.daemon.shard_sending import MOST_AHEAD, PIECE_BYTES, Restraint, ShardSender
from ciuic_p2p.errors import PeerUnreachable, StoreFull
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.transport import OutgoingFrame
from ciuic_p2p.store.fresh import FreshShards
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.store.shards import shard_id_of
from ciuic_p2p.terms import PeerId, ShardId
from ciuic_p2p.testing.memory import MemoryNetwork

READER, HOLDER, OTHER = PeerId("reader"), PeerId("holder"), PeerId("other")
NEAR = LinkEstimate(rtt_s=0.001, goodput_mbps=1000.0)


class Peer:
    """One that gives its shards and takes others'; `lies` is what it does instead of giving, when asked."""

    def __init__(self, network: MemoryNetwork, peer: PeerId) -> None:
        self.peer = peer
        self.is_busy = False
        """A round is under way, on a line so slow that the share of shards is nothing."""
        self.fresh = FreshShards(readers=1)
        self.store = MemoryStore()
        self.tasks = TaskSet()
        self.transport = network.add(peer, self)
        self.damaged: list[ShardId] = []
        self.sender = ShardSender(
            self.transport,
            self.fresh,
            self.store,
            Restraint(lambda: self.is_busy, lambda: 1e-3 if self.is_busy else 0.0),
            self.tasks,
            self.damaged.append,
        )
        self.reader = ShardReader(self.transport, lambda _: NEAR, self.tasks)
        self.lies: Callable[[PeerId, int, ShardId], Iterable[OutgoingFrame]] | None = None
        self.asked: list[ShardId] = []
        self.pieces = 0
        self.on_piece: Callable[[], None] = lambda: None

    def message_received(self, peer: PeerId, message: bytes) -> None:
        match decode(message):
            case AskShards(asks=asks) as ask:
                self.asked += [ShardId(name.hex()) for _, name in asks]
                if self.lies is None:
                    self.sender.asked(peer, ask)
                else:
                    for number, name in asks:
                        self.transport.send_frames(peer, self.lies(peer, number, ShardId(name.hex())))
            case CancelShards() as cancel:
                self.sender.cancelled(peer, cancel)
            case RefuseShard() as refusal:
                self.reader.refused(peer, refusal)

    def frame_received(self, peer: PeerId, header: FrameHeader, payload: memoryview) -> None:
        self.reader.frame_received(peer, header, payload)
        self.pieces += 1
        self.on_piece()

    def session_opened(self, peer: PeerId, path: str) -> None:
        self.reader.peer_arrived(peer)

    def session_closed(self, peer: PeerId, error: Exception | None) -> None:
        self.sender.session_ended(peer)
        self.reader.session_ended(peer)

    async def read(self, *wanted: WantedShard) -> tuple[MissingShard, ...]:
        return await self.reader.read(wanted, lambda _, data: void(self.store.put(memoryview(data))))


def void(_: object) -> None:
    return None


def random_bytes(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def wanted(shard: ShardId, size_bytes: int, *holders: PeerId) -> WantedShard:
    return WantedShard(shard=shard, size_bytes=size_bytes, holders=holders or (HOLDER,))


def with_peers(scenario: Callable[[MemoryNetwork, Peer, Peer, Peer], object]) -> None:
    """A reader with sessions to two holders."""

    async def run() -> None:
        network = MemoryNetwork()
        peers = [Peer(network, peer) for peer in (READER, HOLDER, OTHER)]
        for holder in peers[1:]:
            network.connect(READER, holder.peer)
        try:
            async with asyncio.timeout(30):
                await scenario(network, *peers)  # type: ignore[misc]  # a coroutine
        finally:
            for peer in peers:
                network.leave(peer.peer)
                await peer.tasks.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("size_bytes", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
def test_a_shard_of_any_size_arrives_whole(size_bytes: int) -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        data = random_bytes(size_bytes)
        shard = holder.store.put(data)
        assert await reader.read(wanted(shard, size_bytes)) == ()
        assert reader.store.get(shard) == data

    with_peers(scenario)


def test_many_shards_come_from_both_holders() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, other: Peer) -> None:
        datas = [random_bytes(PIECE_BYTES, seed) for seed in range(20)]
        for data in datas:
            holder.store.put(data)
            other.store.put(data)
        assert await reader.read(*(wanted(shard_id_of(data), len(data), HOLDER, OTHER) for data in datas)) == ()
        assert {reader.store.get(shard_id_of(data)) for data in datas} == set(datas)
        assert holder.asked
        assert other.asked

    with_peers(scenario)


def test_what_nobody_has_is_named_with_those_that_were_asked() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, other: Peer) -> None:
        shard = shard_id_of(b"nowhere")
        [missing] = await reader.read(wanted(shard, 7, HOLDER, OTHER))
        assert missing.shard == shard
        assert set(missing.asked) == {HOLDER, OTHER}
        assert holder.damaged == other.damaged == [shard]

    with_peers(scenario)


def piece_of(data: bytes, shard: ShardId, number: int, part: int, payload: bytes) -> OutgoingFrame:
    header = FrameHeader(
        kind=FrameKind.SHARD,
        codec=0,
        run=bytes.fromhex(shard[:16]),
        epoch=number,
        term=0,
        part=part,
        samples=len(data),
    )
    return OutgoingFrame(header, lambda: payload)


def test_a_piece_that_comes_twice_changes_nothing() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        data = random_bytes(2 * PIECE_BYTES)
        shard = shard_id_of(data)

        def give(_: PeerId, number: int, shard: ShardId) -> list[OutgoingFrame]:
            right = [data[:PIECE_BYTES], data[PIECE_BYTES:]]
            said = [(0, right[0]), (0, bytes(PIECE_BYTES)), (1, right[1]), (1, bytes(PIECE_BYTES)), (0, bytes(PIECE_BYTES))]
            return [piece_of(data, shard, number, part, payload) for part, payload in said]

        holder.lies = give
        assert await reader.read(wanted(shard, len(data))) == ()
        assert reader.store.get(shard) == data

    with_peers(scenario)


def test_a_piece_that_the_shard_has_not_takes_no_other_ones_place() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, liar: Peer, honest: Peer) -> None:
        data = random_bytes(2 * PIECE_BYTES)
        shard = honest.store.put(data)
        liar.lies = lambda _, number, shard: [
            piece_of(data, shard, number, 1, data[PIECE_BYTES:]),
            piece_of(data, shard, number, 2, b""),
        ]
        assert await reader.read(wanted(shard, len(data), HOLDER, OTHER)) == ()
        assert reader.store.get(shard) == data
        assert honest.asked == [shard]

    with_peers(scenario)


def test_what_was_just_put_is_sent_without_the_store() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        data = random_bytes(PIECE_BYTES + 1)
        shard = shard_id_of(data)
        holder.fresh.keep(shard, data)
        assert await reader.read(wanted(shard, len(data))) == ()
        assert reader.store.get(shard) == data
        assert not holder.store.has(shard)

    with_peers(scenario)


def _flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize(
    "lie",
    [
        lambda data: (_flipped(data), len(data)),
        lambda data: (data[:-1], len(data)),
        lambda data: (data[:-1], len(data) - 1),
        lambda data: (data + b"more", len(data)),
        lambda data: (data + b"more", len(data) + 4),
    ],
    ids=["a flipped bit", "a short piece", "another size", "a long piece", "more than the shard"],
)
def test_a_holder_that_lies_is_not_believed_and_the_reading_goes_on(lie: Callable[[bytes], tuple[bytes, int]]) -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, liar: Peer, honest: Peer) -> None:
        data = random_bytes(1000)
        shard = honest.store.put(data)

        def give(_: PeerId, number: int, shard: ShardId) -> list[OutgoingFrame]:
            payload, size_bytes = lie(data)
            header = FrameHeader(
                kind=FrameKind.SHARD,
                codec=0,
                run=bytes.fromhex(shard[:16]),
                epoch=number,
                term=0,
                part=0,
                samples=size_bytes,
            )
            return [OutgoingFrame(header, lambda: payload)]

        liar.lies = give

        # when the liar alone is asked, nothing is had
        [missing] = await reader.read(wanted(shard, len(data), HOLDER))
        assert missing.asked == (HOLDER,)
        assert not reader.store.has(shard)

        # when there is another holder, the shard comes from it
        assert await reader.read(wanted(shard, len(data), HOLDER, OTHER)) == ()
        assert reader.store.get(shard) == data

    with_peers(scenario)


def test_frames_that_nobody_asked_for_are_dropped() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        header = FrameHeader(kind=FrameKind.SHARD, codec=0, run=bytes(8), epoch=7, term=0, part=9, samples=1 << 60)
        holder.transport.send_frames(READER, [OutgoingFrame(header, lambda: b"unwanted")])
        data = random_bytes(10)
        assert await reader.read(wanted(holder.store.put(data), 10)) == ()
        assert reader.pieces == 2

    with_peers(scenario)


def test_when_a_holder_is_lost_half_way_another_one_gives_the_rest() -> None:
    async def scenario(network: MemoryNetwork, reader: Peer, holder: Peer, other: Peer) -> None:
        data = random_bytes(8 * PIECE_BYTES)
        shard = holder.store.put(data)
        other.store.put(data)
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        reader.on_piece = lambda: void(loop.call_soon_threadsafe(arrived.set))
        reading = asyncio.ensure_future(reader.read(wanted(shard, len(data), HOLDER, OTHER)))
        await arrived.wait()
        network.cut(READER, reader_of(holder, other), PeerUnreachable("it died"))
        assert await reading == ()
        assert reader.store.get(shard) == data

    with_peers(scenario)


def reader_of(*holders: Peer) -> PeerId:
    """Who was asked first."""
    return next(holder.peer for holder in holders if holder.asked)


def test_what_taking_raises_ends_the_reading() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        reader.store = MemoryStore(quota_bytes=100)
        shard = holder.store.put(random_bytes(1000))
        with pytest.raises(StoreFull, match="quota"):
            await reader.read(wanted(shard, 1000))

    with_peers(scenario)


def test_a_damaged_shard_is_refused_and_reported() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        data = random_bytes(1000)
        shard = holder.store.put(data)
        holder.store.damage(shard, _flipped(data))
        [missing] = await reader.read(wanted(shard, 1000))
        assert missing.shard == shard
        assert reader.pieces == 0
        assert holder.damaged == [shard]

    with_peers(scenario)


def test_a_cancelled_shard_does_not_hold_up_the_next_one() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        first, second = (holder.store.put(random_bytes(40 * PIECE_BYTES, seed)) for seed in (1, 2))
        ask = AskShards(asks=((1, bytes.fromhex(first)), (2, bytes.fromhex(second))))
        reader.transport.send_message(HOLDER, encode(ask))
        reader.transport.send_message(HOLDER, encode(CancelShards(numbers=(1,))))
        third = holder.store.put(random_bytes(10, 3))
        assert await reader.read(wanted(third, 10)) == ()

    with_peers(scenario)


def test_what_waits_for_a_lane_makes_way_for_a_round() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        # given a lane that has taken one piece, behind which others wait
        lane_is_free, arrived = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_piece() -> None:
            loop.call_soon_threadsafe(arrived.set)
            lane_is_free.wait(20)

        reader.on_piece = on_piece
        data = random_bytes(12 * PIECE_BYTES)
        reading = asyncio.ensure_future(reader.read(wanted(holder.store.put(data), len(data))))
        await arrived.wait()

        # when a round begins
        holder.is_busy = True
        holder.sender.tick()
        lane_is_free.set()

        # then one piece is in its way at most, beside the one that was under way
        done, _pending = await asyncio.wait({reading}, timeout=0.3)
        assert not done
        assert reader.pieces <= 3

        # and when it is over, all arrives
        holder.is_busy = False
        holder.sender.tick()
        assert await reading == ()
        assert reader.store.get(shard_id_of(data)) == data

    with_peers(scenario)


def test_small_shards_wait_for_a_lane_like_large_ones() -> None:
    async def scenario(_: MemoryNetwork, reader: Peer, holder: Peer, __: Peer) -> None:
        lane_is_free = threading.Event()
        reader.on_piece = lambda: void(lane_is_free.wait(20))
        queued = 0
        send = holder.transport.send_frames

        def count(peer: PeerId, frames: Iterable[OutgoingFrame]) -> None:
            nonlocal queued
            queued += 1
            send(peer, frames)

        holder.transport.send_frames = count  # type: ignore[method-assign]  # counts what goes to the lanes
        shards = [holder.store.put(random_bytes(100, seed)) for seed in range(100)]
        asks = tuple((number, bytes.fromhex(shard)) for number, shard in enumerate(shards))
        reader.transport.send_message(HOLDER, encode(AskShards(asks=asks)))
        await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=0.3)
        assert queued <= MOST_AHEAD + 2
        lane_is_free.set()
        assert await reader.read(*(wanted(shard, 100) for shard in shards)) == ()

    with_peers(scenario)


def test_while_a_round_is_under_way_pieces_wait_for_their_share_of_the_line() -> None:
    async def scenario() -> None:
        busy = True
        restraint = Restraint(lambda: busy, lambda: 1e-3)  # a line so slow that no share ever comes
        await restraint.turn(PIECE_BYTES)
        second = asyncio.ensure_future(restraint.turn(PIECE_BYTES))
        done, _ = await asyncio.wait({second}, timeout=0.2)
        assert not done

        # when the round is over, all go at once
        busy = False
        await second
        for _ in range(1000):
            await restraint.turn(PIECE_BYTES)

    asyncio.run(scenario())


def test_on_a_slow_line_little_lies_before_a_round() -> None:
    assert Restraint(lambda: False, lambda: 10.0).pieces_ahead() == 1
    assert 1 < Restraint(lambda: False, lambda: 500.0).pieces_ahead() < MOST_AHEAD
    assert Restraint(lambda: False, lambda: 0.0).pieces_ahead() == MOST_AHEAD
