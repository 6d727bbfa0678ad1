"""Who is no member gets nothing but a handshake: no session, no lane, no memory, and no harm to the members."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from ciuic_p2p.core.membership import Membership, RootKey, bind
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.envelopes import Envelope, Hello, Kind, pack_envelope, pack_hello
from ciuic_p2p.net.lane_opening import LANE_MAGIC, OPENING_BYTES, LaneOpening
from ciuic_p2p.net.meters import Meter
from ciuic_p2p.net.secure_stream import SecureStream
from ciuic_p2p.net.session import SessionLimits
from ciuic_p2p.net.sessions import SessionsSettings
from ciuic_p2p.net.strangers import StrangerLimits
from ciuic_p2p.net.tls import TlsCredentials
from ciuic_p2p.net.wires import connect, split_address
from ciuic_p2p.terms import LARGEST_MESSAGE_BYTES, PeerId
from ciuic_p2p.testing.logs import logged
from ciuic_p2p.testing.swarm import LISTEN, Swarm, SwarmPeer, probe, swarm


class FixedToken:
    """A gate that shows one token, whoever asks, and lets everybody in."""

    def __init__(self, swarm_gate: Membership, token: bytes) -> None:
        self._gate = swarm_gate
        self._token = token

    def my_token(self) -> bytes:
        return self._token

    def admit(self, peer: PeerId, token: bytes, now: float):
        return self._gate.admit(peer, token, now)


def foreign_tokens(members: Swarm, peer: PeerId, friend: PeerId) -> dict[str, bytes]:
    return {
        "malformed": b"",
        "not bound": members.root.invite().token,
        "bound to another": bind(members.root.invite(), friend),
        "another swarm": bind(RootKey.generate().invite(), peer),
        "expired": bind(members.root.invite(expires_at=time.time() - 3600), peer),
        "at most": b"x" * 4097,
    }


@pytest.mark.parametrize("reason", ["malformed", "not bound", "bound to another", "another swarm", "expired", "at most"])
@pytest.mark.parametrize("dialled_by_stranger", [True, False])
def test_a_wrong_token_opens_nothing(reason: str, dialled_by_stranger: bool) -> None:
    async def story() -> None:
        async with swarm() as members:
            anna = await members.add()
            identity = Ed25519PrivateKey.generate()
            peer = peer_id_of(identity.public_key())
            token = foreign_tokens(members, peer, anna.peer)[reason]
            eve = await members.add(identity=identity, gate=FixedToken(members.gate(peer), token))
            dialler, dialled = (eve, anna) if dialled_by_stranger else (anna, eve)
            event = "connection.refused" if dialled_by_stranger else "peer.refused"
            with capture_logs() as logs:
                dialler.sessions.want(dialled.peer, dialled.addresses)
                await logged(logs, lambda entry: entry["event"] == event and reason in entry["error"])
                await logged(logs, lambda entry: "it refuses this peer" in entry.get("error", "") and reason in entry["error"])
            assert anna.heard.order == eve.heard.order == []
            assert anna.sessions.connected() == frozenset()

    asyncio.run(story())


def test_another_peer_at_a_known_address_is_not_taken_for_it() -> None:
    async def story() -> None:
        async with swarm() as members:
            anna, bert, carl = [await members.add() for _ in range(3)]
            with capture_logs() as logs:
                anna.sessions.want(carl.peer, bert.addresses)
                await logged(logs, lambda entry: f"{bert.peer} answered in its place" in entry.get("error", ""))
            assert anna.sessions.connected() == bert.sessions.connected() == frozenset()

    asyncio.run(story())


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"\0" * 100,
        b"\x16\x03\x01\x00\x05hello" * 50,
        LANE_MAGIC + b"\0" * (OPENING_BYTES - 4),
        b"\0" * 1000,
    ],
)
def test_other_bytes_are_hung_up_on(said: bytes) -> None:
    async def story() -> None:
        async with swarm() as members:
            anna = await members.add()
            reader, writer = await asyncio.open_connection(*split_address(anna.addresses[0]))
            writer.write(said)
            async with asyncio.timeout(10):
                assert LANE_MAGIC not in await read_to_end(reader)
            writer.close()

    asyncio.run(story())


def test_a_lane_is_not_had_without_the_sessions_key() -> None:
    """Not even by one who has seen the session's id on the cable."""

    async def story() -> None:
        async with swarm() as members:
            anna, bert = await members.add(), await members.add()
            await anna.meet(bert)
            session_id = next(iter(bert.sessions._linker._links))
            reader, writer = await asyncio.open_connection(*split_address(bert.addresses[0]))
            writer.write(LaneOpening(session_id, 0, b"s" * 16).pack(b"guessed key"))
            async with asyncio.timeout(10):
                assert await read_to_end(reader) == b""
            anna.sessions.send_frames(bert.peer, [probe(1, b"still works")])
            await bert.heard.until(lambda: len(bert.heard.frames) == 1)
            writer.close()

    asyncio.run(story())


def test_a_lane_number_is_used_once() -> None:
    async def story() -> None:
        async with swarm() as members:
            anna, bert = await members.add(), await members.add()
            await anna.meet(bert)
            anna.sessions.send_frames(bert.peer, [probe(1, b"opens lanes")])
            await bert.heard.until(lambda: len(bert.heard.frames) == 1)
            keys = next(iter(anna.sessions._linker._links.values())).session.lane_keys
            wire = await connect(bert.addresses[0])
            used = min(bert.sessions._contacts.link_to(anna.peer).lanes._used_numbers)
            await wire.write(LaneOpening(keys.session_id, used, b"s" * 16).pack(keys.opening_key))
            async with asyncio.timeout(10):
                with pytest.raises(PeerUnreachable, match="closed"):
                    await wire.read_exactly(1)
            wire.close()

    asyncio.run(story())


def test_strangers_take_a_bounded_number_of_places_for_a_bounded_time() -> None:
    async def story() -> None:
        limits = StrangerLimits(most=4, most_a_source=3, deadline_s=0.5)
        async with swarm() as members:
            anna = await members.add(SessionsSettings(listen=LISTEN, strangers=limits))
            where = split_address(anna.addresses[0])
            with capture_logs() as logs:
                idle = [await asyncio.open_connection(*where) for _ in range(3)]
                await asyncio.sleep(0)
                reader, writer = await asyncio.open_connection(*where)
                async with asyncio.timeout(10):
                    assert await read_to_end(reader) == b""  # refused at once, the places are taken
                    assert [await read_to_end(reader) for reader, _ in idle] == [b""] * 3  # the deadline ended them
                await logged(logs, lambda entry: "too many unknown" in entry.get("error", ""))
                await logged(logs, lambda entry: "took too long" in entry.get("error", ""))
            bert = await members.add()
            await bert.meet(anna)
            for _, each in [*idle, (reader, writer)]:
                each.close()

    asyncio.run(story())


@asynccontextmanager
async def raw_member(members: Swarm, target: SwarmPeer, *, lower: bool) -> AsyncIterator[tuple[SecureStream, PeerId]]:
    """A member that speaks TLS by hand, up to the open session. lower: whether it is the one that decides."""
    while True:
        identity = Ed25519PrivateKey.generate()
        peer = peer_id_of(identity.public_key())
        if (peer < target.peer) == lower:
            break
    wire = await connect(target.addresses[0])
    stream = SecureStream(await wire.streams(), TlsCredentials(identity, time.time()).channel(dialing=True), Meter())
    assert await stream.shake_hands() == target.peer
    stream.envelopes.largest_bytes = LARGEST_MESSAGE_BYTES
    try:
        yield stream, peer
    finally:
        stream.abort()


def hello_of(members: Swarm, peer: PeerId) -> Hello:
    return Hello(token=members.gate(peer).my_token(), name="raw", instance=b"i" * 16, ended=None)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (lambda hello: pack_envelope(Kind.MESSAGE, b"hello"), "before the session was open"),
        (lambda hello: pack_envelope(Kind.HELLO, b"\xc1"), "does not decode"),
        (lambda hello: pack_envelope(Kind.HELLO, pack_hello(replace(hello, instance=b"short"))), "out of range"),
        (lambda hello: pack_envelope(Kind.HELLO, b"\x81\xa7version\x63"), "protocol version 99"),
        (lambda hello: struct.pack("!IB", 1 << 31, Kind.HELLO), "announced"),
        (lambda hello: struct.pack("!IB", 0, 77), "unknown kind"),
    ],
)
def test_a_wrong_first_message_is_named(first, reason: str) -> None:
    async def story() -> None:
        async with swarm() as members:
            anna = await members.add()
            async with raw_member(members, anna, lower=False) as (stream, peer):
                with capture_logs() as logs:
                    stream.channel.write(first(hello_of(members, peer)))
                    stream._flush()
                    while await stream.receive() is not None:
                        pass
                    stream.abort()
                    await logged(logs, lambda entry: reason in entry.get("error", ""))
                assert anna.heard.order == []

    asyncio.run(story())


async def open_by_hand(members: Swarm, stream: SecureStream, peer: PeerId) -> None:
    stream.send(Kind.HELLO, pack_hello(hello_of(members, peer)))
    stream.send(Kind.WELCOME)
    for expected in (Kind.HELLO, Kind.WELCOME, Kind.OPEN):
        envelope = await stream.receive()
        assert isinstance(envelope, Envelope)
        assert envelope.kind == expected


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (struct.pack("!IB", LARGEST_MESSAGE_BYTES + 1, Kind.MESSAGE), "announced"),
        (struct.pack("!IB", 0, 200), "unknown kind"),
        (pack_envelope(Kind.HELLO, b""), "in an open session"),
        (pack_envelope(Kind.PING, b"long ping" * 99), "in an open session"),
    ],
)
def test_a_member_that_breaks_the_protocol_is_blamed(said: bytes, reason: str) -> None:
    async def story() -> None:
        async with swarm() as members:
            anna = await members.add()
            async with raw_member(members, anna, lower=False) as (stream, peer):
                await open_by_hand(members, stream, peer)
                stream.channel.write(said)
                stream._flush()
                await anna.heard.until(lambda: bool(anna.heard.closed))
                assert anna.heard.closed[0][0] == peer
                assert reason in str(anna.heard.closed[0][1])
                assert peer in str(anna.heard.closed[0][1])

    asyncio.run(story())


def test_a_member_that_reads_nothing_is_given_up_before_memory_is() -> None:
    async def story() -> None:
        limits = SessionLimits(backlog_bytes=1 << 20)
        async with swarm() as members:
            anna = await members.add(SessionsSettings(listen=LISTEN, session=limits))
            async with raw_member(members, anna, lower=False) as (stream, peer):
                await open_by_hand(members, stream, peer)
                sent = 0
                while not anna.heard.closed and sent < 2000:
                    anna.sessions.send_message(peer, b"x" * 65536)
                    sent += 1
                    await asyncio.sleep(0)
                assert "does not read" in str(anna.heard.closed[0][1])

    asyncio.run(story())


def test_a_member_that_is_silent_is_given_up() -> None:
    async def story() -> None:
        limits = SessionLimits(tick_s=0.05, silent_ticks=3)
        async with swarm() as members:
            anna = await members.add(SessionsSettings(listen=LISTEN, session=limits))
            async with raw_member(members, anna, lower=False) as (stream, peer):
                await open_by_hand(members, stream, peer)
                await anna.heard.until(lambda: bool(anna.heard.closed))
                assert "silent" in str(anna.heard.closed[0][1])

    asyncio.run(story())


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Until it is closed, by whatever means."""
    data = b""
    try:
        while piece := await reader.read(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data
