"""Peer ids: an Ed25519 public key as libp2p names it. Knows no files and no sockets."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])
"""Multihash "identity", 36 bytes; protobuf PublicKey {type: Ed25519, data: 32 bytes}.
https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md"""
_KEY_BYTES = 32
_LONGEST = 60
"""Characters; a real one has 52. Bounds the quadratic base58 arithmetic."""


def peer_id_of(public_key: Ed25519PublicKey) -> PeerId:
    return PeerId(_base58(_PREFIX + public_key.public_bytes_raw()))


def public_key_of(peer_id: PeerId) -> Ed25519PublicKey:
    """Raises MalformedMessage when this is not the one spelling of an Ed25519 key's peer id."""
    number = 0
    if not 0 < len(peer_id) <= _LONGEST:
        raise MalformedMessage(None, f"a peer id of {len(peer_id)} characters")
    for character in peer_id:
        digit = _ALPHABET.find(character)
        if digit < 0:
            raise MalformedMessage(None, f"a peer id with the character {character!r}")
        number = number * 58 + digit
    size = len(_PREFIX) + _KEY_BYTES
    if number >> (8 * size):
        raise MalformedMessage(None, "a peer id that is not of an Ed25519 key")
    data = number.to_bytes(size, "big")
    if not data.startswith(_PREFIX) or _base58(data) != peer_id:
        raise MalformedMessage(None, "a peer id that is not of an Ed25519 key")
    return Ed25519PublicKey.from_public_bytes(data[len(_PREFIX) :])


def _base58(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = _ALPHABET[digit] + digits
    leading_zeros = len(data) - len(data.lstrip(b"\0"))
    return _ALPHABET[0] * leading_zeros + digits
