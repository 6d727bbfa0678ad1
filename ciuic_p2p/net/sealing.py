"""The record layer of a lane: frames ⇄ sealed bytes, AES-256-GCM with counter nonces.

No I/O; refuses to know rounds and tokens.

On the wire: 8 bytes counter in clear · sealed header (its size + 16) · sealed payload (its length + 16; nothing when the
length is 0). The counter is associated data of the header, the header is associated data of the payload. Nonce: 4 bytes 0
for the header or 1 for the payload, then the counter, so no nonce is used twice under a key. A key is replaced, by one
step of HKDF, after `frames_per_key` frames.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from ciuic_p2p.core.frames import HEADER_BYTES
from ciuic_p2p.errors import FrameForged, FrameReplayed
from ciuic_p2p.net.transport import Payload
from ciuic_p2p.terms import LARGEST_FRAME_BYTES, PeerId

TAG_BYTES = 16
COUNTER_BYTES = 8
HEAD_BYTES = COUNTER_BYTES + HEADER_BYTES + TAG_BYTES
"""What is read first of every frame: the counter and the sealed header."""
FRAMES_PER_KEY = 4096
"""4096 frames of at most 8 MiB are 2^35 bytes; NIST SP 800-38D allows 2^32 calls and 2^36 bytes a call."""

_COUNTER = struct.Struct("!Q")
_SECRET_BYTES = 32
_HEADER_NONCE = b"\0\0\0\0"
_PAYLOAD_NONCE = b"\0\0\0\1"


def lane_secrets(session_secret: bytes, number: int, salt: bytes) -> tuple[bytes, bytes]:
    """The secrets of lane `number` for the direction away from, and the direction towards, the one who dialled it."""
    info = b"ciuic-p2p lane" + number.to_bytes(4, "big")
    both = HKDF(hashes.SHA256(), 2 * _SECRET_BYTES, salt, info).derive(session_secret)
    return both[:_SECRET_BYTES], both[_SECRET_BYTES:]


class _Keys:
    """The key for each counter in turn, and the next counter."""

    def __init__(self, secret: bytes, frames_per_key: int) -> None:
        self._secret = secret
        self._frames_per_key = frames_per_key
        self._cipher = AESGCM(self._derive(b"key"))
        self.counter = 0

    def cipher(self) -> AESGCM:
        return self._cipher

    def advance(self) -> None:
        self.counter += 1
        if self.counter % self._frames_per_key == 0:
            self._secret = self._derive(b"next")
            self._cipher = AESGCM(self._derive(b"key"))

    def _derive(self, purpose: bytes) -> bytes:
        return HKDFExpand(hashes.SHA256(), _SECRET_BYTES, b"ciuic-p2p frame " + purpose).derive(self._secret)


class FrameSealer:
    """One lane, one direction, sending side. Not thread-safe: one thread owns it."""

    def __init__(self, secret: bytes, frames_per_key: int = FRAMES_PER_KEY) -> None:
        self._keys = _Keys(secret, frames_per_key)
        self._buffer = bytearray(HEAD_BYTES)

    def seal(self, header: bytes, payload: Payload = b"") -> memoryview:
        """header: HEADER_BYTES bytes that say the payload's length. The result is valid until the next call."""
        content = memoryview(payload).cast("B")
        size = HEAD_BYTES + (len(content) + TAG_BYTES if len(content) else 0)
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        whole = memoryview(self._buffer)[:size]
        counter = _COUNTER.pack(self._keys.counter)
        cipher = self._keys.cipher()
        whole[:COUNTER_BYTES] = counter
        cipher.encrypt_into(_HEADER_NONCE + counter, header, counter, whole[COUNTER_BYTES:HEAD_BYTES])
        if len(content):
            cipher.encrypt_into(_PAYLOAD_NONCE + counter, content, header, whole[HEAD_BYTES:])
        self._keys.advance()
        return whole


class FrameOpener:
    """One lane, one direction, receiving side. Not thread-safe: one thread owns it."""

    def __init__(self, peer: PeerId, secret: bytes, frames_per_key: int = FRAMES_PER_KEY) -> None:
        self._peer = peer
        self._keys = _Keys(secret, frames_per_key)
        self._sealed = bytearray()
        self._plain = bytearray()

    def open_header(self, head: Payload) -> bytes:
        """head: HEAD_BYTES bytes. Raises FrameReplayed when the counter is not the next one, FrameForged."""
        counter = bytes(head[:COUNTER_BYTES])
        number = _COUNTER.unpack(counter)[0]
        if number < self._keys.counter:
            raise FrameReplayed(self._peer, f"frame {number} of a lane came again, expected {self._keys.counter}")
        if number > self._keys.counter:
            raise FrameReplayed(self._peer, f"frames {self._keys.counter} to {number - 1} of a lane are missing")
        try:
            return self._keys.cipher().decrypt(_HEADER_NONCE + counter, head[COUNTER_BYTES:], counter)
        except InvalidTag:
            raise FrameForged(self._peer, f"the header of frame {number} of a lane was changed on its way") from None

    def payload_buffer(self, length: int) -> memoryview:
        """Where to put the sealed payload before `open_payload`. length: of the plain payload, at most LARGEST_FRAME_BYTES."""
        assert 0 < length <= LARGEST_FRAME_BYTES
        if len(self._plain) < length:
            self._sealed, self._plain = bytearray(length + TAG_BYTES), bytearray(length)
        return memoryview(self._sealed)[: length + TAG_BYTES]

    def open_payload(self, header: bytes, length: int) -> memoryview:
        """header: the plain header. The result is valid until the next frame. Raises FrameForged."""
        sealed, plain = memoryview(self._sealed)[: length + TAG_BYTES], memoryview(self._plain)[:length]
        nonce = _PAYLOAD_NONCE + _COUNTER.pack(self._keys.counter)
        try:
            self._keys.cipher().decrypt_into(nonce, sealed, header, plain)
        except InvalidTag:
            raise FrameForged(self._peer, f"the payload of frame {self._keys.counter} of a lane was changed") from None
        return plain.toreadonly()

    def advance(self) -> None:
        """The frame was whole and right; the next one is expected."""
        self._keys.advance()
