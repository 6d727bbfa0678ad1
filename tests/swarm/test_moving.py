"""A session that came up over a relay moves to a direct connection when there is one, and nothing is lost, doubled or told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop
from structlog.testing import capture_logs

from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.net.dialling import DialLimits
from ciuic_p2p.net.envelopes import Kind
from ciuic_p2p.net.lane_opening import OPENING_BYTES, PATH_MAGIC, LaneOpening
from ciuic_p2p.net.sessions import SessionsSettings
from ciuic_p2p.testing.logs import logged
from ciuic_p2p.testing.proxy import Proxy
from ciuic_p2p.testing.swarm import LISTEN, Swarm, SwarmPeer, swarm
from tests.swarm.relay_kit import RelayInside, identity_beside
from tests.swarm.talk_kit import Talk

RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
LOWER = pytest.mark.parametrize("lower", [True, False], ids=["the lower id dials the relay", "the higher id dials the relay"])
EAGER = DialLimits(shortest_pause_s=0.05, relay_after_s=0.05, shortest_search_pause_s=0.1, longest_search_pause_s=0.2)
PATIENT = DialLimits(shortest_search_pause_s=3600, longest_search_pause_s=3600)
NOWHERE = "127.0.0.1:1"


@asynccontextmanager
async def relayed(
    members: Swarm, *, lower: bool = True, limits: DialLimits = PATIENT, delay_s: float = 0.0
) -> AsyncIterator[tuple[SwarmPeer, SwarmPeer, RelayInside]]:
    """Anna and Bert with a session that Anna dialled over the relay."""
    settings = SessionsSettings(listen=LISTEN, dialling=limits)
    bert = await members.add(settings)
    anna = await members.add(settings, identity=await identity_beside(bert.peer, lower=lower))
    relay = RelayInside(members, delay_s=delay_s)
    relay.serve(anna)
    anna.sessions.want(bert.peer, (NOWHERE,))
    for side in (anna, bert):
        await side.heard.until(lambda side=side: bool(side.heard.opened))
        assert side.heard.opened[0][1] == "relay"
    try:
        yield anna, bert, relay
    finally:
        for side in (anna, bert):
            await side.sessions.stop()
        await relay.tasks.cancel()


async def until_direct(*sides: SwarmPeer) -> None:
    for side in sides:
        await side.heard.until(lambda side=side: bool(side.heard.moved))
        assert [path for _, path in side.heard.moved] == ["direct"]
        assert side.heard.closed == []
        assert len(side.heard.opened) == 1


def path(side: SwarmPeer, other: SwarmPeer) -> str:
    return side.sessions.facts(other.peer).path


@RUNNERS
@LOWER
@pytest.mark.parametrize("finders", ["who dialled the relay", "the other", "both"])
def test_a_direct_address_that_is_announced_later_is_taken(run, lower: bool, finders: str) -> None:
    async def story() -> None:
        # given a session over a slow relay, which is never empty
        async with swarm() as members, relayed(members, lower=lower, delay_s=0.01) as (anna, bert, relay):
            talk = Talk((anna, bert))
            talking = asyncio.create_task(talk.go_on())
            await bert.heard.until(lambda: len(bert.heard.frames) > 10)
            assert (path(anna, bert), path(bert, anna)) == ("relay", "relay")

            # when direct addresses become known
            if finders != "the other":
                anna.sessions.want(bert.peer, (NOWHERE, *bert.addresses))
            if finders != "who dialled the relay":
                bert.sessions.want(anna.peer, anna.addresses)

            # then the session moves there, and all that was sent meanwhile arrives
            await until_direct(anna, bert)
            assert (path(anna, bert), path(bert, anna)) == ("direct", "direct")
            await relay.until_left()
            talking.cancel()
            await talk.assert_arrived()

            # and nothing needs the relay any more
            opened, carried = relay.opened, relay.carried_bytes
            relay.vanish()
            for _ in range(20):
                talk.say()
            await talk.assert_arrived()
            assert (relay.opened, relay.carried_bytes) == (opened, carried)
            for side, other in ((anna, bert), (bert, anna)):
                facts = side.sessions.facts(other.peer)
                assert (facts.path, facts.lanes_broken) == ("direct", 0)
                assert side.heard.closed == []

    run(story())


def test_a_session_without_lanes_moves_and_has_direct_ones_later() -> None:
    async def story() -> None:
        async with swarm() as members, relayed(members) as (anna, bert, relay):
            bert.sessions.want(anna.peer, anna.addresses)
            await until_direct(anna, bert)
            await relay.until_left()
            talk = Talk((anna, bert))
            talk.say()
            await talk.assert_arrived()
            assert relay.opened == 1

    asyncio.run(story())


def test_the_known_addresses_are_tried_again_and_again() -> None:
    async def story() -> None:
        # given an address at which nobody listens
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        async with swarm() as members, relayed(members, limits=EAGER) as (anna, bert, _):
            with capture_logs() as logs:
                anna.sessions.want(bert.peer, (f"127.0.0.1:{port}",))
                await logged(logs, lambda entry: entry["event"] == "peer.not_direct")

            # when Bert is there
            server = await asyncio.start_server(splice_to(bert), "127.0.0.1", port)

            # then it is found
            async with server:
                await until_direct(anna, bert)

    asyncio.run(story())


def splice_to(peer: SwarmPeer):
    """A forwarded port."""
    proxy = Proxy(peer.addresses[0])
    return proxy._serve


def test_another_machine_at_the_address_changes_nothing() -> None:
    """One that speaks no such protocol, one that says nothing, and another peer of the swarm."""

    async def story() -> None:
        silent = socket.create_server(("127.0.0.1", 0))
        async with swarm() as members, relayed(members, limits=EAGER) as (anna, bert, _):
            carl = await members.add()
            echo = await asyncio.start_server(send_back, "127.0.0.1", 0)
            with silent, capture_logs() as logs:
                wrong = [f"127.0.0.1:{each.getsockname()[1]}" for each in (silent, echo.sockets[0])]
                anna.sessions.want(bert.peer, (*wrong, *carl.addresses))
                await logged(logs, lambda entry: "belongs to no session" in entry.get("error", ""))
                talk = Talk((anna, bert))
                talk.say()
                await talk.assert_arrived()
                assert (path(anna, bert), anna.heard.moved, carl.heard.opened) == ("relay", [], [])
            echo.close()

    asyncio.run(story())


async def send_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


@RUNNERS
@LOWER
def test_when_the_direct_path_dies_the_relay_is_taken_until_it_is_back(run, lower: bool) -> None:
    async def story() -> None:
        async with swarm() as members, relayed(members, lower=lower, limits=EAGER) as (anna, bert, _):
            # given a session that has moved to a direct path
            async with Proxy(bert.addresses[0]) as proxy:
                anna.sessions.want(bert.peer, (proxy.address,))
                await until_direct(anna, bert)
                talk = Talk((anna, bert))
                talk.say()
                await talk.assert_arrived()

            # when that path is no more, then the session comes up again over the relay
            for side in (anna, bert):
                await side.heard.until(lambda side=side: len(side.heard.opened) == 2)
                assert side.heard.opened[1][1] == "relay"
                assert len(side.heard.closed) == 1
            assert path(anna, bert) == "relay"
            talk.say()
            await talk.assert_arrived()

            # and leaves it again when another direct path is there
            bert.sessions.want(anna.peer, anna.addresses)
            for side in (anna, bert):
                await side.heard.until(lambda side=side: len(side.heard.moved) == 2)
            talk.say()
            await talk.assert_arrived()

    run(story())


@LOWER
def test_an_opening_is_good_once_only_and_only_with_the_sessions_key(lower: bool) -> None:
    async def story() -> None:
        async with swarm() as members, relayed(members, lower=lower) as (anna, bert, _):
            keys = anna.sessions._contacts.link_to(bert.peer).session.lane_keys
            opening = LaneOpening(keys.session_id, 0 if lower else 1, b"s" * 16)
            forged = opening.pack(b"guessed key", PATH_MAGIC)
            good = opening.pack(keys.opening_key, PATH_MAGIC)
            reflected = LaneOpening(keys.session_id, 1 if lower else 0, b"s" * 16).pack(keys.opening_key, PATH_MAGIC)
            as_a_lane = good.replace(PATH_MAGIC, b"CIUL")
            for hostile in (forged, reflected, as_a_lane):
                assert await answer_to(bert, hostile) == b""

            if not lower:
                # Bert decides: he goes where the opening says, and Anna, who knows nothing of it, gives the session up
                assert await answer_to(bert, good) != b""
            else:
                # Bert does not decide: he keeps the connection, and a copy of its opening is refused
                reader, writer = await open_with(bert, good)
                await asyncio.sleep(0.05)
                assert await answer_to(bert, good) == b""
                talk = Talk((anna, bert))
                talk.say()
                await talk.assert_arrived()
                assert path(bert, anna) == "relay"
                writer.close()
                assert not reader.at_eof()

    asyncio.run(story())


async def open_with(peer: SwarmPeer, opening: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = peer.addresses[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    assert len(opening) == OPENING_BYTES
    writer.write(opening)
    return reader, writer


async def answer_to(peer: SwarmPeer, opening: bytes) -> bytes:
    reader, writer = await open_with(peer, opening)
    async with asyncio.timeout(10):
        try:
            return await reader.read(1000)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


@LOWER
@pytest.mark.parametrize("body", [b"\0\0\0\7", b"", b"\0" * 5])
def test_a_move_that_was_not_agreed_ends_the_session(lower: bool, body: bytes) -> None:
    async def story() -> None:
        async with swarm() as members, relayed(members, lower=lower) as (anna, bert, _):
            anna.sessions._contacts.link_to(bert.peer).session.send(Kind.MOVE, body)
            await bert.heard.until(lambda: bool(bert.heard.closed))
            known = body == b"\0\0\0\7" and lower  # anna decides: the connection might have broken meanwhile
            assert isinstance(bert.heard.closed[0][1], MalformedMessage) != known

    asyncio.run(story())


@LOWER
def test_reaching_nothing_is_ignored(lower: bool) -> None:
    async def story() -> None:
        async with swarm() as members, relayed(members, lower=lower) as (anna, bert, _):
            anna.sessions._contacts.link_to(bert.peer).session.send(Kind.REACHED, b"\0\0\0\0")
            anna.sessions._contacts.link_to(bert.peer).session.send(Kind.DRAINED)
            talk = Talk((anna, bert))
            talk.say()
            await talk.assert_arrived()
            assert bert.heard.moved == []

    asyncio.run(story())
