"""The hash of a run's state, and the manifest by which a newcomer takes pieces from several peers and verifies each.

The state is the anchor, then the outer momentum, both cut into pieces of 262,144 float32 values (1 MiB; the last piece of each
may be shorter). A piece's hash is the BLAKE3 of its little-endian bytes; the state hash is the BLAKE3 of the domain, the sizes
and all piece hashes in order, and of the ledgers where there are any. Knows not where pieces come from.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import blake3
import numpy as np

from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.tensors.outer import OuterState
from ciuic_p2p.tensors.tiles import Float32
from ciuic_p2p.terms import StateHash

PIECE_VALUES = 1 << 18
HASH_BYTES = 32
MOST_PIECES = 30_000
"""Their hashes still fit one control message: 7.8 billion values."""
LARGEST_LEDGERS_BYTES = 64 << 10
"""Beside them."""

_VALUE_BYTES = 4
_DOMAIN = b"ciuic state 1"
_SIZES = struct.Struct("<QQQQQ")
_LARGEST_EPOCH = (1 << 32) - 1
_MOST_SAMPLES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PieceSpan:
    """Where a piece lies: values `start` to `stop` of the anchor or of the momentum."""

    array: str
    """"anchor" or "momentum"."""
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        return _VALUE_BYTES * (self.stop - self.start)

    def of(self, state: OuterState) -> Float32:
        """A view of the piece's values in `state`."""
        values = state.anchor if self.array == "anchor" else state.momentum
        return values[self.start : self.stop]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateManifest:
    """Sizes and piece hashes of one epoch's state. Raises MalformedMessage when they do not belong together."""

    epoch: int
    count: int
    parameter_count: int
    samples: int = 0
    """How many samples all rounds up to this state have counted."""
    piece_hashes: tuple[bytes, ...]
    """Of the anchor's pieces, then of the momentum's."""
    piece_values: int = PIECE_VALUES
    ledgers: bytes = b""
    """Which samples are used, and who is to use which (core/ledgers.py); empty for a run without datasets."""

    def __post_init__(self) -> None:
        if not (0 <= self.epoch <= _LARGEST_EPOCH and 0 <= self.parameter_count <= self.count and self.count > 0):
            raise MalformedMessage(None, "a state manifest with impossible sizes")
        if not 0 <= self.samples <= _MOST_SAMPLES:
            raise MalformedMessage(None, "a state manifest with an impossible number of samples")
        if self.piece_values != PIECE_VALUES:
            raise MalformedMessage(None, f"a state manifest with pieces of {self.piece_values} values, not {PIECE_VALUES}")
        if len(self.ledgers) > LARGEST_LEDGERS_BYTES:
            raise MalformedMessage(None, f"a state manifest with {len(self.ledgers)} bytes of ledgers")
        pieces = self._anchor_pieces + _pieces(self.parameter_count)
        if len(self.piece_hashes) != pieces or pieces > MOST_PIECES:
            raise MalformedMessage(None, f"a state manifest with {len(self.piece_hashes)} piece hashes for {self.count} values")
        if any(len(digest) != HASH_BYTES for digest in self.piece_hashes):
            raise MalformedMessage(None, "a state manifest with a hash of the wrong length")

    @classmethod
    def describe(cls, state: OuterState, epoch: int, samples: int = 0, ledgers: bytes = b"") -> StateManifest:
        """The manifest of `state` at `epoch`, to which `samples` samples led. Reads every byte once."""
        digests = (*_hash_pieces(state.anchor), *_hash_pieces(state.momentum))
        return cls(
            epoch=epoch,
            count=state.count,
            parameter_count=state.parameter_count,
            samples=samples,
            piece_hashes=digests,
            ledgers=ledgers,
        )

    @property
    def state_hash(self) -> StateHash:
        """64 hexadecimal digits; equal on two peers exactly when anchor, momentum, epoch, samples and ledgers are."""
        sizes = _SIZES.pack(self.epoch, self.count, self.parameter_count, self.piece_values, self.samples)
        ledgers = blake3.blake3(self.ledgers).digest() if self.ledgers else b""
        return StateHash(blake3.blake3(b"".join([_DOMAIN, sizes, *self.piece_hashes, ledgers])).hexdigest())

    def span(self, index: int) -> PieceSpan:
        """Where piece `index` belongs. Raises MalformedMessage when there is none."""
        if not 0 <= index < len(self.piece_hashes):
            raise MalformedMessage(None, f"piece {index} of a state of {len(self.piece_hashes)}")
        of_anchor = index < self._anchor_pieces
        size = self.count if of_anchor else self.parameter_count
        start = (index if of_anchor else index - self._anchor_pieces) * PIECE_VALUES
        return PieceSpan("anchor" if of_anchor else "momentum", start, min(start + PIECE_VALUES, size))

    def verify_piece(self, index: int, piece: bytes | memoryview) -> bool:
        """Whether `piece` has the length and the hash of piece `index`. Raises MalformedMessage when there is no such piece."""
        span = self.span(index)
        return len(piece) == span.size_bytes and blake3.blake3(piece).digest() == self.piece_hashes[index]

    def to_wire(self) -> dict[str, Any]:
        """A dict of integers and one byte string, for from_wire."""
        return {
            "epoch": self.epoch,
            "count": self.count,
            "parameter_count": self.parameter_count,
            "piece_values": self.piece_values,
            "samples": self.samples,
            "piece_hashes": b"".join(self.piece_hashes),
            "ledgers": self.ledgers,
        }

    @classmethod
    def from_wire(cls, message: Any) -> StateManifest:
        """Raises MalformedMessage for anything that to_wire would not have written."""
        if not isinstance(message, dict):
            raise MalformedMessage(None, "a state manifest that is no dict")
        numbers = {name: _integer(message, name) for name in ("epoch", "count", "parameter_count", "piece_values", "samples")}
        joined = message.get("piece_hashes")
        if not isinstance(joined, bytes) or len(joined) > MOST_PIECES * HASH_BYTES:
            raise MalformedMessage(None, "a state manifest without piece hashes, or with too many")
        ledgers = message.get("ledgers")
        if not isinstance(ledgers, bytes):
            raise MalformedMessage(None, "a state manifest without ledgers")
        digests = tuple(joined[start : start + HASH_BYTES] for start in range(0, len(joined), HASH_BYTES))
        return cls(piece_hashes=digests, ledgers=ledgers, **numbers)

    @property
    def _anchor_pieces(self) -> int:
        return _pieces(self.count)


def state_hash(state: OuterState, epoch: int) -> StateHash:
    """The run's state hash at `epoch`; a peer that also serves the state keeps the manifest instead."""
    return StateManifest.describe(state, epoch).state_hash


def piece_bytes(values: Float32) -> memoryview:
    """The little-endian bytes of a piece, as they are sent and hashed; a view on a little-endian machine."""
    return np.ascontiguousarray(values, "<f4").data.cast("B")


def _hash_pieces(values: Float32) -> list[bytes]:
    starts = range(0, len(values), PIECE_VALUES)
    return [blake3.blake3(piece_bytes(values[start : start + PIECE_VALUES])).digest() for start in starts]


def _integer(message: dict[str, Any], name: str) -> int:
    number = message.get(name)
    if type(number) is not int:
        raise MalformedMessage(None, f"a state manifest whose {name} is no integer")
    return number


def _pieces(count: int) -> int:
    return -(-count // PIECE_VALUES)
