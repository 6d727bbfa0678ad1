"""Sessions between real peers: both dial at once, one restarts, one is behind a relay, one leaves; and what is told of it."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
import uvloop
from structlog.testing import capture_logs

from ciuic_p2p.errors import AddressUnusable, PeerUnreachable
from ciuic_p2p.net.dialling import DialLimits
from ciuic_p2p.net.session import SessionLimits
from ciuic_p2p.net.sessions import SessionsSettings
from ciuic_p2p.terms import PeerId
from ciuic_p2p.testing.logs import logged
from ciuic_p2p.testing.proxy import Proxy
from ciuic_p2p.testing.swarm import LISTEN, probe, swarm
from tests.swarm.relay_kit import RelayInside, identity_beside

RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@RUNNERS
def test_two_that_dial_at_once_have_one_session(run) -> None:
    async def story() -> None:
        async with swarm() as members:
            for _ in range(5):
                anna, bert = await members.add(), await members.add()
                anna.sessions.want(bert.peer, bert.addresses)
                bert.sessions.want(anna.peer, anna.addresses)
                for side, other in ((anna, bert), (bert, anna)):
                    await side.heard.until(lambda side=side: bool(side.heard.opened))
                    side.sessions.send_message(other.peer, b"first")
                    side.sessions.send_frames(other.peer, [probe(7, b"x" * 1000)])
                for side in (anna, bert):
                    await side.heard.until(lambda side=side: bool(side.heard.messages and side.heard.frames))
                    assert side.heard.order.count("opened") == 1
                    assert side.heard.closed == []

    run(story())


@RUNNERS
def test_six_peers_that_all_dial_each_other(run) -> None:
    async def story() -> None:
        async with swarm() as members:
            peers = [await members.add() for _ in range(6)]
            for one in peers:
                for other in peers:
                    if one is not other:
                        one.sessions.want(other.peer, other.addresses)
            for one in peers:
                await one.heard.until(lambda one=one: len(one.sessions.connected()) == 5)
                for other in peers:
                    if one is not other:
                        one.sessions.send_message(other.peer, b"hello")
            for one in peers:
                await one.heard.until(lambda one=one: len(one.heard.messages) == 5)
                assert one.heard.closed == []
                assert len(one.heard.opened) == 5

    run(story())


@pytest.mark.parametrize("lower", [True, False])
def test_a_peer_that_was_restarted_gets_a_new_session_at_once(lower: bool) -> None:
    """Its old process says nothing any more, and its old session is not noticed to be dead by itself."""

    async def story() -> None:
        async with swarm() as members:
            anna = await members.add()
            identity = await identity_beside(anna.peer, lower=lower)
            old = await members.add(identity=identity)
            async with Proxy(anna.addresses[0]) as proxy:
                await old.meet(anna, proxy.address)  # stays open, as if the cable had been cut
                new = await members.add(identity=identity)
                await new.meet(anna)
                await anna.heard.until(lambda: len(anna.heard.opened) == 2)
                assert [type(error) for _, error in anna.heard.closed] == [PeerUnreachable]
                assert anna.heard.order == ["opened", "closed", "opened"]
                old.sessions.unwant(anna.peer)
                anna.sessions.send_message(new.peer, b"to the new one")
                await new.heard.until(lambda: bool(new.heard.messages))

    asyncio.run(story())


@pytest.mark.parametrize("lower", [True, False])
def test_a_loss_that_only_one_side_noticed_ends_the_old_session(lower: bool) -> None:
    async def story() -> None:
        async with swarm() as members:
            anna = await members.add()
            bert = await members.add(identity=await identity_beside(anna.peer, lower=lower))
            await bert.meet(anna)
            bert.sessions._contacts.link_to(anna.peer).session._stream._writer.transport.pause_reading()
            anna.sessions._contacts.link_to(bert.peer).session.end(PeerUnreachable("played by the test"))
            anna.sessions.want(bert.peer, bert.addresses)
            for side in (anna, bert):
                await side.heard.until(lambda side=side: len(side.heard.opened) == 2)
                assert side.heard.order == ["opened", "closed", "opened"]

    asyncio.run(story())


@RUNNERS
def test_leaving_is_seen_by_all(run) -> None:
    async def story() -> None:
        async with swarm() as members:
            peers = [await members.add() for _ in range(3)]
            for other in peers[1:]:
                await peers[0].meet(other)
                peers[0].sessions.send_frames(other.peer, [probe(0, b"opens lanes")])
                await other.heard.until(lambda other=other: bool(other.heard.frames))
            with capture_logs() as logs:
                await peers[0].sessions.stop()
            assert "lane.broken" not in [entry["event"] for entry in logs]
            for other in peers[1:]:
                await other.heard.until(lambda other=other: bool(other.heard.closed))
                assert other.heard.closed == [(peers[0].peer, None)]
            assert peers[0].sessions.connected() == frozenset()

    run(story())


def test_an_address_that_is_taken_is_one_clear_line() -> None:
    async def story() -> None:
        async with swarm() as members:
            anna = await members.add()
            with pytest.raises(AddressUnusable, match=rf"cannot listen on {anna.addresses[0]} \(.*\); choose another"):
                await members.add(SessionsSettings(listen=(LISTEN[0], anna.addresses[0])))
            with pytest.raises(AddressUnusable, match="not host:port"):
                anna.sessions.want(PeerId("x"), ("nonsense",))

    asyncio.run(story())


def test_a_dead_address_does_not_keep_a_peer_away() -> None:
    """The first address answers nothing, the second is a wrong peer's, the third is right."""

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with swarm() as members:
                anna, bert, carl = [await members.add() for _ in range(3)]
                addresses = (f"127.0.0.1:{silent.getsockname()[1]}", *carl.addresses, *bert.addresses)
                anna.sessions.want(bert.peer, addresses)
                await bert.heard.until(lambda: bool(bert.heard.opened))
                assert carl.heard.opened == []

    asyncio.run(story())


def test_new_addresses_are_dialled_without_waiting_for_the_pause_to_end() -> None:
    async def story() -> None:
        pauses = DialLimits(shortest_pause_s=3600, longest_pause_s=3600)
        async with swarm() as members:
            anna = await members.add(SessionsSettings(listen=LISTEN, dialling=pauses))
            bert = await members.add()
            with capture_logs() as logs:
                anna.sessions.want(bert.peer, ())
                await logged(logs, lambda entry: entry["event"] == "peer.unreachable")
            await anna.meet(bert)

    asyncio.run(story())


@RUNNERS
def test_a_peer_without_an_address_is_reached_through_a_relay(run) -> None:
    async def story() -> None:
        async with swarm() as members:
            anna, bert = await members.add(), await members.add()
            relay = RelayInside(members)
            relay.serve(anna)
            anna.sessions.want(bert.peer, ())
            for side in (anna, bert):
                await side.heard.until(lambda side=side: bool(side.heard.opened))
            assert anna.heard.opened == [(bert.peer, "relay")]
            assert bert.heard.opened == [(anna.peer, "relay")]
            payloads = [os.urandom(200_000) for _ in range(20)]
            for side, other in ((bert, anna), (anna, bert)):
                side.sessions.send_message(other.peer, b"hello")
                side.sessions.send_frames(other.peer, [probe(part, payload) for part, payload in enumerate(payloads)])
            for side in (anna, bert):
                await side.heard.until(lambda side=side: len(side.heard.frames) == 20 and bool(side.heard.messages))
                assert {header.part: payload for _, header, payload in side.heard.frames} == dict(enumerate(payloads))
            assert relay.opened == 3  # the session and two lanes
            assert anna.sessions.traffic_with(bert.peer).bytes_sent > 4_000_000
            await anna.sessions.stop()
            await bert.heard.until(lambda: bool(bert.heard.closed))
            assert bert.heard.closed == [(anna.peer, None)]
            await relay.tasks.finish(10)

    run(story())


def test_facts_of_a_session() -> None:
    async def story() -> None:
        async with swarm() as members:
            settings = SessionsSettings(listen=LISTEN, name="Anna's", session=SessionLimits(tick_s=0.02))
            anna, bert = await members.add(settings), await members.add()
            await anna.meet(bert)
            async with asyncio.timeout(10):
                while anna.sessions.facts(bert.peer).round_trip_s is None:  # noqa: ASYNC110 - a ping tells nobody
                    await asyncio.sleep(0.01)
            facts = bert.sessions.facts(anna.peer)
            assert (facts.name, facts.path, facts.member.peer, facts.lanes_broken) == ("Anna's", "direct", anna.peer, 0)
            with pytest.raises(PeerUnreachable):
                anna.sessions.facts(PeerId("nobody"))

    asyncio.run(story())
