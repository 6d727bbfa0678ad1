"""Finds the other peers: meets those in the address book, tells each where this one can be reached, hears of further ones.

Knows nothing of what is said afterwards. Only members are told addresses: the calls pass through admission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgpack
import structlog
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PHandlerError

from ciuic_p2p.core.peerids import public_key_of
from ciuic_p2p.errors import MalformedMessage, RemoteError, Transient
from ciuic_p2p.net.addressbook import MOST_ADDRESSES, AddressBook
from ciuic_p2p.net.incarnation import Incarnation
from ciuic_p2p.terms import PeerId

log = structlog.get_logger()

MEET = "ciuic.meet"
MOST_PEERS_TOLD = 256
MOST_AT_ONCE = 16
LONGEST_ADDRESS = 256
ROUND_EVERY_S = 0.25
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 10.0
GIVE_UP_AFTER = 12
"""Failures in a row, after which a peer that the user did not name is forgotten."""


@dataclass(slots=True)
class _Attempts:
    failures: int = 0
    not_before: float = 0.0


class Meetings:
    """Runs beside each incarnation in turn and keeps what it has learned."""

    def __init__(self, book: AddressBook, is_admitted: Callable[[PeerId], bool]) -> None:
        self._book = book
        self._is_admitted = is_admitted
        self._attempts: dict[PeerId, _Attempts] = {}
        self.own_addresses: Callable[[], tuple[str, ...]] = tuple
        self.joined = asyncio.Event()
        """Set since the first contact with another peer; from the start when there is nobody to join."""

    async def attach(self, live: Incarnation) -> None:
        """Answers those who meet this peer. Once for each incarnation, before `run`."""
        await live.control.add_unary_handler(MEET, self._answer)

    async def run(self, live: Incarnation) -> None:
        """Until cancelled. Tries again, more and more rarely, whoever is not a contact."""
        if not set(self._book.configured_peers) - {live.peer_id}:
            self.joined.set()
        searched = 0
        while True:
            due = self._due(live)
            await asyncio.gather(*(self._try(live, peer) for peer in due))
            contacts = live.dht.contacts()
            if contacts > searched:
                await live.dht.find_neighbours()
                self.joined.set()
            searched = contacts
            await asyncio.sleep(ROUND_EVERY_S)

    def _due(self, live: Incarnation) -> list[PeerId]:
        now = asyncio.get_running_loop().time()
        unknown = [peer for peer in self._book.peers() if peer != live.peer_id and not live.dht.knows(peer)]
        return [peer for peer in unknown if self._attempts.setdefault(peer, _Attempts()).not_before <= now][:MOST_AT_ONCE]

    async def _try(self, live: Incarnation, peer: PeerId) -> None:
        try:
            await self._meet(live, peer)
        except (Transient, RemoteError, P2PHandlerError) as error:
            self._failed(peer, error)
        else:
            self._attempts.pop(peer, None)

    async def _meet(self, live: Incarnation, peer: PeerId) -> None:
        request = msgpack.packb(list(self.own_addresses()))
        reply = await live.control.call_unary_handler(PeerID.from_base58(peer), MEET, request)
        for other, addresses in _read_reply(peer, reply).items():
            if other != live.peer_id:
                self._book.hear(other, addresses)
        if not await live.dht.ping(peer):
            raise Transient(f"peer {peer} does not answer pings")

    def _failed(self, peer: PeerId, error: Exception) -> None:
        attempts = self._attempts.setdefault(peer, _Attempts())
        attempts.failures += 1
        pause = min(FIRST_PAUSE_S * 1.6**attempts.failures, LONGEST_PAUSE_S)
        attempts.not_before = asyncio.get_running_loop().time() + pause
        log.debug("p2p.meeting_failed", peer=peer, failures=attempts.failures, error=str(error))
        if attempts.failures >= GIVE_UP_AFTER and peer not in self._book.configured_peers:
            self._book.forget(peer)
            del self._attempts[peer]

    async def _answer(self, request: bytes, remote: PeerID) -> bytes:
        """Only ever called for an admitted peer."""
        peer = PeerId(remote.to_base58())
        self._book.learn(peer, _read_addresses(peer, _unpack(peer, request)))
        told = {
            other: list(addresses)
            for other, addresses in self._book.said().items()
            if other != peer and self._is_admitted(other)
        }
        reply: bytes = msgpack.packb(dict(list(told.items())[-MOST_PEERS_TOLD:]))
        return reply


def _read_reply(peer: PeerId, reply: bytes) -> dict[PeerId, tuple[str, ...]]:
    told = _unpack(peer, reply)
    if not isinstance(told, dict) or len(told) > MOST_PEERS_TOLD:
        raise MalformedMessage(peer, "a list of peers that is none")
    known: dict[PeerId, tuple[str, ...]] = {}
    for other, addresses in told.items():
        with suppress(MalformedMessage):
            public_key_of(other)
            known[other] = _read_addresses(peer, addresses)
    return known


def _read_addresses(peer: PeerId, addresses: object) -> tuple[str, ...]:
    if not isinstance(addresses, list) or len(addresses) > MOST_ADDRESSES:
        raise MalformedMessage(peer, "a list of addresses that is none")
    if not all(isinstance(address, str) and len(address) <= LONGEST_ADDRESS for address in addresses):
        raise MalformedMessage(peer, "an address that is none")
    return tuple(addresses)


def _unpack(peer: PeerId, data: bytes) -> object:
    try:
        return msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise MalformedMessage(peer, "a message that is not msgpack") from None
