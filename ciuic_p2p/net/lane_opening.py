"""The first bytes of a lane, by which the two ends of a session know their own. Refuses to know sockets and frames.

`CIUL` · session id (16) · lane number (4) · salt (16) · HMAC-SHA256 over all that, under a key of the session (first 16
bytes). A direct connection to which a relayed session may move (moving.py) opens in the same way, with `CIUP` and numbers of
its own.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from ciuic_p2p.net.tls import TlsChannel

LANE_MAGIC = b"CIUL"
PATH_MAGIC = b"CIUP"
SALT_BYTES = 16
_LAYOUT = struct.Struct("!4s16sI16s")
_MAC_BYTES = 16
OPENING_BYTES = _LAYOUT.size + _MAC_BYTES


@dataclass(frozen=True, slots=True)
class LaneKeys:
    """What the two ends of a session know and nobody else: from the TLS exporter."""

    session_id: bytes
    opening_key: bytes
    secret: bytes

    @classmethod
    def of(cls, channel: TlsChannel) -> LaneKeys:
        return cls(
            channel.export(b"EXPERIMENTAL ciuic-p2p session id", 16),
            channel.export(b"EXPERIMENTAL ciuic-p2p lane opening", 32),
            channel.export(b"EXPERIMENTAL ciuic-p2p lane secret", 32),
        )


@dataclass(frozen=True, slots=True)
class LaneOpening:
    """A lane's number is never used twice in a session; number and salt go into its keys."""

    session_id: bytes
    number: int
    salt: bytes

    def pack(self, opening_key: bytes, magic: bytes = LANE_MAGIC) -> bytes:
        said = _LAYOUT.pack(magic, self.session_id, self.number, self.salt)
        return said + _mac(opening_key, said)


def session_of(opening: bytes) -> bytes:
    """Which session an opening of OPENING_BYTES bytes speaks of."""
    return opening[len(LANE_MAGIC) :][:16]


def unpack_opening(opening: bytes, opening_key: bytes) -> LaneOpening | None:
    """None when it was not made with the key, for what its first bytes say."""
    said, mac = opening[:-_MAC_BYTES], opening[-_MAC_BYTES:]
    if len(opening) != OPENING_BYTES or not hmac.compare_digest(_mac(opening_key, said), mac):
        return None
    _magic, session_id, number, salt = _LAYOUT.unpack(said)
    return LaneOpening(session_id, number, salt)


def _mac(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, hashlib.sha256)[:_MAC_BYTES]
