"""One of two peers of test_heartbeats.py: answers pings, or pings the other before, while and after both send all they can.

    python tests/wan/heartbeat_peer.py HOST < settings

Settings are one JSON object on standard input: the swarm's secret, how many frames, and whom to dial, if this one pings. What
it sees it says as one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from dataclasses import dataclass, field

import structlog
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.membership import Membership, RootKey, bind
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.net.sessions import Sessions, SessionsSettings
from ciuic_p2p.terms import PeerId
from ciuic_p2p.testing.recorder import Recorder
from ciuic_p2p.testing.swarm import probe

FRAME = bytes(1 << 20)
"""As large as those of a round."""
PING_EVERY_S = 0.2
QUIET_PINGS = 5


class Peer(Recorder):
    """Answers pings by itself; keeps no frames, but counts them."""

    def __init__(self, secret: bytes, host: str) -> None:
        super().__init__()
        root, identity = RootKey.from_bytes(secret), Ed25519PrivateKey.generate()
        self.peer = peer_id_of(identity.public_key())
        gate = Membership(root.public_bytes, bind(root.invite(), self.peer))
        self.sessions = Sessions(identity, gate, self, SessionsSettings(listen=(f"{host}:0",)))
        self.frames_to_send = 0
        self.frames_taken = 0

    def message_received(self, peer: PeerId, message: bytes) -> None:
        match message[:1]:
            case b"?":
                self.sessions.send_message(peer, b"!" + message[1:])
            case b"b":
                self.saturate(peer)
            case _:
                super().message_received(peer, message)

    def frame_received(self, *_: object) -> None:
        self.frames_taken += 1
        self._loop.call_soon_threadsafe(self._note, "frame")

    def saturate(self, peer: PeerId) -> None:
        self.sessions.send_frames(peer, [probe(part, FRAME) for part in range(self.frames_to_send)])


@dataclass
class Pinging:
    """Numbered pings in a steady rhythm. round_trips_s: of those that were answered, in the order of the answers."""

    mine: Peer
    other: PeerId
    sent_s: list[float] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    round_trips_s: list[float] = field(default_factory=list)

    def ping(self) -> None:
        self.mine.sessions.send_message(self.other, b"?%d" % len(self.sent_s))
        self.sent_s.append(time.monotonic())

    def take_answers(self) -> None:
        now = time.monotonic()
        for _, message in self.mine.messages:
            number = int(message[1:])
            self.answered.append(number)
            self.round_trips_s.append(now - self.sent_s[number])
        self.mine.messages.clear()

    async def watch(self) -> None:
        while True:
            await self.mine.until(lambda: bool(self.mine.messages))
            self.take_answers()

    async def until_answered(self) -> None:
        while len(self.answered) < len(self.sent_s):  # noqa: ASYNC110 - `watch` waits for what tells of answers
            await asyncio.sleep(0.01)


async def main() -> None:
    warnings_only = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=warnings_only, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    settings = json.loads(sys.stdin.readline())
    mine = Peer(bytes.fromhex(settings["secret"]), sys.argv[1])
    mine.frames_to_send = settings["frames"]
    say(peer=mine.peer, address=(await mine.sessions.start())[0])
    if "dial" in settings:
        await ping_the_other(mine, PeerId(settings["dial"]["peer"]), settings["dial"]["address"])
        await mine.sessions.stop()
    else:
        await asyncio.Event().wait()


async def ping_the_other(mine: Peer, other: PeerId, address: str) -> None:
    mine.sessions.want(other, (address,))
    await mine.until(lambda: bool(mine.opened))
    pinging = Pinging(mine, other)
    watching = asyncio.create_task(pinging.watch())
    for _ in range(QUIET_PINGS):
        pinging.ping()
        await asyncio.sleep(PING_EVERY_S)
    await pinging.until_answered()
    quiet = len(pinging.answered)

    began_s = time.monotonic()
    mine.sessions.send_message(other, b"b")
    mine.saturate(other)
    outbox = mine.sessions._contacts.link_to(other).outbox
    while outbox.unacknowledged() or mine.frames_taken < mine.frames_to_send:
        pinging.ping()
        await asyncio.sleep(PING_EVERY_S)
    seconds = time.monotonic() - began_s
    answered_meanwhile = len(pinging.answered) - quiet
    await pinging.until_answered()
    watching.cancel()
    say(
        quiet_s=pinging.round_trips_s[:quiet],
        busy_s=pinging.round_trips_s[quiet:],
        answered=pinging.answered,
        answered_meanwhile=answered_meanwhile,
        bulk_seconds=seconds,
        closed=len(mine.closed),
        opened=len(mine.opened),
    )


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
