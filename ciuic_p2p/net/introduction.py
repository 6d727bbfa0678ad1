"""How two peers become acquainted on a fresh connection:

TLS, then each shows its token; and which connection is the session.

Nothing is said to a stranger but the handshake, and nothing is believed before its token was found good.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from ciuic_p2p.core.membership import Member
from ciuic_p2p.errors import MalformedMessage, PeerUnreachable, RemoteError
from ciuic_p2p.net.envelopes import Hello, Kind, SessionName, pack_hello, unpack_hello
from ciuic_p2p.net.secure_stream import SecureStream
from ciuic_p2p.terms import LARGEST_MESSAGE_BYTES, PeerId

_LONGEST_REFUSAL_BYTES = 300


class Gate(Protocol):
    """Who may open a session (core/membership.py)."""

    def my_token(self) -> bytes: ...

    def admit(self, peer: PeerId, token: bytes, now: float) -> Member: ...


@dataclass(frozen=True, slots=True)
class Acquaintance:
    """A peer that has proved its id and its membership."""

    peer: PeerId
    member: Member
    hello: Hello


@dataclass(frozen=True, slots=True)
class Introducer:
    """What this peer says of itself to all."""

    gate: Gate
    name: str
    instance: bytes

    async def introduce(self, stream: SecureStream, peer: PeerId, ended: SessionName | None) -> Acquaintance:
        """After TLS. Raises RemoteError (NotAMember when the token is bad), PeerUnreachable."""
        mine = Hello(token=self.gate.my_token(), name=self.name, instance=self.instance, ended=ended)
        stream.send(Kind.HELLO, pack_hello(mine))
        try:
            hello = unpack_hello(peer, await receive_kind(stream, peer, Kind.HELLO))
            member = self.gate.admit(peer, hello.token, time.time())
        except RemoteError as error:
            stream.send(Kind.REFUSED, str(error).encode()[:_LONGEST_REFUSAL_BYTES])
            raise
        stream.envelopes.largest_bytes = LARGEST_MESSAGE_BYTES
        return Acquaintance(peer, member, hello)


async def receive_kind(stream: SecureStream, peer: PeerId, kind: Kind) -> bytes:
    """The body of the next envelope, which must be of this kind. Raises PeerUnreachable when the peer left instead."""
    envelope = await stream.receive()
    if envelope is None:
        raise PeerUnreachable(f"peer {peer} closed the connection before the session was open")
    if envelope.kind == Kind.GOODBYE:
        raise PeerUnreachable(f"peer {peer} has no use for this connection")
    if envelope.kind == Kind.REFUSED:
        raise RemoteError(peer, f"it refuses this peer: {envelope.body.decode(errors='replace')!r:.200}")
    if envelope.kind != kind:
        raise MalformedMessage(peer, f"it sent {envelope.kind.name} before the session was open")
    return envelope.body
