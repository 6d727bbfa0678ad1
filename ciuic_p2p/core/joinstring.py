"""The join string: what one peer hands to another so that it can join. Text to copy, with a checksum against half copies.

`ciuic1` + base64url without padding of: msgpack map {version, addresses, root, token}, then 4 bytes of BLAKE3 over it.
Refuses to know what an address means; it is text here.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgpack
from blake3 import blake3

from ciuic_p2p.core.membership import LARGEST_TOKEN_BYTES, Invitation
from ciuic_p2p.errors import ConfigError

PREFIX = "ciuic1"
LARGEST_JOIN_CHARACTERS = 16384
MOST_ADDRESSES = 32
LONGEST_ADDRESS = 256
_VERSION = 1
_CHECKSUM_BYTES = 4
_KEY_BYTES = 32
_REMEDY = "copy it again, whole, from the peer that printed it"


@dataclass(frozen=True, slots=True)
class JoinString:
    """addresses: multiaddrs with /p2p/ of peers that are up."""

    addresses: tuple[str, ...]
    invitation: Invitation


def encode_join(join: JoinString) -> str:
    content = {
        "version": _VERSION,
        "addresses": list(join.addresses),
        "root": join.invitation.root_public_key,
        "token": join.invitation.token,
    }
    body = msgpack.packb(content)
    return PREFIX + _to_text(body + _checksum(body))


def decode_join(text: str) -> JoinString:
    """Raises ConfigError, with the remedy, for everything that `encode_join` did not make."""
    text = text.strip()
    if not text.startswith(PREFIX):
        raise ConfigError(f"a join string begins with {PREFIX}", _REMEDY)
    if len(text) > LARGEST_JOIN_CHARACTERS:
        raise ConfigError(f"a join string of {len(text)} characters is too long", _REMEDY)
    content = _content(_body(text[len(PREFIX) :]))
    addresses, root, token = content.get("addresses"), content.get("root"), content.get("token")
    if not isinstance(addresses, list) or len(addresses) > MOST_ADDRESSES or not all(_is_address(each) for each in addresses):
        raise ConfigError("the join string's addresses are not readable", _REMEDY)
    if not isinstance(root, bytes) or len(root) != _KEY_BYTES:
        raise ConfigError("the join string's root key is not readable", _REMEDY)
    if not isinstance(token, bytes) or not 0 < len(token) <= LARGEST_TOKEN_BYTES:
        raise ConfigError("the join string's token is not readable", _REMEDY)
    return JoinString(tuple(addresses), Invitation(root, token))


def _body(encoded: str) -> bytes:
    try:
        # translate instead of urlsafe_b64decode: only the latter's relatives can be told to refuse foreign characters
        data = base64.b64decode(encoded.replace("-", "+").replace("_", "/") + "=" * (-len(encoded) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise ConfigError("the join string has a character or a length that none has", _REMEDY) from None
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    # the last character carries bits that base64 does not use: only one of up to sixteen that decode alike was printed
    if _checksum(body) != checksum or encoded != _to_text(data):
        raise ConfigError("the join string is incomplete or has a typing error", _REMEDY)
    return body


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _content(body: bytes) -> dict[str, Any]:
    try:
        content = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException):
        raise ConfigError("the join string is not readable", _REMEDY) from None
    if not isinstance(content, dict):
        raise ConfigError("the join string is not readable", _REMEDY)
    if content.get("version") != _VERSION:
        raise ConfigError("the join string is of another version", "install the ciuic-p2p that printed it")
    return content


def _is_address(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_ADDRESS


def _checksum(body: bytes) -> bytes:
    return bytes(blake3(body).digest(length=_CHECKSUM_BYTES))
