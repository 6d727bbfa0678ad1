"""The peer's Ed25519 key and its file, in the format that the libp2p child process reads. Knows no network."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.errors import HomeUnusable
from ciuic_p2p.net.home import Home
from ciuic_p2p.terms import PeerId

IDENTITY_FILE = "identity.key"
_PREFIX = bytes([0x08, 0x01, 0x12, 0x40])
"""Protobuf PrivateKey {type: Ed25519, data: 64 bytes, seed and public key}.
https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md#key-types"""
_SEED_BYTES = 32


class Identity:
    """Who this peer is. Its text forms never show the key."""

    def __init__(self, key: Ed25519PrivateKey, file: Path) -> None:
        self._key = key
        self.file = file
        """Where the key lies; the libp2p child process reads it there."""
        self.peer_id: PeerId = peer_id_of(key.public_key())

    @classmethod
    def of_home(cls, home: Home) -> Identity:
        """Reads the home's key, or makes one. Raises HomeUnusable for a file that is damaged or that others may read."""
        file = home.file(IDENTITY_FILE)
        if not file.exists():
            key = Ed25519PrivateKey.generate()
            home.write(IDENTITY_FILE, _PREFIX + key.private_bytes_raw() + key.public_key().public_bytes_raw())
        return cls.read(file)

    @classmethod
    def read(cls, file: Path) -> Identity:
        """Raises HomeUnusable."""
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise HomeUnusable(f"the identity {file} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as stream:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise HomeUnusable(f"the identity {file} is not a file")
            if stat.S_IMODE(mode) & 0o077:
                raise HomeUnusable(f"others may read the identity {file}", f"run `chmod 600 {file}`")
            return cls(_parse(stream.read(1024), file), file)

    def sign(self, message: bytes) -> bytes:
        """64 bytes, Ed25519 (RFC 8032)."""
        return self._key.sign(message)

    @property
    def private_key(self) -> Ed25519PrivateKey:
        """For the certificates of TLS sessions."""
        return self._key

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"


def _parse(data: bytes, file: Path) -> Ed25519PrivateKey:
    seed, public = data[len(_PREFIX) :][:_SEED_BYTES], data[len(_PREFIX) + _SEED_BYTES :]
    if data.startswith(_PREFIX) and len(seed) == _SEED_BYTES:
        key = Ed25519PrivateKey.from_private_bytes(seed)
        if key.public_key().public_bytes_raw() == public:
            return key
    raise HomeUnusable(f"the identity {file} is damaged", "restore it from a backup, or remove it to join as a new peer")
