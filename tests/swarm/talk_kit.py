"""Two peers that talk all the time, so that a test sees whether anything is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ciuic_p2p.testing.swarm import SwarmPeer, probe


@dataclass
class Talk:
    """Frames and messages from each of two peers to the other, as long as it goes on."""

    sides: Sequence[SwarmPeer]
    sent: int = 0
    _pause: asyncio.Event = field(default_factory=asyncio.Event)

    async def go_on(self) -> None:
        while True:
            self.say()
            await asyncio.sleep(0.005)

    def say(self) -> None:
        for side, other in (self.sides, self.sides[::-1]):
            side.sessions.send_message(other.peer, b"%d" % self.sent)
            side.sessions.send_frames(other.peer, [probe(self.sent, self.payload(self.sent))])
        self.sent += 1

    async def assert_arrived(self) -> None:
        """Everything, once; messages in order."""
        for side in self.sides:
            await side.heard.until(lambda side=side: len(side.heard.messages) >= self.sent)
            await side.heard.until(lambda side=side: len(side.heard.frames) >= self.sent)
            assert [int(message) for _, message in side.heard.messages] == list(range(self.sent))
            assert sorted(header.part for _, header, _ in side.heard.frames) == list(range(self.sent))
            assert all(payload == self.payload(header.part) for _, header, payload in side.heard.frames)

    def payload(self, number: int) -> bytes:
        return number.to_bytes(4) * 10_000
