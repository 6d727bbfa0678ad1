"""Multiaddrs as text, checked, and their bytes as libp2p writes them. Opens nothing.

hivemind's own encoder writes /p2p/ as a CID, which the libp2p child process cannot read inside a relayed address.
"""

from __future__ import annotations

from dataclasses import dataclass

from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr

from ciuic_p2p.core.peerids import public_key_of
from ciuic_p2p.errors import ConfigError, MalformedMessage
from ciuic_p2p.terms import PeerId

_CODE_P2P = b"\xa5\x03"
_CODE_CIRCUIT = b"\xa2\x02"
"""Varints of 421 and 290, https://github.com/multiformats/multiaddr/blob/master/protocols.csv"""


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a certain peer can be reached: `address` without the last /p2p/."""

    peer: PeerId
    address: str

    def __str__(self) -> str:
        return f"{self.address}/p2p/{self.peer}"

    @classmethod
    def parse(cls, text: str) -> PeerAddress:
        """Raises ConfigError when it is no multiaddr that ends in the peer id."""
        address, separator, peer = text.rpartition("/p2p/")
        if not separator or not is_multiaddr(address):
            raise ConfigError(f"{text!r} is not an address to join", "it looks like /ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…")
        try:
            public_key_of(PeerId(peer))
        except MalformedMessage as error:
            raise ConfigError(f"{text!r} is not an address to join: {error.what}") from None
        return cls(PeerId(peer), address)


@dataclass(frozen=True, slots=True)
class EncodedMultiaddr:
    """What hivemind's client asks of a Multiaddr when it sends one to the child process."""

    text: str

    def to_bytes(self) -> bytes:
        return encode_multiaddr(self.text)


def is_multiaddr(text: str) -> bool:
    """Whether it encodes; a relayed address may have /p2p/ inside."""
    try:
        return bool(encode_multiaddr(text))
    except ValueError:
        return False


def encode_multiaddr(text: str) -> bytes:
    """Raises ValueError when it is none."""
    if not text.startswith("/"):
        raise ValueError(f"{text!r} does not begin with a slash")
    encoded = bytearray()
    parts = iter(text[1:].split("/"))
    for name in parts:
        match name:
            case "p2p":
                encoded += _CODE_P2P + _encode_peer(next(parts, ""))
            case "p2p-circuit":
                encoded += _CODE_CIRCUIT
            case "quic" | "quic-v1" | "ws" | "wss" | "tls":
                encoded += Multiaddr(f"/{name}").to_bytes()
            case _:
                encoded += Multiaddr(f"/{name}/{next(parts, '')}").to_bytes()
    return bytes(encoded)


def _encode_peer(text: str) -> bytes:
    try:
        public_key_of(PeerId(text))
    except MalformedMessage as error:
        raise ValueError(error.what) from None
    raw: bytes = PeerID.from_base58(text).to_bytes()
    return bytes([len(raw)]) + raw
