"""Signatures of peers: checked against nothing but the peer id, which is the public key itself. Holds no private key."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature

from ciuic_p2p.core.peerids import public_key_of
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId

SIGNATURE_BYTES = 64


def verify(peer_id: PeerId, message: bytes, signature: bytes) -> bool:
    """Whether the holder of `peer_id`'s key signed exactly `message` (Ed25519, RFC 8032); no for a malformed peer id."""
    try:
        public_key_of(peer_id).verify(signature, message)
    except (InvalidSignature, MalformedMessage):
        return False
    return True
