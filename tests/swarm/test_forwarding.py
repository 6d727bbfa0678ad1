"""Two peers that nobody can dial meet through a third one, which sees ciphertext only and is not obliged to anything."""

from __future__ import annotations

import asyncio
import resource
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

import pytest
import uvloop
from structlog.testing import capture_logs

from ciuic_p2p.core.paths import via
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.errors import MalformedMessage, PeerUnreachable
from ciuic_p2p.net.dialling import DialLimits
from ciuic_p2p.net.envelopes import Envelope, Kind
from ciuic_p2p.net.forwarding import ForwardLimits
from ciuic_p2p.net.sessions import SessionsSettings
from ciuic_p2p.net.splice_messages import SPLICE_MAGIC, TICKET_BYTES, WayAsked, pack_asked, unpack_given
from ciuic_p2p.terms import PeerId
from ciuic_p2p.testing.logs import logged
from ciuic_p2p.testing.proxy import Proxy
from ciuic_p2p.testing.swarm import LISTEN, Swarm, SwarmPeer, probe, swarm
from tests.swarm.relay_kit import RelayInside, identity_beside
from tests.swarm.swarm_kit import eventually
from tests.swarm.talk_kit import Talk

RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
LOWER = pytest.mark.parametrize("lower", [True, False], ids=["the lower id asks", "the higher id asks"])
EAGER = DialLimits(shortest_pause_s=0.05, relay_after_s=0.3, shortest_search_pause_s=0.1, longest_search_pause_s=0.2)
HIDDEN = SessionsSettings(listen=(), dialling=EAGER)
PAYLOAD = secrets.token_bytes(100_000)
FRAMES = 30


@dataclass(frozen=True)
class Trio:
    """Anna and Bert listen nowhere; both have a session with Vera."""

    anna: SwarmPeer
    bert: SwarmPeer
    vera: SwarmPeer
    proxy: Proxy
    """Through which both reach Vera, so that a test sees what she sees."""


@asynccontextmanager
async def trio(
    members: Swarm, *, lower: bool = True, forwarding: ForwardLimits | None = None, hidden: SessionsSettings = HIDDEN
) -> AsyncIterator[Trio]:
    vera = await members.add(SessionsSettings(listen=LISTEN, forwarding=forwarding or ForwardLimits()))
    bert = await members.add(hidden)
    anna = await members.add(hidden, identity=await identity_beside(bert.peer, lower=lower))
    async with Proxy(vera.addresses[0]) as proxy:
        for side in (anna, bert):
            await side.meet(vera, proxy.address)
        yield Trio(anna, bert, vera, proxy)


async def meet_via(three: Trio) -> None:
    three.anna.sessions.want(three.bert.peer, ())
    for side, other in ((three.anna, three.bert), (three.bert, three.anna)):
        await side.heard.until(lambda side=side, other=other: other.peer in side.sessions.connected())
        assert path(side, other) == via(three.vera.peer)


_numbers = count()


async def exchange(one: SwarmPeer, other: SwarmPeer) -> None:
    """Frames both ways arrive as they were sent; twice, perhaps, when lanes broke meanwhile."""
    parts = [next(_numbers) for _ in range(FRAMES)]
    for side, far in ((one, other), (other, one)):
        side.sessions.send_frames(far.peer, [probe(part, PAYLOAD) for part in parts])
    for side, far in ((one, other), (other, one)):
        await side.heard.until(
            lambda side=side, far=far: set(parts) <= {h.part for peer, h, _ in side.heard.frames if peer == far.peer}
        )
        assert all(payload == PAYLOAD for _, _, payload in side.heard.frames)


def path(side: SwarmPeer, other: SwarmPeer) -> str:
    return side.sessions.facts(other.peer).path


def ask(side: SwarmPeer, forwarder: SwarmPeer, target: PeerId, number: int = 7) -> None:
    """By hand."""
    link = side.sessions._contacts.link_to(forwarder.peer)
    link.session.send(Kind.WAY, pack_asked(WayAsked(number, target)))


@asynccontextmanager
async def overheard(side: SwarmPeer) -> AsyncIterator[list[Envelope]]:
    """What is said to it of ways, which it does not act on."""
    told: list[Envelope] = []
    before = side.sessions._linker.way_told
    side.sessions._linker.way_told = lambda _peer, envelope: told.append(envelope)
    yield told
    side.sessions._linker.way_told = before


@RUNNERS
@LOWER
def test_two_that_listen_nowhere_meet_through_a_third(run: Callable[..., None], lower: bool) -> None:
    async def story() -> None:
        async with swarm() as members, trio(members, lower=lower) as three:
            await meet_via(three)
            await exchange(three.anna, three.bert)

            # then the bytes went through Vera, who counts them
            facts = three.vera.sessions.forwarding()
            assert facts.carried_bytes > 2 * FRAMES * len(PAYLOAD)
            assert facts.splices >= 2  # the session and a lane
            assert facts.refused == 0
            for side, other in ((three.anna, three.bert), (three.bert, three.anna)):
                assert side.sessions.facts(other.peer).lanes_broken == 0
                assert side.heard.closed == []

    run(story())


def test_the_third_sees_only_ciphertext() -> None:
    async def story() -> None:
        async with swarm() as members, trio(members) as three:
            await meet_via(three)
            three.anna.sessions.send_message(three.bert.peer, b"a control message that only Bert may read")
            await exchange(three.anna, three.bert)
            await three.bert.heard.until(lambda: bool(three.bert.heard.messages))
            assert len(three.proxy.seen) > 2 * FRAMES * len(PAYLOAD)
            assert PAYLOAD[:32] not in three.proxy.seen
            assert b"only Bert may read" not in three.proxy.seen
            assert three.vera.heard.frames == []
            assert three.vera.heard.messages == []

    asyncio.run(story())


@RUNNERS
@LOWER
def test_a_relayed_session_moves_to_a_third_peer_and_then_to_a_direct_path(run: Callable[..., None], lower: bool) -> None:
    async def story() -> None:
        async with swarm() as members:
            # given a session over a relay
            bert = await members.add(SessionsSettings(listen=LISTEN, dialling=EAGER))
            anna = await members.add(HIDDEN, identity=await identity_beside(bert.peer, lower=lower))
            relay = RelayInside(members)
            relay.serve(anna)
            anna.sessions.want(bert.peer, ())
            await bert.heard.until(lambda: anna.peer in bert.sessions.connected())
            await anna.heard.until(lambda: bert.peer in anna.sessions.connected())
            await exchange(anna, bert)

            # when both have a session with Vera
            vera = await members.add()
            for side in (anna, bert):
                await side.meet(vera)

            # then it goes on through her
            for side in (anna, bert):
                await side.heard.until(lambda side=side: bool(side.heard.moved))
                assert [moved for _, moved in side.heard.moved] == [via(vera.peer)]
            await relay.until_left()
            await exchange(anna, bert)

            # and when Bert's address becomes known, straight to him
            anna.sessions.want(bert.peer, bert.addresses)
            for side in (anna, bert):
                await side.heard.until(lambda side=side: len(side.heard.moved) == 2)
                assert side.heard.moved[1][1] == "direct"
            await exchange(anna, bert)
            await eventually(lambda: vera.sessions.forwarding().splices == 0, "Vera carries nothing any more")
            for side, other in ((anna, bert), (bert, anna)):
                assert side.sessions.facts(other.peer).lanes_broken == 0
                assert [peer for peer, _ in side.heard.closed] == []
            await relay.tasks.cancel()

    run(story())


@RUNNERS
def test_when_the_third_goes_another_one_is_taken(run: Callable[..., None]) -> None:
    async def story() -> None:
        async with swarm() as members, trio(members) as three:
            await meet_via(three)
            will = await members.add()
            for side in (three.anna, three.bert):
                await side.meet(will)
            await exchange(three.anna, three.bert)

            three.proxy.cut(lanes_only=False)  # everything that touches Vera breaks at once
            await three.vera.sessions.stop()

            for side, other in ((three.anna, three.bert), (three.bert, three.anna)):
                await side.heard.until(lambda side=side, other=other: (other.peer, via(will.peer)) in side.heard.opened)
            await exchange(three.anna, three.bert)
            assert path(three.anna, three.bert) == via(will.peer)

    run(story())


def test_when_the_only_third_goes_the_session_ends_and_nothing_hangs() -> None:
    async def story() -> None:
        async with swarm() as members, trio(members) as three:
            await meet_via(three)
            await three.vera.sessions.stop()
            for side, other in ((three.anna, three.bert), (three.bert, three.anna)):
                await side.heard.until(lambda side=side, other=other: other.peer in {peer for peer, _ in side.heard.closed})
            with pytest.raises(PeerUnreachable, match="no session"):
                three.anna.sessions.send_message(three.bert.peer, b"nobody carries this")

    asyncio.run(story())


def test_a_peer_that_was_told_not_to_forwards_nothing() -> None:
    async def story() -> None:
        async with swarm() as members, trio(members, forwarding=ForwardLimits(is_on=False)) as three:
            async with overheard(three.anna) as told:
                ask(three.anna, three.vera, three.bert.peer)
                await eventually(lambda: told, "Vera answers")
            given = unpack_given(three.vera.peer, told[0].body)
            assert (given.ticket, given.reason) == (None, "this peer does not forward")
            assert three.vera.sessions.forwarding().refused == 1

    asyncio.run(story())


def test_there_is_no_way_to_a_peer_that_the_third_has_no_session_with() -> None:
    async def story() -> None:
        async with swarm() as members, trio(members) as three:
            stranger = peer_id_of((await identity_beside(three.anna.peer, lower=True)).public_key())
            async with overheard(three.anna) as told:
                for number, target in enumerate((stranger, three.vera.peer, three.anna.peer)):
                    ask(three.anna, three.vera, target, number)
                await eventually(lambda: len(told) == 3, "Vera answers")
            answers = [unpack_given(three.vera.peer, envelope.body) for envelope in told]
            assert [(each.number, each.ticket, each.reason) for each in answers] == [
                (number, None, "this peer has no direct session with it") for number in range(3)
            ]
            assert three.bert.heard.closed == []

    asyncio.run(story())


@pytest.mark.parametrize("said", [SPLICE_MAGIC + b"guessed ticket!!", SPLICE_MAGIC + b"short"])
def test_a_stranger_without_a_ticket_gets_nothing(said: bytes) -> None:
    async def story() -> None:
        async with swarm() as members, trio(members) as three:
            with capture_logs() as logs:
                reader, writer = await open_to(three.vera)
                writer.write(said)
                writer.write_eof()
                async with asyncio.timeout(10):
                    assert await reader.read() == b""
                await logged(logs, lambda entry: entry["event"] == "connection.refused")
                writer.close()
            assert three.vera.sessions.forwarding().splices == 0

    asyncio.run(story())


def test_a_ticket_is_good_once() -> None:
    async def story() -> None:
        async with swarm() as members, trio(members) as three, overheard(three.anna) as given, overheard(three.bert) as called:
            ask(three.anna, three.vera, three.bert.peer)
            await eventually(lambda: given and called, "both have a ticket")
            ours = unpack_given(three.vera.peer, given[0].body).ticket
            theirs = called[0].body[:TICKET_BYTES]
            assert ours is not None
            assert ours != theirs
            near, far = await open_to(three.vera), await open_to(three.vera)
            near[1].write(SPLICE_MAGIC + ours)
            far[1].write(SPLICE_MAGIC + theirs)
            async with asyncio.timeout(10):
                assert await near[0].readexactly(1) == b"\x01"
                near[1].write(b"to bert")
                assert await far[0].readexactly(7) == b"to bert"

                # when somebody uses either ticket again, then it is refused and the splice goes on
                for ticket in (ours, theirs):
                    copy = await open_to(three.vera)
                    copy[1].write(SPLICE_MAGIC + ticket)
                    assert await copy[0].read() == b""
                    copy[1].close()
                far[1].write(b"to anna")
                assert await near[0].readexactly(7) == b"to anna"
                near[1].close()
                assert await far[0].read() == b""
                far[1].close()
            await eventually(lambda: three.vera.sessions.forwarding().splices == 0, "the splice is over")

    asyncio.run(story())


@pytest.mark.parametrize("dialled", [0, 1])
def test_a_splice_to_which_not_both_come_is_given_up(dialled: int) -> None:
    async def story() -> None:
        limits = ForwardLimits(join_deadline_s=0.3)
        async with (
            swarm() as members,
            trio(members, forwarding=limits) as three,
            overheard(three.anna) as given,
            overheard(three.bert) as called,
        ):
            with capture_logs() as logs:
                ask(three.anna, three.vera, three.bert.peer)
                await eventually(lambda: given and called, "both have a ticket")
                ours = unpack_given(three.vera.peer, given[0].body).ticket
                assert ours is not None
                if dialled:
                    reader, writer = await open_to(three.vera)
                    writer.write(SPLICE_MAGIC + ours)
                    async with asyncio.timeout(10):
                        assert await reader.read() == b""
                    writer.close()
                await logged(logs, lambda entry: entry["event"] == "splice.not_joined" and entry["dialled"] == dialled)
            assert three.vera.sessions.forwarding().splices == 0
            assert three.vera.sessions._forwarder._tickets == {}

    asyncio.run(story())


def test_a_flood_of_splices_stops_at_the_limit_and_others_still_get_theirs() -> None:
    async def story() -> None:
        limits = ForwardLimits(most=8, most_an_asker=5, join_deadline_s=30)
        async with swarm() as members, trio(members, forwarding=limits) as three:
            with_few = await members.add(HIDDEN)
            await with_few.meet(three.vera)
            async with overheard(three.anna) as given, overheard(three.bert):
                for number in range(200):
                    ask(three.anna, three.vera, three.bert.peer, number)
                await eventually(lambda: len(given) == 200, "Vera has answered all")
                answers = [unpack_given(three.vera.peer, envelope.body) for envelope in given]
            assert sum(each.ticket is not None for each in answers) == 5
            assert {each.reason for each in answers if each.ticket is None} == {"there are too many splices"}
            assert three.vera.sessions.forwarding().refused == 195
            with_few.sessions.want(three.bert.peer, ())
            await three.bert.heard.until(lambda: with_few.peer in three.bert.sessions.connected())
            assert three.anna.heard.closed == []

    asyncio.run(story())


def test_splices_leave_the_process_files_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with swarm() as members, trio(members) as three, overheard(three.anna) as given, overheard(three.bert):
            monkeypatch.setattr(resource, "getrlimit", lambda _what: (96, 96))
            for number in range(20):
                ask(three.anna, three.vera, three.bert.peer, number)
            await eventually(lambda: len(given) == 20, "Vera has answered all")
            answers = [unpack_given(three.vera.peer, envelope.body) for envelope in given]
            assert sum(each.ticket is not None for each in answers) == 4  # of six files each, a quarter of all

    asyncio.run(story())


def test_garbage_on_a_splice_breaks_that_session_only() -> None:
    """A third peer that changes what it carries."""

    async def story() -> None:
        async with swarm() as members, trio(members) as three:
            await meet_via(three)
            await exchange(three.anna, three.bert)
            with_vera = [entry for side in (three.anna, three.bert) for entry in side.heard.closed]
            assert with_vera == []

            # when bytes that are none of theirs come out of their session's splice
            stream = three.anna.sessions._contacts.link_to(three.bert.peer).session._stream
            stream._writer.write(b"\x17\x03\x03\x00\x20" + secrets.token_bytes(32))

            # then that session ends, those with Vera go on, and the two meet again
            await three.bert.heard.until(lambda: bool(three.bert.heard.closed))
            assert {peer for peer, _ in three.bert.heard.closed} == {three.anna.peer}
            for side, other in ((three.anna, three.bert), (three.bert, three.anna)):
                await side.heard.until(
                    lambda side=side, other=other: (other.peer, via(three.vera.peer)) in side.heard.opened[2:]
                )
            await exchange(three.anna, three.bert)
            assert three.vera.heard.closed == []

    asyncio.run(story())


def test_garbage_instead_of_a_peer_is_refused_by_the_one_that_was_called() -> None:
    async def story() -> None:
        async with swarm() as members, trio(members) as three, overheard(three.anna) as given:
            ask(three.anna, three.vera, three.bert.peer)
            await eventually(lambda: given, "Anna has a ticket")
            ours = unpack_given(three.vera.peer, given[0].body).ticket
            assert ours is not None
            with capture_logs() as logs:
                reader, writer = await open_to(three.vera)
                writer.write(SPLICE_MAGIC + ours)
                async with asyncio.timeout(10):
                    assert await reader.readexactly(1) == b"\x01"
                    writer.write(b"GET / HTTP/1.1\r\n\r\n")
                    assert await reader.read() == b""
                writer.close()
                await logged(logs, lambda entry: "another protocol" in entry.get("error", ""))
            assert three.bert.heard.closed == []

    asyncio.run(story())


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        *(
            (kind, body)
            for kind in (Kind.WAY, Kind.GIVEN, Kind.CALLED)
            for body in (b"", b"\0\0\0\1", b"\0\0\0\1not a peer id")
        ),
        (Kind.GIVEN, b"\0\0\0\1\1" + b"a ticket that is too long"),
        (Kind.CALLED, b"\0" * 40),
    ],
)
def test_words_about_ways_that_do_not_decode_end_the_session(kind: Kind, body: bytes) -> None:
    async def story() -> None:
        async with swarm() as members, trio(members) as three:
            three.anna.sessions._contacts.link_to(three.vera.peer).session.send(kind, body)
            await three.vera.heard.until(lambda: bool(three.vera.heard.closed))
            peer, error = three.vera.heard.closed[0]
            assert (peer, type(error)) == (three.anna.peer, MalformedMessage)

    asyncio.run(story())


@asynccontextmanager
async def beside_each_other(members: Swarm, *, lower: bool = True) -> AsyncIterator[tuple[SwarmPeer, SwarmPeer, SwarmPeer]]:
    """Anna has dialled Bert directly, and both have a session with Vera."""
    vera, bert = await members.add(), await members.add()
    anna = await members.add(HIDDEN, identity=await identity_beside(bert.peer, lower=lower))
    await anna.meet(bert)
    for side in (anna, bert):
        await side.meet(vera)
    yield anna, bert, vera


@RUNNERS
@LOWER
def test_lanes_are_steered_through_a_third_peer_and_back_and_nothing_is_lost_or_doubled(
    run: Callable[..., None], lower: bool
) -> None:
    async def story() -> None:
        async with swarm() as members, beside_each_other(members, lower=lower) as (anna, bert, vera):
            talk = Talk((anna, bert))
            talking = asyncio.create_task(talk.go_on())
            await bert.heard.until(lambda: len(bert.heard.frames) > 20)
            for turn in range(1, 4):
                # when they are steered away, then they go through Vera, both ways
                enough = vera.sessions.forwarding().carried_bytes + 1_000_000
                anna.sessions.steer(bert.peer, vera.peer)
                for side, other in ((anna, bert), (bert, anna)):
                    await side.heard.until(lambda side=side, turn=turn: len(side.heard.steered) == 2 * turn - 1)
                    assert side.heard.steered[-1] == (other.peer, via(vera.peer))
                await eventually(lambda enough=enough: vera.sessions.forwarding().carried_bytes > enough, "Vera forwards")
                assert (path(anna, bert), path(bert, anna)) == ("direct", "direct")

                # and when they are steered back, Vera has nothing to carry soon
                anna.sessions.steer(bert.peer, None)
                for side in (anna, bert):
                    await side.heard.until(lambda side=side, turn=turn: len(side.heard.steered) == 2 * turn)
                await eventually(lambda: vera.sessions.forwarding().splices == 0, "Vera carries nothing any more")
            talking.cancel()
            await talk.assert_arrived()
            for side, other in ((anna, bert), (bert, anna)):
                assert side.sessions.facts(other.peer).lanes_broken == 0
                assert side.heard.closed == []

    run(story())


@RUNNERS
def test_lanes_come_back_by_themselves_when_the_third_peer_goes(run: Callable[..., None]) -> None:
    async def story() -> None:
        async with swarm() as members, beside_each_other(members) as (anna, bert, vera):
            anna.sessions.steer(bert.peer, vera.peer)
            await exchange(anna, bert)
            await vera.sessions.stop()
            await exchange(anna, bert)
            for side, other in ((anna, bert), (bert, anna)):
                await side.heard.until(lambda side=side: len(side.heard.steered) == 2)
                assert side.heard.steered == [(other.peer, via(vera.peer)), (other.peer, "direct")]
                assert other.peer not in {peer for peer, _ in side.heard.closed}

    run(story())


def test_lanes_come_back_when_the_third_peer_is_given_up_though_nothing_broke() -> None:
    """It is frozen: its machine still acknowledges, and carries nothing."""

    async def story() -> None:
        async with swarm() as members, beside_each_other(members) as (anna, bert, vera):
            anna.sessions.steer(bert.peer, vera.peer)
            await exchange(anna, bert)
            vera.sessions.pace_forwarding(0.000001)
            stuck = set(range(100_000, 100_000 + FRAMES))
            for side, other in ((anna, bert), (bert, anna)):
                side.sessions.send_frames(other.peer, [probe(part, PAYLOAD) for part in sorted(stuck)])
            for side in (anna, bert):
                side.sessions.forsake(vera.peer)
            for side in (anna, bert):
                await side.heard.until(lambda side=side: stuck <= {header.part for _, header, _ in side.heard.frames})
                assert side.heard.steered[-1][1] == "direct"
                assert side.heard.closed == []

    asyncio.run(story())


def test_lanes_come_back_when_the_third_peer_does_not_want_to() -> None:
    async def story() -> None:
        async with swarm() as members, beside_each_other(members) as (anna, bert, _):
            unwilling = await members.add(SessionsSettings(listen=LISTEN, forwarding=ForwardLimits(is_on=False)))
            for side in (anna, bert):
                await side.meet(unwilling)
            anna.sessions.steer(bert.peer, unwilling.peer)
            await exchange(anna, bert)
            await bert.heard.until(lambda: len(bert.heard.steered) == 2)
            assert [name for _, name in bert.heard.steered] == [via(unwilling.peer), "direct"]

    asyncio.run(story())


def test_who_does_not_dial_the_lanes_steers_nothing() -> None:
    async def story() -> None:
        async with swarm() as members, beside_each_other(members) as (anna, bert, vera):
            assert (anna.sessions.may_steer(bert.peer), bert.sessions.may_steer(anna.peer)) == (True, False)
            bert.sessions.steer(anna.peer, vera.peer)
            await exchange(anna, bert)
            assert bert.heard.steered == []

    asyncio.run(story())


@pytest.mark.parametrize("body", [b"", b"S\0\0\0\0", b"S\0\0\0\0relay", b"S\0\0\0\0via " + b"x" * 100])
def test_steering_to_nowhere_ends_the_session(body: bytes) -> None:
    async def story() -> None:
        async with swarm() as members, beside_each_other(members) as (anna, bert, _):
            anna.sessions._contacts.link_to(bert.peer).session.send(Kind.STEER, body)
            await bert.heard.until(lambda: bool(bert.heard.closed))
            assert [(peer, type(error)) for peer, error in bert.heard.closed] == [(anna.peer, MalformedMessage)]

    asyncio.run(story())


def test_steering_by_the_one_that_was_dialled_ends_the_session() -> None:
    async def story() -> None:
        async with swarm() as members, beside_each_other(members) as (anna, bert, vera):
            said = b"S\0\0\0\0" + via(vera.peer).encode()
            bert.sessions._contacts.link_to(anna.peer).session.send(Kind.STEER, said)
            await anna.heard.until(lambda: bool(anna.heard.closed))
            assert [(peer, type(error)) for peer, error in anna.heard.closed] == [(bert.peer, MalformedMessage)]

    asyncio.run(story())


async def open_to(peer: SwarmPeer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = peer.addresses[0].rpartition(":")
    return await asyncio.open_connection(host, int(port))
