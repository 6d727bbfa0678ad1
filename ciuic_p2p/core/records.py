"""What a peer says of itself to its swarm, and its signed bytes. Knows neither where records are kept nor the clock.

Bytes: msgpack [body, signature], body: msgpack [format, peer id, …] in the order of `_BODY_FIELDS`. One record has one
encoding: what does not encode to the same bytes again is refused. The signature covers the swarm, so that a record of one
swarm is none in another, and the expiry, so that nobody can keep an old record alive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgpack

from ciuic_p2p.core.peerids import public_key_of
from ciuic_p2p.core.signing import SIGNATURE_BYTES, verify
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PROTOCOL_VERSION, PeerId

LARGEST_RECORD_BYTES = 8 << 10
MOST_ADDRESSES = 16
MOST_RUNS = 32
MOST_GPUS = 16

_FORMAT = 1
_DOMAIN = b"ciuic-p2p peer record 1\0"
_LARGEST_INTEGER = (1 << 63) - 1
_SESSION_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]{2,60}\]|[0-9A-Za-z._-]{1,253}):([1-9][0-9]{0,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the peer's machine has. For people and planners to read; nothing relies on it."""

    cores: int
    memory_bytes: int
    free_disk_bytes: int
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_integer("cores", self.cores, 1 << 16)
        _check_integer("memory_bytes", self.memory_bytes)
        _check_integer("free_disk_bytes", self.free_disk_bytes)
        _check_texts("gpus", self.gpus, most=MOST_GPUS, longest=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """Raises ValueError at construction for a field that is out of bounds."""

    peer_id: PeerId
    name: str
    region: str
    p2p_addresses: tuple[str, ...] = ()
    """Multiaddrs, without the /p2p/ of the peer itself."""
    session_addresses: tuple[str, ...] = ()
    """host:port where the peer takes TLS sessions; IPv6 in brackets."""
    version: str
    protocol: int = PROTOCOL_VERSION
    capacity: Capacity
    runs: tuple[str, ...] = ()
    started_at_s: int
    """Seconds since 1970 by the peer's own clock, which may be wrong by minutes."""
    sequence: int = 0
    """Grows with every record of this peer, over restarts too."""
    expires_at_s: int = 0
    """Seconds since 1970 after which the DHT forgets the record. Far later than the record is fresh: see net/discovery.py."""
    leaving: bool = False
    """The peer's last record: it is gone."""

    def __post_init__(self) -> None:
        public_key_of(self.peer_id)
        _check_text("name", self.name, longest=64)
        _check_text("region", self.region, longest=32)
        _check_texts("p2p_addresses", self.p2p_addresses, most=MOST_ADDRESSES, longest=256)
        _check_texts("session_addresses", self.session_addresses, most=MOST_ADDRESSES, longest=262)
        for address in self.session_addresses:
            _check_session_address(address)
        _check_text("version", self.version, longest=32)
        _check_integer("protocol", self.protocol, (1 << 16) - 1)
        _check_texts("runs", self.runs, most=MOST_RUNS, longest=64)
        for name in ("started_at_s", "sequence", "expires_at_s"):
            _check_integer(name, getattr(self, name))
        if type(self.leaving) is not bool:
            raise ValueError("leaving is true or false")


_CAPACITY_FIELDS = ("cores", "memory_bytes", "free_disk_bytes", "gpus")
_BODY_FIELDS = (
    "peer_id",
    "name",
    "region",
    "p2p_addresses",
    "session_addresses",
    "version",
    "protocol",
    "capacity",
    "runs",
    "started_at_s",
    "sequence",
    "expires_at_s",
    "leaving",
)


def encode_record(record: PeerRecord, swarm: str, sign: Callable[[bytes], bytes]) -> bytes:
    """sign: makes the Ed25519 signature of the record's own peer. Raises ValueError when the record is over the size limit."""
    body = _pack_body(record)
    data: bytes = msgpack.packb([body, sign(_signed_message(swarm, body))])
    if len(data) > LARGEST_RECORD_BYTES:
        raise ValueError(f"a peer record of {len(data)} bytes, at most {LARGEST_RECORD_BYTES} are allowed")
    return data


def decode_record(data: bytes, swarm: str) -> PeerRecord:
    """Raises MalformedMessage for anything but a record of this swarm, signed by the peer it speaks of."""
    if len(data) > LARGEST_RECORD_BYTES:
        raise MalformedMessage(None, f"a peer record of {len(data)} bytes, at most {LARGEST_RECORD_BYTES} are read")
    match _unpack(data):
        case [bytes() as body, bytes() as signature] if len(signature) == SIGNATURE_BYTES:
            record = _read_body(body)
        case _:
            raise MalformedMessage(None, "a peer record that is not a body and a signature")
    if not verify(record.peer_id, _signed_message(swarm, body), signature):
        raise MalformedMessage(record.peer_id, "a peer record with a signature that is not the peer's, or of another swarm")
    if msgpack.packb([body, signature]) != data or _pack_body(record) != body:
        raise MalformedMessage(record.peer_id, "a peer record that is not in its one encoding")
    return record


def _signed_message(swarm: str, body: bytes) -> bytes:
    name = swarm.encode()
    return _DOMAIN + len(name).to_bytes(2, "big") + name + body


def _pack_body(record: PeerRecord) -> bytes:
    values = [getattr(record, name) for name in _BODY_FIELDS]
    values[_BODY_FIELDS.index("capacity")] = [getattr(record.capacity, name) for name in _CAPACITY_FIELDS]
    packed: bytes = msgpack.packb([_FORMAT, *values])
    return packed


def _read_body(body: bytes) -> PeerRecord:
    values = _unpack(body)
    if not isinstance(values, list) or not values or values[0] != _FORMAT:
        raise MalformedMessage(None, "a peer record of an unknown format")
    try:
        fields = dict(zip(_BODY_FIELDS, map(_frozen, values[1:]), strict=True))
        fields["capacity"] = Capacity(**dict(zip(_CAPACITY_FIELDS, fields["capacity"], strict=True)))
        return PeerRecord(**fields)
    except (ValueError, TypeError) as error:
        raise MalformedMessage(None, f"a peer record that cannot be: {error}") from None


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _unpack(data: bytes) -> object:
    try:
        return msgpack.unpackb(data, strict_map_key=True, max_buffer_size=LARGEST_RECORD_BYTES)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MalformedMessage(None, f"a peer record that is not msgpack: {type(error).__name__}") from None


def _check_integer(name: str, value: object, largest: int = _LARGEST_INTEGER) -> None:
    if type(value) is not int or not 0 <= value <= largest:
        raise ValueError(f"{name} is not an integer from 0 to {largest}")


def _check_text(name: str, value: object, *, longest: int) -> None:
    """Printable, since it ends in terminals and logs."""
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        raise ValueError(f"{name} is not a printable text of at most {longest} characters")


def _check_texts(name: str, values: object, *, most: int, longest: int) -> None:
    if not isinstance(values, tuple) or len(values) > most:
        raise ValueError(f"{name} is not a list of at most {most}")
    texts: Iterable[object] = values
    for value in texts:
        _check_text(name, value, longest=longest)


def _check_session_address(address: str) -> None:
    found = _SESSION_ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise ValueError(f"session address {address!r} is not host:port")
