"""Objects `ciuic://bucket/key`: what they may be called, and the signed versions of them. Knows neither bytes nor the clock.

Bytes of a version: msgpack [format, bucket, key, vector, author, created_at_ms, manifest, size_bytes, etag, signature]. One
version has one encoding: what does not encode to the same bytes again is refused. The signature is the author's, over all
that comes before it and the swarm, so that a version of one swarm is none in another.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

import msgpack

from ciuic_p2p.core.peerids import public_key_of
from ciuic_p2p.core.signing import SIGNATURE_BYTES, verify
from ciuic_p2p.core.vectors import VersionVector
from ciuic_p2p.core.wire import LARGEST_INTEGER, from_wire, to_wire, unpack
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId

SCHEME = "ciuic://"
LONGEST_KEY_BYTES = 1024
LARGEST_MANIFEST_BYTES = 512 << 10
LARGEST_VERSION_BYTES = 640 << 10
"""Fits into one message, with a manifest and a vector of their largest sizes."""

_FORMAT = 1
_DOMAIN = b"ciuic-p2p object version 1\0"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_ETAG = re.compile(r"[0-9a-f]{1,64}")
_BIDI_CONTROLS = frozenset(("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"))
"""They make a terminal show another name than the one that is there. https://www.unicode.org/reports/tr9/"""


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """Raises ValueError at construction for a name that is against the rules."""

    bucket: str
    key: str

    def __post_init__(self) -> None:
        check_bucket(self.bucket)
        check_key(self.key)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


def parse_address(address: str) -> ObjectName:
    """`ciuic://bucket/key`, nothing of it escaped. Raises ValueError."""
    if not address.startswith(SCHEME):
        raise ValueError(f"{address!r} does not begin with {SCHEME}")
    bucket, _, key = address.removeprefix(SCHEME).partition("/")
    return ObjectName(bucket, key)


def check_bucket(bucket: str) -> None:
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(
            f"bucket {bucket!r} is not 1 to 63 lower-case letters, digits, dots and hyphens, the first a letter or digit"
        )


def check_key(key: str) -> None:
    """A key is a relative path that no file system reads as another one."""
    if any(0xD800 <= ord(character) < 0xE000 for character in key):
        raise ValueError("a key with half a surrogate pair cannot be written as UTF-8")
    if len(key.encode()) > LONGEST_KEY_BYTES:
        raise ValueError(f"a key of {len(key.encode())} bytes, at most {LONGEST_KEY_BYTES} are allowed")
    if any(_is_control(character) for character in key):
        raise ValueError(f"key {key!r} has a control character")
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise ValueError(f"key {key!r} has a segment between slashes that is empty, '.' or '..'")


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(character) in _BIDI_CONTROLS


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """What `author` wrote under a name. Raises ValueError at construction for a field that is out of bounds.

    Whoever reads one from another peer takes it from `decode_version`, which checks the signature.
    """

    bucket: str
    key: str
    vector: VersionVector
    """What the author had seen, and this write of its own."""
    author: PeerId
    created_at_ms: int
    """Since 1970 by the author's clock, which may be off by hours."""
    manifest: bytes | None
    """Of the blob; None: a tombstone, the object was removed."""
    size_bytes: int = 0
    etag: str = ""
    """Hexadecimal, of the object's bytes. Empty in a tombstone."""
    signature: bytes = b""
    """Empty until `sign_version`."""

    def __post_init__(self) -> None:
        check_bucket(self.bucket)
        check_key(self.key)
        public_key_of(self.author)
        if not self.vector.count(self.author):
            raise ValueError("a version whose vector does not count its author's write")
        for name in ("created_at_ms", "size_bytes"):
            if not 0 <= getattr(self, name) <= LARGEST_INTEGER:
                raise ValueError(f"{name} is not an integer from 0 to {LARGEST_INTEGER}")
        self._check_content()
        if len(self.signature) not in (0, SIGNATURE_BYTES):
            raise ValueError(f"a signature of {len(self.signature)} bytes")

    def _check_content(self) -> None:
        if self.manifest is None:
            if self.size_bytes or self.etag:
                raise ValueError("a tombstone with a size or an etag")
            return
        if len(self.manifest) > LARGEST_MANIFEST_BYTES:
            raise ValueError(f"a manifest of {len(self.manifest)} bytes, at most {LARGEST_MANIFEST_BYTES} are allowed")
        if not _ETAG.fullmatch(self.etag):
            raise ValueError("etag is not 1 to 64 lower-case hexadecimal digits")

    @property
    def name(self) -> ObjectName:
        return ObjectName(self.bucket, self.key)

    @property
    def is_tombstone(self) -> bool:
        return self.manifest is None


def sign_version(version: ObjectVersion, swarm: str, sign: Callable[[bytes], bytes]) -> ObjectVersion:
    """sign: makes the Ed25519 signature (RFC 8032) of the version's own author."""
    return dataclasses.replace(version, signature=sign(_signed_message(version, swarm)))


def is_signed(version: ObjectVersion, swarm: str) -> bool:
    """By its author, for this swarm, all fields as they are."""
    return verify(version.author, _signed_message(version, swarm), version.signature)


def encode_version(version: ObjectVersion) -> bytes:
    """Raises ValueError for a version without a signature."""
    if not version.signature:
        raise ValueError("a version that nobody signed")
    packed: bytes = msgpack.packb([_FORMAT, *to_wire(version)])
    return packed


def decode_version(data: bytes, swarm: str) -> ObjectVersion:
    """Raises MalformedMessage for anything but the one encoding of a version, signed by its author for this swarm."""
    values = unpack(data, LARGEST_VERSION_BYTES)
    if not isinstance(values, list) or not values or type(values[0]) is not int or values[0] != _FORMAT:
        raise MalformedMessage(None, "an object version of an unknown format")
    version: ObjectVersion = from_wire(ObjectVersion, values[1:])
    if not is_signed(version, swarm):
        raise MalformedMessage(version.author, "an object version whose signature is not its author's, or of another swarm")
    if encode_version(version) != data:
        raise MalformedMessage(version.author, "an object version that is not in its one encoding")
    return version


def _signed_message(version: ObjectVersion, swarm: str) -> bytes:
    name = swarm.encode()
    fields: bytes = msgpack.packb([_FORMAT, *to_wire(version)[:-1]])
    return _DOMAIN + len(name).to_bytes(2, "big") + name + fields
