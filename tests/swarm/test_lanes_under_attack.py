"""Someone sits on the cable between two peers: he reads nothing, and what he changes is named, repaired and never delivered."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.lane_group import LaneLimits
from ciuic_p2p.net.lane_opening import OPENING_BYTES
from ciuic_p2p.net.sealing import HEAD_BYTES, TAG_BYTES
from ciuic_p2p.net.sessions import SessionsSettings
from ciuic_p2p.testing.proxy import Proxy, Tamper
from ciuic_p2p.testing.swarm import LISTEN, ONE_LANE, SwarmPeer, probe, swarm

PAYLOAD_BYTES = 10_000
FRAME_BYTES = HEAD_BYTES + PAYLOAD_BYTES + TAG_BYTES
PAYLOADS = [os.urandom(PAYLOAD_BYTES) for _ in range(100)]


def flip(position: int) -> Tamper:
    """Changes one bit of the byte at `position` of what the dialling side sends on the lane."""
    passed = 0

    def tamper(data: bytes) -> bytes:
        nonlocal passed
        changed = bytearray(data)
        if passed <= position < passed + len(data):
            changed[position - passed] ^= 0x10
        passed += len(data)
        return bytes(changed)

    # the proxy itself passes the magic on
    position -= 4
    return tamper


def insert_from(start: int, end: int, at: int) -> Tamper:
    """Puts bytes `start` to `end` of the lane in once more at `at`; at == start leaves them out instead."""
    held = b""

    def tamper(data: bytes) -> bytes:
        nonlocal held
        before, held = len(held), held + data
        if len(held) < max(at, end) or before >= max(at, end):
            return data if before >= max(at, end) else b""
        return held[:start] + held[end:] if at == start else held[:at] + held[start:end] + held[at:]

    start, end, at = start - 4, end - 4, at - 4
    return tamper


def cut_after(position: int) -> Tamper:
    left = position - 4

    def tamper(data: bytes) -> bytes | None:
        nonlocal left
        piece, left = data[: max(left, 0)], left - len(data)
        return piece or None

    return tamper


FIRST, SECOND, THIRD = (OPENING_BYTES + number * FRAME_BYTES for number in range(3))
ATTACKS = [
    pytest.param(flip(SECOND + HEAD_BYTES + 77), "FrameForged", id="payload changed"),
    pytest.param(flip(SECOND + 20), "FrameForged", id="header changed"),
    pytest.param(flip(SECOND + HEAD_BYTES + PAYLOAD_BYTES + 3), "FrameForged", id="tag changed"),
    pytest.param(flip(SECOND + 2), "FrameReplayed", id="counter changed"),
    pytest.param(insert_from(FIRST, SECOND, SECOND), "FrameReplayed", id="frame repeated"),
    pytest.param(insert_from(FIRST, SECOND, FIRST), "FrameReplayed", id="frame left out"),
    pytest.param(cut_after(SECOND + HEAD_BYTES + 500), "FrameTruncated", id="cut inside a payload"),
    pytest.param(cut_after(SECOND + 5), "FrameTruncated", id="cut inside a header"),
]


def contents(peer: SwarmPeer) -> dict[int, bytes]:
    """What was delivered, by part; a part that came twice must have come with the same content."""
    found: dict[int, bytes] = {}
    for _, header, payload in peer.heard.frames:
        assert found.setdefault(header.part, payload) == payload
    return found


@pytest.mark.parametrize(("attack", "named"), ATTACKS)
def test_a_changed_stream_is_named_and_repaired(attack: Tamper, named: str) -> None:
    async def story() -> None:
        async with swarm() as members:
            anna, bert = await members.add(ONE_LANE), await members.add(ONE_LANE)
            async with Proxy(bert.addresses[0]) as proxy:
                proxy.tampers = [attack]
                await anna.meet(bert, proxy.address)
                with capture_logs() as logs:
                    anna.sessions.send_frames(bert.peer, [probe(part, payload) for part, payload in enumerate(PAYLOADS)])
                    await bert.heard.until(lambda: {header.part for _, header, _ in bert.heard.frames} == set(range(100)))
                assert contents(bert) == dict(enumerate(PAYLOADS))
                assert named in [entry.get("kind") for entry in logs if entry["event"] == "lane.broken"]
                assert proxy.lane_count == 2
                assert anna.heard.closed == bert.heard.closed == []

    asyncio.run(story())


def test_nothing_readable_is_on_the_cable() -> None:
    async def story() -> None:
        marker = b"the weights of the model " * 400
        async with swarm() as members:
            anna, bert = await members.add(), await members.add()
            async with Proxy(bert.addresses[0]) as proxy:
                await anna.meet(bert, proxy.address)
                for side, other in ((anna, bert), (bert, anna)):
                    side.sessions.send_frames(other.peer, [probe(part, marker) for part in range(4)])
                    side.sessions.send_message(other.peer, marker)
                for side in (anna, bert):
                    await side.heard.until(lambda side=side: len(side.heard.frames) == 4 and len(side.heard.messages) == 1)
                assert len(proxy.seen) > 10 * len(marker)
                assert marker[:8] not in proxy.seen
                assert b"run-name" not in proxy.seen
                token = members.gate(anna.peer).my_token()
                assert not any(token[at : at + 16] in proxy.seen for at in range(0, len(token) - 16, 16))
                assert anna.peer.encode() not in proxy.seen

    asyncio.run(story())


def test_lanes_that_break_again_and_again_lose_nothing() -> None:
    async def story() -> None:
        settings = SessionsSettings(listen=LISTEN, lanes=LaneLimits(count=2, shortest_delay_s=0.02))
        async with swarm() as members:
            anna, bert = await members.add(settings), await members.add(settings)
            async with Proxy(bert.addresses[0]) as proxy:
                proxy.tampers = [cut_after(OPENING_BYTES + 10 * FRAME_BYTES + 333 * number) for number in range(5)]
                await anna.meet(bert, proxy.address)
                for side, other in ((anna, bert), (bert, anna)):
                    side.sessions.send_frames(other.peer, [probe(part, payload) for part, payload in enumerate(PAYLOADS)])
                for side in (anna, bert):
                    await side.heard.until(lambda side=side: len(contents(side)) == 100)
                    assert contents(side) == dict(enumerate(PAYLOADS))
                    assert side.heard.closed == []
                assert proxy.lane_count >= 6

    asyncio.run(story())


def test_what_was_given_up_is_not_sent_again_after_a_break() -> None:
    async def story() -> None:
        async with swarm() as members:
            anna, bert = await members.add(ONE_LANE), await members.add(ONE_LANE)
            async with Proxy(bert.addresses[0]) as proxy:
                proxy.tampers = [flip(FIRST + HEAD_BYTES + 77)]
                await anna.meet(bert, proxy.address)

                def first() -> bytes:
                    anna.sessions.discard_frames(lambda _peer, header: header.part == 0)
                    return PAYLOADS[0]

                given_up = replace(probe(0, b""), make_payload=first)
                anna.sessions.send_frames(bert.peer, [given_up, probe(1, PAYLOADS[1])])
                await bert.heard.until(lambda: bool(bert.heard.frames))
                assert contents(bert) == {1: PAYLOADS[1]}

    asyncio.run(story())


def test_keys_change_and_twenty_megabytes_arrive_both_ways() -> None:
    async def story() -> None:
        settings = SessionsSettings(listen=LISTEN, lanes=LaneLimits(frames_per_key=7))
        async with swarm() as members:
            anna, bert = await members.add(settings), await members.add(settings)
            await anna.meet(bert)
            payload = os.urandom(1 << 18)
            for side, other in ((anna, bert), (bert, anna)):
                side.sessions.send_frames(other.peer, [probe(part, payload) for part in range(80)])
            for side in (anna, bert):
                await side.heard.until(lambda side=side: len(side.heard.frames) == 80)
                assert {header.part for _, header, _ in side.heard.frames} == set(range(80))
                assert all(received == payload for _, _, received in side.heard.frames)
                assert side.heard.closed == []

    asyncio.run(story())


def test_a_session_that_breaks_is_reported_and_comes_back() -> None:
    async def story() -> None:
        async with swarm() as members:
            anna, bert = await members.add(), await members.add()
            async with Proxy(bert.addresses[0]) as proxy:
                await anna.meet(bert, proxy.address)
                proxy.cut(lanes_only=False)
                for side in (anna, bert):
                    await side.heard.until(lambda side=side: len(side.heard.opened) == 2)
                    assert [type(error) for _, error in side.heard.closed] == [PeerUnreachable]
                    assert side.heard.order == ["opened", "closed", "opened"]

    asyncio.run(story())


def test_frames_whose_payload_cannot_be_made_cost_nothing_else() -> None:
    async def story() -> None:
        async with swarm() as members:
            anna, bert = await members.add(ONE_LANE), await members.add(ONE_LANE)
            await anna.meet(bert)

            def fail() -> bytes:
                raise ZeroDivisionError

            broken = replace(probe(0, b""), make_payload=fail)
            anna.sessions.send_frames(bert.peer, [broken, probe(1, b"good"), broken, probe(2, b"good")])
            await bert.heard.until(lambda: len(bert.heard.frames) == 2)
            assert contents(bert) == {1: b"good", 2: b"good"}
            assert anna.heard.closed == []

    asyncio.run(story())
