"""Tells the swarm about this peer and learns who else is in it, through signed records in the DHT. Opens no session.

Clocks. The DHT drops a record by the reader's clock, and home machines are wrong by minutes; so a record expires
SKEW_ALLOWANCE_S later than it need, and whether a peer is *there* is decided by this peer's own monotonic clock alone: a record
with a higher sequence number must have come within `Pace.fresh_for_s`. A record left in the DHT by a peer that is gone is
reported once to a newcomer, and as lost that much later. A peer whose clock went back finds its last record and numbers on from
there.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol

import structlog

from ciuic_p2p.core.records import PeerRecord, decode_record, encode_record
from ciuic_p2p.errors import MalformedMessage, Transient
from ciuic_p2p.net.identity import Identity
from ciuic_p2p.net.p2p import P2PNetwork
from ciuic_p2p.terms import PeerId

log = structlog.get_logger()

SKEW_ALLOWANCE_S = 15 * 60
LATEST_EXPIRY_S = 60 * 60
"""A record that expires later than this from now is refused: it would be clutter long after its peer has gone."""
GOODBYE_LIMIT_S = 1.0
MOST_RECORDS_KEPT = 1024
MOST_LOST_PEERS = 1024
"""Remembered as lost; their records are long expired when they fall out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often what is done."""

    publish_every_s: float = 20.0
    poll_every_s: float = 3.0
    fresh_for_s: float = 60.0
    """A peer with no new record for this long is lost."""


class Listener(Protocol):
    """Who is told; in the event loop's thread, must return at once."""

    def record_arrived(self, record: PeerRecord) -> None:
        """Of another peer: its first, or a newer one."""

    def peer_lost(self, peer: PeerId) -> None:
        """It said goodbye, or has published nothing for a while."""


class Discovery:
    """Runs from `start` to `stop`."""

    def __init__(
        self, network: P2PNetwork, identity: Identity, swarm: str, describe: Callable[[], PeerRecord], listener: Listener
    ) -> None:
        """describe: what this peer says of itself now; sequence, expiry and multiaddrs are filled in here."""
        self._network = network
        self._identity = identity
        self._swarm = swarm
        self._key = f"ciuic/{swarm}/peers"
        self._describe = describe
        self._listener = listener
        self.pace = Pace()
        self._heard: dict[PeerId, tuple[PeerRecord, float]] = {}
        """The newest record of each peer, and when it came by the loop's clock."""
        self._gone: OrderedDict[PeerId, int] = OrderedDict()
        """Lost peers and the sequence number of their last record; only a higher one brings them back."""
        # The same records come from several peers at every poll; each signature is checked once.
        self._read = lru_cache(MOST_RECORDS_KEPT)(partial(decode_record, swarm=swarm))
        self._sequence = time.time_ns() // 1_000_000
        self._expires_at_s = 0
        self._publish_at = 0.0
        self._circumstances: object = None
        self._task: asyncio.Task[None] | None = None
        network.set_rule(self._key, self._may_exist)

    def start(self) -> asyncio.Task[None]:
        """Publishes at once and goes on by `pace`. The task never returns; it raises what `describe` or the listener raised."""
        self._task = asyncio.create_task(self._run(), name="discovery")
        return self._task

    async def stop(self) -> None:
        """Says goodbye if that is possible within a second."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        try:
            async with asyncio.timeout(GOODBYE_LIMIT_S):
                await self._publish(leaving=True)
        except (Transient, TimeoutError) as error:
            log.info("discovery.no_goodbye", error=str(error))

    def publish_soon(self) -> None:
        """What `describe` returns has changed in a way others should know."""
        self._publish_at = 0.0

    def records(self) -> tuple[PeerRecord, ...]:
        """Of the other peers that are there."""
        return tuple(record for record, _ in self._heard.values())

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except Transient as error:
                log.debug("discovery.waits", error=str(error))
            await asyncio.sleep(self.pace.poll_every_s)

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        circumstances = (self._network.restarts, self._network.contacts(), self._network.visible_addresses())
        if now >= self._publish_at or circumstances != self._circumstances:
            await self._publish(leaving=False)
            self._publish_at = now + self.pace.publish_every_s
            self._circumstances = circumstances
        for subkey, value in (await self._network.fetch(self._key)).items():
            self._take(subkey, value, now)
        self._drop_silent(now)

    async def _publish(self, *, leaving: bool) -> None:
        self._sequence = max(self._sequence + 1, time.time_ns() // 1_000_000)
        lifetime_s = round(self.pace.fresh_for_s) + SKEW_ALLOWANCE_S
        # The DHT keeps what expires last, so each record expires after the one before.
        self._expires_at_s = max(self._expires_at_s + 1, round(time.time()) + lifetime_s)
        record = replace(
            self._describe(),
            sequence=self._sequence,
            expires_at_s=self._expires_at_s,
            p2p_addresses=self._network.visible_addresses(),
            leaving=leaving,
        )
        data = encode_record(record, self._swarm, self._identity.sign)
        if not await self._network.store(self._key, record.peer_id, data, record.expires_at_s):
            log.debug("discovery.record_not_taken", sequence=record.sequence)

    def _take(self, subkey: str, value: bytes, now: float) -> None:
        try:
            record = self._read(value)
        except MalformedMessage as error:  # the rule has refused such ones already
            log.warning("discovery.bad_record", subkey=subkey, error=str(error))
            return
        if record.peer_id == self._identity.peer_id:
            self._catch_up(record)
        elif self._is_news(record):
            self._report(record, now)

    def _is_news(self, record: PeerRecord) -> bool:
        known = self._heard.get(record.peer_id)
        latest = known[0].sequence if known else self._gone.get(record.peer_id, -1)
        return record.sequence > latest

    def _report(self, record: PeerRecord, now: float) -> None:
        if record.leaving:
            self._lose(record.peer_id, record.sequence)
            return
        self._gone.pop(record.peer_id, None)
        self._heard[record.peer_id] = (record, now)
        self._network.learn_addresses(record.peer_id, record.p2p_addresses)
        self._listener.record_arrived(record)

    def _lose(self, peer: PeerId, sequence: int) -> None:
        self._gone[peer] = sequence
        if len(self._gone) > MOST_LOST_PEERS:
            self._gone.popitem(last=False)
        if self._heard.pop(peer, None) is not None:
            self._listener.peer_lost(peer)

    def _drop_silent(self, now: float) -> None:
        for peer, (record, came_at) in list(self._heard.items()):
            if now - came_at > self.pace.fresh_for_s:
                self._lose(peer, record.sequence)

    def _catch_up(self, own: PeerRecord) -> None:
        """The record is from before a restart, and the clock has gone back since: number on from there, at once."""
        if own.sequence > self._sequence or own.expires_at_s > self._expires_at_s:
            self._sequence = max(self._sequence, own.sequence)
            self._expires_at_s = max(self._expires_at_s, own.expires_at_s)
            self.publish_soon()

    def _may_exist(self, subkey: str, value: bytes, expires_at: float) -> bool:
        """The DHT's rule for the key of peer records, at every store and every read."""
        try:
            record = self._read(value)
        except MalformedMessage:
            return False
        own_expiry = float(record.expires_at_s) == expires_at
        return record.peer_id == subkey and own_expiry and expires_at <= time.time() + LATEST_EXPIRY_S
