"""What travels inside a session's TLS stream: envelopes of a length, a kind and a body, and the hello that comes first.

Bytes ⇄ objects only; refuses to know sockets and what messages mean.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any, TypeGuard

import msgpack

from ciuic_p2p.core.membership import LARGEST_TOKEN_BYTES
from ciuic_p2p.errors import MalformedMessage, RemoteError
from ciuic_p2p.terms import LARGEST_MESSAGE_BYTES, PROTOCOL_VERSION, PeerId

LONGEST_NAME = 64
"""Characters of a peer's display name."""
INSTANCE_BYTES = 16
LARGEST_HELLO_BYTES = LARGEST_TOKEN_BYTES + 1024
_HEAD = struct.Struct("!IB")
_GENERATION = struct.Struct("!Q")


class Kind(enum.IntEnum):
    """What an envelope holds."""

    HELLO = 1
    """Token, version, name: the first envelope of each side."""
    OPEN = 2
    """The deciding peer (see pairing.py) makes this connection the session; the body is its generation."""
    REFUSED = 3
    """The session will not open; the body says why, for a log."""
    MESSAGE = 4
    """One control message of the layer above."""
    GOODBYE = 5
    """The sender leaves, or closes this connection in favour of another."""
    PING = 6
    PONG = 7
    """Answers a ping with its body."""
    WELCOME = 9
    """The sender has found the other's token good."""
    LANES = 8
    """The sender has frames to send and asks the one who dialled for lanes; the body is their number, one byte."""
    REACHED = 10
    """The direct connection with the number in the body reached the sender, who does not decide."""
    MOVE = 11
    """The sender's last envelope on this connection: it goes on over the direct one with that number."""
    DRAINED = 12
    """All that the sender has sent on lanes of the path that was left was acknowledged; the body says which leaving."""
    WAY = 13
    """The sender asks for a way to another peer (splice_messages.py); so do the next two."""
    GIVEN = 14
    CALLED = 15
    STEER = 16
    """The sender, who dials the lanes, dials them over the path in the body from now on; the session stays where it is."""


@dataclass(frozen=True, slots=True)
class Envelope:
    kind: Kind
    body: bytes


@dataclass(frozen=True, slots=True)
class SessionName:
    """Which session of a pair: `generation` counts the sessions that the deciding peer's process `decider` opened."""

    decider: bytes
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """instance: random bytes of the sender's process, so that a restart is noticed.
    ended: the last session with the receiver that ended, as far as the sender knows."""

    token: bytes
    name: str
    instance: bytes
    ended: SessionName | None


def pack_envelope(kind: Kind, body: bytes) -> bytes:
    return _HEAD.pack(len(body), kind) + body


class EnvelopeReader:
    """Cuts a byte stream into envelopes; holds at most one envelope and what was fed with it."""

    def __init__(self, largest_bytes: int) -> None:
        self.largest_bytes = largest_bytes
        self.peer: PeerId | None = None
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Envelope | None:
        """None when more bytes are needed. Raises MalformedMessage for a length over the limit or an unknown kind."""
        if len(self._buffer) < _HEAD.size:
            return None
        length, kind = _HEAD.unpack_from(self._buffer)
        if length > self.largest_bytes:
            raise MalformedMessage(self.peer, f"a message of {length} bytes announced, at most {self.largest_bytes} are taken")
        try:
            known = Kind(kind)
        except ValueError:
            raise MalformedMessage(self.peer, f"unknown kind of envelope {kind}") from None
        end = _HEAD.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[_HEAD.size : end])
        del self._buffer[:end]
        return Envelope(known, body)


def pack_hello(hello: Hello) -> bytes:
    ended = None if hello.ended is None else [hello.ended.decider, hello.ended.generation]
    content = {
        "version": PROTOCOL_VERSION,
        "token": hello.token,
        "name": hello.name[:LONGEST_NAME],
        "instance": hello.instance,
        "ended": ended,
    }
    return bytes(msgpack.packb(content))


def unpack_hello(peer: PeerId, body: bytes) -> Hello:
    """Raises RemoteError for another protocol version, MalformedMessage for anything else that is wrong."""
    try:
        content = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException):
        content = None
    if not isinstance(content, dict):
        raise MalformedMessage(peer, "its hello does not decode")
    version = content.get("version")
    if not _is_count(version) or version != PROTOCOL_VERSION:
        raise RemoteError(peer, f"it speaks protocol version {version!r:.20}, this peer speaks {PROTOCOL_VERSION}")
    token, name, instance = content.get("token"), content.get("name"), content.get("instance")
    if not isinstance(token, bytes) or not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise MalformedMessage(peer, "a field of its hello is out of range")
    if not _is_instance(instance):
        raise MalformedMessage(peer, "a field of its hello is out of range")
    return Hello(token=token, name=name, instance=instance, ended=_unpack_ended(peer, content.get("ended")))


def pack_generation(generation: int) -> bytes:
    return _GENERATION.pack(generation)


def unpack_generation(peer: PeerId, body: bytes) -> int:
    if len(body) != _GENERATION.size:
        raise MalformedMessage(peer, "it opened a session without saying which")
    return int(_GENERATION.unpack(body)[0])


def _unpack_ended(peer: PeerId, value: Any) -> SessionName | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and _is_instance(value[0]) and _is_count(value[1]):
        return SessionName(value[0], value[1])
    raise MalformedMessage(peer, "a field of its hello is out of range")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_instance(value: Any) -> TypeGuard[bytes]:
    return isinstance(value, bytes) and len(value) == INSTANCE_BYTES


assert LARGEST_HELLO_BYTES <= LARGEST_MESSAGE_BYTES
