"""Who may be answered: no unary call but the handshake gets through to or from a peer that has not shown a valid token.

libp2p authenticates the connection, so the remote's peer id is certain; the token it shows must be bound to exactly that id.
One handshake admits both sides. Knows nothing of what a token is (the Gate does), nor of what is called afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PHandlerError

from ciuic_p2p.core.peerids import public_key_of
from ciuic_p2p.errors import MalformedMessage, NotAMember, PeerUnreachable
from ciuic_p2p.net.guard import GuardedControl, Refused
from ciuic_p2p.terms import PeerId

log = structlog.get_logger()

T = TypeVar("T")

HANDSHAKE = "ciuic.admit"
LARGEST_TOKEN_BYTES = 16 << 10
RECHECK_S = 60.0
"""A token that has expired or was revoked since it was shown lets its bearer in for at most this long."""
MOST_ADMITTED = 4096
REFUSAL_PAUSE_S = 1.0
"""A peer that was refused is refused unread for this long, so that checking tokens cannot be made to fill the loop's time."""
MOST_REFUSED = 1024

_NOT_ADMITTED = "not admitted"


class Gate(Protocol):
    """Decides who is a member. Called in the event loop's thread; must return within milliseconds."""

    def my_token(self) -> bytes:
        """This peer's own token, bound to its own id."""

    def admit(self, peer: PeerId, token: bytes, now: float) -> object:
        """Raises NotAMember unless `token` makes the holder of `peer`'s key a member at `now` (seconds since 1970)."""


class Admission:
    """The peers that have shown a valid token. Outlives restarts of the child process."""

    def __init__(self, gate: Gate, clock: Callable[[], float] = time.time) -> None:
        self.gate = gate
        self._clock = clock
        self._tokens: OrderedDict[PeerId, tuple[bytes, float]] = OrderedDict()
        self._refused_at: OrderedDict[PeerId, float] = OrderedDict()

    def welcome(self, peer: PeerId, token: bytes) -> None:
        """Raises NotAMember."""
        now = self._clock()
        if peer in self._refused_at and abs(now - self._refused_at[peer]) < REFUSAL_PAUSE_S:
            raise NotAMember(peer, "it was refused a moment ago")
        try:
            self._check(peer, token, now)
        except NotAMember:
            _keep(self._refused_at, peer, now, MOST_REFUSED)
            raise
        _keep(self._tokens, peer, (token, now), MOST_ADMITTED)

    def is_admitted(self, peer: PeerId) -> bool:
        """Checks the token again when the last check is a while ago."""
        token, checked_at = self._tokens.get(peer, (b"", 0.0))
        if not token:
            return False
        if abs(self._clock() - checked_at) < RECHECK_S:
            return True
        try:
            self.welcome(peer, token)
        except NotAMember as error:
            log.info("p2p.membership_ended", peer=peer, reason=error.what)
            self.forget(peer)
            return False
        return True

    def forget(self, peer: PeerId) -> None:
        """The peer must show its token again."""
        self._tokens.pop(peer, None)

    def _check(self, peer: PeerId, token: bytes, now: float) -> None:
        if len(token) > LARGEST_TOKEN_BYTES:
            raise NotAMember(peer, f"a token of {len(token)} bytes, at most {LARGEST_TOKEN_BYTES} are read")
        try:
            public_key_of(peer)
        except MalformedMessage as error:
            raise NotAMember(peer, error.what) from None
        self.gate.admit(peer, token, now)


def _keep(book: OrderedDict[PeerId, T], peer: PeerId, value: T, most: int) -> None:
    """The one forgotten for it shows its token again when it calls."""
    book[peer] = value
    book.move_to_end(peer)
    if len(book) > most:
        book.popitem(last=False)


class AdmittingControl(GuardedControl):
    """The one door: every unary call of hivemind's P2P and DHT, in and out, passes here."""

    def __init__(self, control_socket: Path, listener_socket: Path, call_limit_s: float, admission: Admission) -> None:
        super().__init__(control_socket, listener_socket, call_limit_s)
        self._admission = admission
        self._introduced: OrderedDict[PeerId, None] = OrderedDict()
        """Peers that hold our token and whose token we hold."""
        self._handshakes: dict[PeerId, asyncio.Task[None]] = {}

    async def attach(self) -> None:
        """Connects to p2pd and answers handshakes. Raises P2PDown."""
        await super().attach()
        await self.add_unary_handler(HANDSHAKE, self._answer_handshake)

    async def answer(self, remote: PeerID, proto: str, data: bytes) -> bytes:
        """Refuses strangers before a byte of what they sent is looked at."""
        if proto != HANDSHAKE and not self._admission.is_admitted(PeerId(remote.to_base58())):
            raise Refused(_NOT_ADMITTED)
        return await super().answer(remote, proto, data)

    async def call_unary_handler(self, peer_id: PeerID, proto: str, data: bytes) -> bytes:
        """As GuardedControl's, after a handshake where there was none. Raises NotAMember too."""
        if proto == HANDSHAKE:
            return await super().call_unary_handler(peer_id, proto, data)
        peer = PeerId(peer_id.to_base58())
        try:
            await self._introduce(peer, peer_id)
            try:
                return await super().call_unary_handler(peer_id, proto, data)
            except P2PHandlerError as error:
                if str(error) != _NOT_ADMITTED:
                    raise
            self._introduced.pop(peer, None)  # it has restarted and knows nobody any more
            await self._introduce(peer, peer_id)
            return await super().call_unary_handler(peer_id, proto, data)
        except PeerUnreachable:
            self._introduced.pop(peer, None)  # at the next call it may be another process, with other addresses
            raise

    async def prepare_to_meet(self, peer: PeerId) -> None:
        """Before a handshake: a subclass may make a connection here."""

    def close(self) -> None:
        super().close()
        for task in self._handshakes.values():
            task.cancel()

    async def _introduce(self, peer: PeerId, peer_id: PeerID) -> None:
        """One handshake at a time with each peer; all calls to it wait for the same one."""
        if peer in self._introduced and self._admission.is_admitted(peer):
            return
        if peer not in self._handshakes:
            task = asyncio.create_task(self._shake_hands(peer, peer_id), name="p2p handshake")
            task.add_done_callback(lambda done: self._handshake_ended(peer, done))
            self._handshakes[peer] = task
        await asyncio.shield(self._handshakes[peer])

    async def _shake_hands(self, peer: PeerId, peer_id: PeerID) -> None:
        await self.prepare_to_meet(peer)
        try:
            theirs = await self.call_unary_handler(peer_id, HANDSHAKE, self._admission.gate.my_token())
        except P2PHandlerError as error:
            raise NotAMember(peer, f"it refused our token: {error}") from None
        self._admission.welcome(peer, theirs)
        _keep(self._introduced, peer, None, MOST_ADMITTED)

    def _handshake_ended(self, peer: PeerId, task: asyncio.Task[None]) -> None:
        del self._handshakes[peer]
        if not task.cancelled() and (error := task.exception()):  # asked for, or asyncio complains when nobody waits any more
            log.debug("p2p.handshake_failed", peer=peer, error=str(error))

    async def _answer_handshake(self, token: bytes, remote: PeerID) -> bytes:
        peer = PeerId(remote.to_base58())
        try:
            self._admission.welcome(peer, token)
        except NotAMember as error:
            log.info("p2p.stranger_refused", peer=peer, reason=error.what)
            raise Refused(_NOT_ADMITTED) from None
        _keep(self._introduced, peer, None, MOST_ADMITTED)
        return self._admission.gate.my_token()
