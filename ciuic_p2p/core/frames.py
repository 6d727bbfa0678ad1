"""The header of a bulk frame: what it carries, for which part of which round. Knows nothing of keys or sockets."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from ciuic_p2p.errors import FrameTooLarge, MalformedMessage
from ciuic_p2p.terms import LARGEST_FRAME_BYTES


class FrameKind(enum.IntEnum):
    """What the payload is."""

    CONTRIBUTION = 1
    """One peer's encoded pseudo-gradient for one part, on its way to the part's owner."""
    RESULT = 2
    """The encoded weighted mean of one part, the same bytes for every member."""
    STATE = 3
    """One piece of a run's state (anchor and momentum, float32), for a peer that catches up."""
    PROBE = 4
    """Bytes without meaning, to time a link."""
    SHARD = 5
    """A piece of a shard, as its holder keeps it: `run` begins the shard's name, `epoch` is the number under which it was asked
    for, `part` says which piece, `samples` how many bytes the shard has."""


_LAYOUT = struct.Struct("!BBBx8sIIIIQ")
HEADER_BYTES = _LAYOUT.size


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """36 bytes on the wire, encrypted, and associated data of the payload."""

    kind: FrameKind
    codec: int
    """The codec's registered code (see tensors/codecs)."""
    packed: bool = False
    """The encoding was packed without loss (tensors/lossless.py)."""
    run: bytes
    """First 8 bytes of the BLAKE3 of the run's name."""
    epoch: int
    term: int
    """The leader's term under which the sender acts (see core/rounds.py); of a STATE frame, 32 bits of the state's hash."""
    part: int
    length: int = 0
    """Payload bytes; filled in by the lane when the payload has been encoded."""
    samples: int = 0
    """The contribution's weight."""

    def pack(self) -> bytes:
        return _LAYOUT.pack(
            self.kind, self.codec, self.packed, self.run, self.epoch, self.term, self.part, self.length, self.samples
        )

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> FrameHeader:
        """Raises MalformedMessage for an unknown kind or a wrong size, FrameTooLarge for a length over the limit."""
        if len(data) != HEADER_BYTES:
            raise MalformedMessage(None, f"a frame header of {len(data)} bytes instead of {HEADER_BYTES}")
        kind, codec, packed, run, epoch, term, part, length, samples = _LAYOUT.unpack(data)
        if length > LARGEST_FRAME_BYTES:
            raise FrameTooLarge(None, f"a frame of {length} bytes announced, at most {LARGEST_FRAME_BYTES} are taken")
        try:
            known = FrameKind(kind)
        except ValueError:
            raise MalformedMessage(None, f"unknown kind of frame {kind}") from None
        return cls(
            kind=known,
            codec=codec,
            packed=bool(packed),
            run=run,
            epoch=epoch,
            term=term,
            part=part,
            length=length,
            samples=samples,
        )
