"""A member with the session's keys that sends wrong frames: named before memory is set aside, and blamed where that is due."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from structlog.testing import capture_logs

from ciuic_p2p.core.frames import HEADER_BYTES, FrameHeader
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.net.lane_opening import LANE_MAGIC, LaneOpening
from ciuic_p2p.net.sealing import HEAD_BYTES, FrameSealer, lane_secrets
from ciuic_p2p.net.wires import TcpWire, connect
from ciuic_p2p.terms import LARGEST_FRAME_BYTES
from ciuic_p2p.testing.logs import logged
from ciuic_p2p.testing.proxy import Proxy
from ciuic_p2p.testing.swarm import SwarmPeer, probe, swarm

GOOD = probe(1, b"").header


@dataclass
class HostileLane:
    """Opened by hand with Anna's keys."""

    anna: SwarmPeer
    bert: SwarmPeer
    wire: TcpWire
    sealer: FrameSealer

    async def send(self, header: bytes, payload: bytes = b"") -> None:
        await self.wire.write(bytes(self.sealer.seal(header, payload)))


@asynccontextmanager
async def hostile_lane() -> AsyncIterator[HostileLane]:
    async with swarm() as members:
        anna, bert = await members.add(), await members.add()
        await anna.meet(bert)
        keys = next(iter(anna.sessions._linker._links.values())).session.lane_keys
        opening = LaneOpening(keys.session_id, 99, b"s" * 16)
        wire = await connect(bert.addresses[0])
        await wire.write(opening.pack(keys.opening_key))
        away, _ = lane_secrets(keys.secret, opening.number, opening.salt)
        yield HostileLane(anna, bert, wire, FrameSealer(away))
        wire.close()


def with_length(header: FrameHeader, length: int) -> bytes:
    return replace(header, length=length).pack()


def test_a_length_over_the_limit_ends_the_lane_before_anything_is_read_or_set_aside() -> None:
    async def story() -> None:
        async with hostile_lane() as lane:
            with capture_logs() as logs:
                await lane.send(with_length(GOOD, LARGEST_FRAME_BYTES + 1))
                await logged(logs, lambda entry: entry.get("kind") == "FrameTooLarge" and lane.anna.peer in entry["error"])
            lane.anna.sessions.send_frames(lane.bert.peer, [probe(2, b"other lanes work")])
            await lane.bert.heard.until(lambda: len(lane.bert.heard.frames) == 1)
            assert lane.bert.heard.closed == []

    asyncio.run(story())


def test_the_largest_frame_is_taken_and_one_that_ends_early_is_named() -> None:
    async def story() -> None:
        async with hostile_lane() as lane:
            await lane.send(with_length(GOOD, LARGEST_FRAME_BYTES), b"x" * LARGEST_FRAME_BYTES)
            await lane.bert.heard.until(lambda: len(lane.bert.heard.frames) == 1)
            await lane.wire.read_exactly(HEAD_BYTES)  # the acknowledgement; left unread it would make a reset of the end below
            with capture_logs() as logs:
                sealed = bytes(lane.sealer.seal(with_length(GOOD, 1000), b"x" * 1000))
                await lane.wire.write(sealed[: HEAD_BYTES + 500])
                lane.wire.close()
                await logged(logs, lambda entry: entry.get("kind") == "FrameTruncated")
            assert len(lane.bert.heard.frames) == 1

    asyncio.run(story())


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"\xee" + GOOD.pack()[1:], "unknown kind"),
        (struct.pack(f"!B3xQ{HEADER_BYTES - 12}x", 0, 5), "acknowledged frames that were not sent"),
    ],
)
def test_a_frame_that_only_a_broken_or_hostile_member_sends_ends_the_session(header: bytes, reason: str) -> None:
    async def story() -> None:
        async with hostile_lane() as lane:
            await lane.send(header)
            await lane.bert.heard.until(lambda: bool(lane.bert.heard.closed))
            peer, error = lane.bert.heard.closed[0]
            assert (peer, type(error)) == (lane.anna.peer, MalformedMessage)
            assert reason in str(error)
            assert lane.bert.heard.frames == []

    asyncio.run(story())


def test_a_copy_of_its_own_lane_that_is_sent_back_to_a_peer_opens_nothing() -> None:
    """Its own frames would come back as the other's."""

    async def story() -> None:
        async with swarm() as members:
            anna, bert = await members.add(), await members.add()
            async with Proxy(bert.addresses[0]) as proxy:
                await anna.meet(bert, proxy.address)
                proxy.tampers = [lambda data: opened.append(data) or data]
                opened: list[bytes] = []
                anna.sessions.send_frames(bert.peer, [probe(1, b"for bert")])
                await bert.heard.until(lambda: len(bert.heard.frames) == 1)
                with capture_logs() as logs:
                    mirror = await connect(anna.addresses[0])
                    await mirror.write(LANE_MAGIC + b"".join(opened))
                    await logged(logs, lambda entry: "was used before" in entry.get("error", ""))
                    mirror.close()
                assert anna.heard.frames == []

    asyncio.run(story())
