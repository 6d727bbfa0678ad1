"""What peers say to each other about splices: the bodies of the envelopes and the first bytes of a spliced connection.

Bytes ⇄ objects only; refuses to know sockets and who may have a splice.

    asker      → forwarder   WAY     number (4) · peer id of the target
    forwarder  → asker       GIVEN   number (4) · ticket (16), or nothing and a reason for a log
    forwarder  → target      CALLED  ticket (16) · peer id of the asker

Asker and target each dial the forwarder and say `CIUF` · ticket. When both are there the forwarder says one byte to the asker;
all that follows is between the two.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ciuic_p2p.core.peerids import public_key_of
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId

SPLICE_MAGIC = b"CIUF"
TICKET_BYTES = 16
JOINED = b"\x01"
_NUMBER = struct.Struct("!I")
_LONGEST_REASON_BYTES = 200


@dataclass(frozen=True, slots=True)
class WayAsked:
    number: int
    target: PeerId


@dataclass(frozen=True, slots=True)
class WayGiven:
    """ticket: good for one connection; None when there is no way, with the reason."""

    number: int
    ticket: bytes | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Called:
    ticket: bytes
    asker: PeerId


def pack_asked(asked: WayAsked) -> bytes:
    return _NUMBER.pack(asked.number) + asked.target.encode()


def unpack_asked(peer: PeerId, body: bytes) -> WayAsked:
    """Raises MalformedMessage."""
    return WayAsked(_number(peer, body), _peer_id(peer, body[_NUMBER.size :]))


def pack_given(given: WayGiven) -> bytes:
    """The first byte after the number says which of both it is."""
    said = b"\x01" + given.ticket if given.ticket is not None else b"\x00" + given.reason.encode()[:_LONGEST_REASON_BYTES]
    return _NUMBER.pack(given.number) + said


def unpack_given(peer: PeerId, body: bytes) -> WayGiven:
    """Raises MalformedMessage."""
    number, is_given, said = _number(peer, body), body[_NUMBER.size : _NUMBER.size + 1], body[_NUMBER.size + 1 :]
    if is_given == b"\x01" and len(said) == TICKET_BYTES:
        return WayGiven(number, said)
    if is_given == b"\x00" and len(said) <= _LONGEST_REASON_BYTES:
        return WayGiven(number, None, said.decode(errors="replace"))
    raise MalformedMessage(peer, "its answer about a way does not decode")


def pack_called(called: Called) -> bytes:
    return called.ticket + called.asker.encode()


def unpack_called(peer: PeerId, body: bytes) -> Called:
    """Raises MalformedMessage."""
    if len(body) < TICKET_BYTES:
        raise MalformedMessage(peer, "its call does not decode")
    return Called(body[:TICKET_BYTES], _peer_id(peer, body[TICKET_BYTES:]))


def _number(peer: PeerId, body: bytes) -> int:
    if len(body) < _NUMBER.size:
        raise MalformedMessage(peer, "it speaks of a way without its number")
    return int(_NUMBER.unpack_from(body)[0])


def _peer_id(peer: PeerId, said: bytes) -> PeerId:
    try:
        named = PeerId(said.decode("ascii"))
        public_key_of(named)
    except (UnicodeDecodeError, MalformedMessage):
        raise MalformedMessage(peer, "it speaks of a way to what is no peer id") from None
    return named
