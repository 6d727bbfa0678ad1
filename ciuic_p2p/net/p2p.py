"""The libp2p network of one peer: always one child process, restarted when it dies; a DHT among members; streams for sessions.

Knows nothing of runs, records or what a token says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import structlog

from ciuic_p2p.errors import P2PDown, PeerUnreachable
from ciuic_p2p.net.addressbook import MOST_ADDRESSES, AddressBook
from ciuic_p2p.net.admission import Admission, Gate
from ciuic_p2p.net.dht import Rule, SwarmValidator
from ciuic_p2p.net.incarnation import Incarnation, Lasting
from ciuic_p2p.net.meetings import Meetings
from ciuic_p2p.net.multiaddrs import PeerAddress
from ciuic_p2p.net.p2pd import P2pdSettings
from ciuic_p2p.net.ports import settle_ports
from ciuic_p2p.net.streams import SESSION_PROTOCOL, StreamCallback, StreamDoor
from ciuic_p2p.terms import PeerId

log = structlog.get_logger()

T = TypeVar("T")

FIRST_RESTART_PAUSE_S = 0.1
LONGEST_RESTART_PAUSE_S = 5.0
SEARCH_LIMIT_S = 15.0
"""Of one store or fetch in the DHT, whatever its peers do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PSettings:
    """Of one peer."""

    identity_file: Path
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs; port 0 takes a free one and keeps it. None at all: reachable through relays only."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others instead of those found."""
    join: tuple[str, ...] = ()
    """Multiaddrs of peers of the swarm, each with /p2p/; they need not be up."""
    auto_relay: bool = True
    """When this peer turns out not to be reachable directly, be reached through the peers of `join`."""
    relay_for_others: bool = True
    reachability: Literal["auto", "public", "private"] = "auto"
    map_ports: bool = True
    call_limit_s: float = 5.0


class P2PNetwork:
    """Used in one event loop. While the child process is down, everything fails at once with P2PDown."""

    def __init__(self, settings: P2PSettings, gate: Gate) -> None:
        """Raises ConfigError for a malformed address to join."""
        self._settings = settings
        self._join = tuple(map(PeerAddress.parse, settings.join))
        self._book = AddressBook(self._join)
        self._validator = SwarmValidator()
        self.admission = Admission(gate)
        self._meetings = Meetings(self._book, self.admission.is_admitted)
        self._meetings.own_addresses = self.visible_addresses
        self._stream_callback: StreamCallback | None = None
        self._live: Incarnation | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self.restarts = 0
        """How often the child process was restarted."""

    async def start(self) -> None:
        """Returns when the child process runs, whether or not a peer to join is up.

        Raises AddressUnusable, LocalError, P2PDown.
        """
        lasting = Lasting(
            settings=self._p2pd_settings(settle_ports(self._settings.listen)),
            call_limit_s=self._settings.call_limit_s,
            admission=self.admission,
            book=self._book,
            validator=self._validator,
            door=StreamDoor(self._enter),
        )
        self._live = await Incarnation.begin(lasting, None)
        self._supervisor = asyncio.create_task(self._supervise(lasting), name="p2p supervisor")

    async def stop(self) -> None:
        """Ends the child process. Safe to call twice, and before start."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        live, self._live = self._live, None
        if live is not None:
            await live.leave()

    @property
    def is_up(self) -> bool:
        return self._live is not None

    @property
    def peer_id(self) -> PeerId:
        """Raises P2PDown."""
        return self._up().peer_id

    @property
    def child_pid(self) -> int:
        """Of p2pd. Raises P2PDown."""
        return self._up().p2pd.pid

    @property
    def joined(self) -> asyncio.Event:
        """Set since the first contact with another peer; from the start when there is nobody to join."""
        return self._meetings.joined

    def contacts(self) -> int:
        """Peers in the DHT's routing table; 0 while the child process is down."""
        return self._live.dht.contacts() if self._live is not None else 0

    def visible_addresses(self) -> tuple[str, ...]:
        """Multiaddrs without this peer's /p2p/: direct ones, then those through relays. None while p2pd is down."""
        if self._live is None:
            return ()
        relayed = (f"{relay}/p2p-circuit" for relay in self._relays())
        return tuple(dict.fromkeys([*self._live.addresses, *relayed]))[:MOST_ADDRESSES]

    def join_addresses(self) -> tuple[str, ...]:
        """The same with /p2p/, for a join string."""
        return tuple(f"{address}/p2p/{self.peer_id}" for address in self.visible_addresses())

    def learn_addresses(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """`peer` itself said, in a signed record, that these are its multiaddrs."""
        self._book.learn(peer, addresses)

    def set_stream_handler(self, callback: StreamCallback) -> None:
        """Who takes incoming session streams; before that they are closed."""
        self._stream_callback = callback

    async def open_stream(self, peer: PeerId) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A session stream, direct or through a relay. Raises PeerUnreachable, P2PDown."""
        return await self._while_up(lambda live: live.control.open_stream(peer, SESSION_PROTOCOL))

    def set_rule(self, key: str, rule: Rule) -> None:
        """What may be stored under the key. Keys without a rule do not exist."""
        self._validator.set_rule(key, rule)

    async def store(self, key: str, subkey: str, value: bytes, expires_at_s: int) -> bool:
        """Whether a peer took it. Raises P2PDown, PeerUnreachable."""
        return await self._while_up(lambda live: live.dht.store(key, subkey, value, expires_at_s))

    async def fetch(self, key: str) -> dict[str, bytes]:
        """Subkey → value, each checked by the key's rule. Raises P2PDown, PeerUnreachable."""
        return await self._while_up(lambda live: live.dht.fetch(key))

    def _up(self) -> Incarnation:
        if self._live is None:
            raise P2PDown("the libp2p process is down")
        return self._live

    async def _while_up(self, operation: Callable[[Incarnation], Awaitable[T]]) -> T:
        """Fails at once when the child process dies meanwhile: hivemind's DHT would only see peers that do not answer."""
        live = self._up()
        work = asyncio.ensure_future(operation(live))
        lost = asyncio.ensure_future(live.control.lost.wait())
        try:
            await asyncio.wait({work, lost}, timeout=SEARCH_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise P2PDown("the libp2p process went down")
            if not work.done():
                raise PeerUnreachable(f"the swarm did not answer within {SEARCH_LIMIT_S:.0f} s")
            return work.result()
        finally:
            work.cancel()
            lost.cancel()
            await asyncio.gather(work, lost, return_exceptions=True)

    async def _supervise(self, lasting: Lasting) -> None:
        while True:
            live = self._up()
            reason = await self._accompany(live)
            log.warning("p2p.child_lost", reason=reason)
            self._live = None
            await live.end()
            self._live = await self._begin_again(lasting, live)
            self.restarts += 1
            log.info("p2p.child_restarted", pid=self._live.p2pd.pid)

    async def _accompany(self, live: Incarnation) -> str:
        meetings = asyncio.create_task(self._keep_meeting(live), name="p2p meetings")
        try:
            return await live.until_dead()
        finally:
            meetings.cancel()
            await asyncio.gather(meetings, return_exceptions=True)

    async def _keep_meeting(self, live: Incarnation) -> None:
        await self._meetings.attach(live)
        while True:
            try:
                await self._meetings.run(live)
            except Exception as error:
                # hivemind's search raises whatever a peer's odd answer makes it raise. This is the supervisor: it goes on.
                log.warning("p2p.meetings_failed", error=repr(error))
            await asyncio.sleep(LONGEST_RESTART_PAUSE_S)

    async def _begin_again(self, lasting: Lasting, before: Incarnation) -> Incarnation:
        pause = FIRST_RESTART_PAUSE_S
        while True:
            try:
                return await Incarnation.begin(lasting, before.dht)
            except Exception as error:
                # Whatever it is (no memory, no descriptors, a port taken): it has started with these settings before.
                log.warning("p2p.restart_failed", error=repr(error), next_try_s=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_RESTART_PAUSE_S)

    async def _enter(self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stream_callback is None:
            writer.close()
            return
        await self._stream_callback(peer, reader, writer)

    def _relays(self) -> tuple[PeerAddress, ...]:
        return self._join if self._settings.auto_relay else ()

    def _p2pd_settings(self, listen: tuple[str, ...]) -> P2pdSettings:
        return P2pdSettings(
            identity_file=self._settings.identity_file,
            listen=listen,
            announce=self._settings.announce,
            relays=self._relays(),
            relay_for_others=self._settings.relay_for_others,
            reachability=self._settings.reachability,
            map_ports=self._settings.map_ports,
        )
