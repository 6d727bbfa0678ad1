"""What every transport keeps: the same suite for the one over sockets and the one in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from ciuic_p2p.errors import MalformedPayload, PeerUnreachable
from ciuic_p2p.net.sessions import Sessions
from ciuic_p2p.net.transport import OutgoingFrame, Transport
from ciuic_p2p.terms import LARGEST_FRAME_BYTES, LARGEST_MESSAGE_BYTES, PeerId
from ciuic_p2p.testing.memory import MemoryNetwork
from ciuic_p2p.testing.recorder import PATIENCE_S, Recorder
from ciuic_p2p.testing.swarm import probe, swarm


@dataclass
class Side:
    peer: PeerId
    transport: Transport
    heard: Recorder
    leave: Callable[[], Awaitable[None]]


Pair = tuple[Side, Side]


@asynccontextmanager
async def memory_pair() -> AsyncIterator[Pair]:
    network = MemoryNetwork()
    sides = []
    for name in ("anna", "bert"):
        heard, peer = Recorder(), PeerId(name)

        async def leave(peer: PeerId = peer) -> None:
            network.leave(peer)

        sides.append(Side(peer, network.add(peer, heard), heard, leave))
    network.connect(PeerId("anna"), PeerId("bert"))
    yield sides[0], sides[1]
    network.leave(PeerId("anna"))


@asynccontextmanager
async def sessions_pair() -> AsyncIterator[Pair]:
    async with swarm() as members:
        anna, bert = await members.add(), await members.add()
        await anna.meet(bert)
        yield (
            Side(anna.peer, anna.sessions, anna.heard, anna.sessions.stop),
            Side(bert.peer, bert.sessions, bert.heard, bert.sessions.stop),
        )


@pytest.fixture(params=[memory_pair, sessions_pair])
def pair(request: pytest.FixtureRequest) -> Callable[[], object]:
    return request.param


def run(pair, story) -> None:
    async def tell() -> None:
        async with pair() as (anna, bert):
            await story(anna, bert)

    asyncio.run(tell())


def test_both_know_of_the_session_first_of_all(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        assert anna.heard.opened == [(bert.peer, "direct")]
        assert bert.heard.opened == [(anna.peer, "direct")]
        assert anna.transport.connected() == {bert.peer}
        assert bert.transport.connected() == {anna.peer}
        anna.transport.send_message(bert.peer, b"hello")
        await bert.heard.until(lambda: len(bert.heard.messages) == 1)
        assert bert.heard.order == ["opened", "message"]

    run(pair, story)


def test_messages_come_whole_and_in_order_both_ways(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        sent = [bytes([number % 256]) * (number * 37) for number in range(200)] + [b"x" * LARGEST_MESSAGE_BYTES]
        for message in sent:
            anna.transport.send_message(bert.peer, message)
            bert.transport.send_message(anna.peer, message)
        for side, other in ((anna, bert), (bert, anna)):
            await side.heard.until(lambda side=side: len(side.heard.messages) == len(sent))
            assert side.heard.messages == [(other.peer, message) for message in sent]

    run(pair, story)


def test_messages_may_be_sent_from_any_thread(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        def send(first: int) -> None:
            for number in range(first, first + 50):
                anna.transport.send_message(bert.peer, b"%d" % number)

        threads = [threading.Thread(target=send, args=(first,)) for first in (0, 1000)]
        for thread in threads:
            thread.start()
        await bert.heard.until(lambda: len(bert.heard.messages) == 100)
        numbers = [int(message) for _, message in bert.heard.messages]
        assert [n for n in numbers if n < 1000] == list(range(50))
        assert [n for n in numbers if n >= 1000] == list(range(1000, 1050))

    run(pair, story)


def test_a_message_over_the_limit_is_refused_before_it_is_sent(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        with pytest.raises(ValueError, match="control message"):
            anna.transport.send_message(bert.peer, b"x" * (LARGEST_MESSAGE_BYTES + 1))
        anna.transport.send_message(bert.peer, b"after")
        await bert.heard.until(lambda: bool(bert.heard.messages))
        assert bert.heard.messages == [(anna.peer, b"after")]

    run(pair, story)


def test_what_frames_need_may_be_opened_before_there_are_any(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        anna.transport.prepare(bert.peer)
        anna.transport.prepare(PeerId("nobody"))
        if isinstance(anna.transport, Sessions):
            async with asyncio.timeout(PATIENCE_S):
                while not (anna.transport.read_lanes(bert.peer) and bert.transport.read_lanes(anna.peer)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        bert.transport.send_frames(anna.peer, [probe(1, b"bulk")])
        await anna.heard.until(lambda: len(anna.heard.frames) == 1)

    run(pair, story)


def test_frames_come_with_header_and_payload_both_ways(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        payloads = {part: bytes([part]) * size for part, size in enumerate([0, 1, 1000, 1 << 20, LARGEST_FRAME_BYTES])}
        for side, other in ((anna, bert), (bert, anna)):
            side.transport.send_frames(other.peer, (probe(part, payload) for part, payload in payloads.items()))
        for side, other in ((anna, bert), (bert, anna)):
            await side.heard.until(lambda side=side: len(side.heard.frames) == len(payloads))
            for peer, header, payload in side.heard.frames:
                assert (peer, header.length, header.samples) == (other.peer, len(payload), header.part * 7)
                assert payload == payloads[header.part]

    run(pair, story)


def test_no_session_no_sending(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        stranger = PeerId("nobody")
        with pytest.raises(PeerUnreachable):
            anna.transport.send_message(stranger, b"x")
        with pytest.raises(PeerUnreachable):
            anna.transport.send_frames(stranger, [probe(0, b"x")])

    run(pair, story)


def test_who_leaves_says_goodbye(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        bert.transport.send_message(anna.peer, b"last words")
        await bert.leave()
        await anna.heard.until(lambda: bool(anna.heard.closed))
        assert anna.heard.closed == [(bert.peer, None)]
        assert anna.transport.connected() == frozenset()
        with pytest.raises(PeerUnreachable):
            anna.transport.send_message(bert.peer, b"x")

    run(pair, story)


def test_a_receiver_that_blames_ends_the_session(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        bert.heard.refuse_frames_with = MalformedPayload(anna.peer, "not a number")
        anna.transport.send_frames(bert.peer, [probe(0, b"bad")])
        await bert.heard.until(lambda: bool(bert.heard.closed))
        await anna.heard.until(lambda: bool(anna.heard.closed))
        assert bert.heard.closed[0] == (anna.peer, bert.heard.refuse_frames_with)
        assert isinstance(anna.heard.closed[0][1], PeerUnreachable)

    run(pair, story)


def test_discarded_frames_do_not_leave(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        let_go = threading.Event()

        def wait() -> bytes:
            let_go.wait(30)
            return b"first"

        held = [OutgoingFrame(probe(part, b"").header, wait) for part in range(2)]  # as many as there are lanes
        anna.transport.send_frames(bert.peer, [*held, *(probe(part, b"later") for part in range(10, 20))])
        anna.transport.discard_frames(lambda peer, header: peer == bert.peer and header.part in range(10, 19))
        let_go.set()
        await bert.heard.until(lambda: any(header.part == 19 for _, header, _ in bert.heard.frames))
        await bert.heard.until(lambda: len(bert.heard.frames) == 3)
        assert {header.part for _, header, _ in bert.heard.frames} == {0, 1, 19}

    run(pair, story)


def test_traffic_is_counted(pair) -> None:
    async def story(anna: Side, bert: Side) -> None:
        before = anna.transport.traffic().bytes_sent
        anna.transport.send_frames(bert.peer, [probe(0, b"x" * 100_000)])
        anna.transport.send_message(bert.peer, b"y" * 1000)
        await bert.heard.until(lambda: bool(bert.heard.frames) and bool(bert.heard.messages))
        assert anna.transport.traffic().bytes_sent >= before + 101_000
        assert bert.transport.traffic().bytes_received >= 101_000

    run(pair, story)
