"""Local messages ⇄ bytes: a 4-byte big-endian length, then a msgpack map with `type`. Knows no socket.

Decoding an attach of many thousand tensors takes tens of milliseconds; `MessageSplitter` therefore only cuts the stream, and
`decode` is a function that may run in a thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

import msgpack

from ciuic_p2p.errors import LocalError, MalformedMessage
from ciuic_p2p.local.protocol import Attach, Message, StrategySettings

LARGEST_LOCAL_MESSAGE_BYTES = 16 << 20
"""Room for the layout of some hundred thousand tensors; both sides run as the same user on one machine."""

Constructed = TypeVar("Constructed")

_LENGTH = struct.Struct("!I")


class MessageSplitter:
    """Cuts what comes from a socket into message bodies."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> None:
        self._received += data

    @property
    def inside_message(self) -> bool:
        """True when the stream must not end here."""
        return bool(self._received)

    def bodies(self) -> Iterator[bytes]:
        """The whole bodies received so far. Raises MalformedMessage as soon as an announced length is over the limit."""
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > LARGEST_LOCAL_MESSAGE_BYTES:
                raise MalformedMessage(None, f"a message of {length} bytes, at most {LARGEST_LOCAL_MESSAGE_BYTES} are taken")
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            body = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield body


def encode(message: Message) -> bytes:
    """Length and body. Raises LocalError when a view's value is not plain data or is too large."""
    wire = {"type": message.type, **_fields_of(message)}
    try:
        body: bytes = msgpack.packb(wire)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalError(f"{message.type} does not encode: {error}") from None
    if len(body) > LARGEST_LOCAL_MESSAGE_BYTES:
        raise LocalError(f"{message.type} takes {len(body)} bytes, at most {LARGEST_LOCAL_MESSAGE_BYTES} are sent")
    return _LENGTH.pack(len(body)) + body


def _fields_of(message: Message) -> dict[str, Any]:
    """Shallow: a layout of many tensors is not copied."""
    values = {one.name: getattr(message, one.name) for one in fields(message)}  # type: ignore[arg-type]  # a dataclass
    if isinstance(message, Attach):
        values["strategy"] = asdict(message.strategy)
    return values


def decode(body: bytes, kinds: Mapping[str, type[Message]]) -> Message:
    """The message in a body; `kinds` is TO_DAEMON or FROM_DAEMON. Raises MalformedMessage for anything else."""
    try:
        wire = msgpack.unpackb(body, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedMessage(None, f"not a msgpack map: {error}") from None
    if not isinstance(wire, dict):
        raise MalformedMessage(None, "not a msgpack map")
    name = wire.pop("type", None)
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise MalformedMessage(None, f"unknown message {name!r:.80}")
    if "strategy" in wire:
        wire["strategy"] = _construct(StrategySettings, wire["strategy"])
    if isinstance(peers := wire.get("peers"), list):
        wire["peers"] = tuple(peers)
    return _construct(kind, wire)


def _construct(kind: type[Constructed], values: object) -> Constructed:
    if not isinstance(values, dict):
        raise MalformedMessage(None, f"{kind.__name__} is not a map")
    known: set[Any] = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # only dataclasses come here
    if unknown := values.keys() - known:
        raise MalformedMessage(None, f"{kind.__name__} has unknown fields {sorted(map(str, unknown))[:8]}")
    try:
        return kind(**values)
    except TypeError as error:
        raise MalformedMessage(None, f"{kind.__name__}: {error}") from None
