"""TLS 1.3 between two libp2p identities, without I/O: ciphertext in, ciphertext out.

Refuses to know sockets, tokens and messages.

The certificate is libp2p's (https://github.com/libp2p/specs/blob/master/tls/tls.md): self-signed by a key of this
process, with an extension in which the peer's identity signs that key. So the handshake itself proves who is on the other
side.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from OpenSSL import SSL

from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.errors import ConfigError, RemoteError
from ciuic_p2p.terms import PeerId

CIPHER = b"TLS_AES_256_GCM_SHA384"
GROUPS = (b"X25519MLKEM768:X25519", b"X25519")
"""Hybrid post-quantum first; the second line is for an OpenSSL older than 3.5."""

_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_SIGNED = b"libp2p-tls-handshake:"
_DER_KEY = b"\x30\x68\x04\x24\x08\x01\x12\x20"
"""SEQUENCE of 104 bytes {OCTET STRING of 36 bytes: protobuf PublicKey {Ed25519, 32 bytes} ..."""
_DER_SIGNATURE = b"\x04\x40"
"""... OCTET STRING of 64 bytes}. An Ed25519 identity leaves no other encoding, so nothing has to be parsed."""
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
_BACKDATED = timedelta(days=1)
_VALIDITY = timedelta(days=3650)
_SKEW = timedelta(minutes=10)
_READ_BYTES = 65536


class TlsCredentials:
    """This process's certificate; makes the channels of all its connections."""

    def __init__(self, identity: Ed25519PrivateKey, now: float) -> None:
        """now: seconds since 1970; the certificate is good for ten years from then."""
        self.peer = peer_id_of(identity.public_key())
        key = ec.generate_private_key(ec.SECP256R1())
        self._context = _make_context(key, _make_certificate(identity, key, datetime.fromtimestamp(now, UTC)))

    def channel(self, *, dialing: bool) -> TlsChannel:
        return TlsChannel(self._context, dialing=dialing)


class TlsChannel:
    """One connection. The owner moves ciphertext: `feed` what came, then send what `take` gives, after every call."""

    def __init__(self, context: SSL.Context, *, dialing: bool) -> None:
        self._connection = SSL.Connection(context, None)
        self._peer: PeerId | None = None
        if dialing:
            self._connection.set_connect_state()
        else:
            self._connection.set_accept_state()

    def feed(self, ciphertext: bytes) -> None:
        if ciphertext:
            self._connection.bio_write(ciphertext)

    def take(self) -> bytes:
        pieces = []
        while True:
            try:
                pieces.append(self._connection.bio_read(_READ_BYTES))
            except SSL.WantReadError:
                return b"".join(pieces)

    def shake_hands(self) -> bool:
        """One step; True when done. Raises RemoteError."""
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            raise RemoteError(self._peer, f"the TLS handshake failed ({_reason(error)})") from error
        return True

    def verify_peer(self, now: float) -> PeerId:
        """After the handshake: who is there. Raises RemoteError when the certificate does not prove an identity."""
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        chain = self._connection.get_peer_cert_chain(as_cryptography=True) or []
        if certificate is None or len(chain) > 1:
            raise RemoteError(None, "showed no certificate, or several")
        self._peer = _verify_certificate(certificate, datetime.fromtimestamp(now, UTC))
        return self._peer

    def write(self, plaintext: bytes) -> None:
        view = memoryview(plaintext)
        while view:
            view = view[self._connection.send(view) :]

    def read(self) -> bytes:
        """All plaintext there is now. Raises RemoteError when a record is damaged."""
        pieces = []
        while True:
            try:
                pieces.append(self._connection.recv(_READ_BYTES))
            except (SSL.WantReadError, SSL.ZeroReturnError):
                return b"".join(pieces)
            except SSL.Error as error:
                raise RemoteError(self._peer, f"sent a damaged TLS record ({_reason(error)})") from error

    def export(self, label: bytes, size_bytes: int) -> bytes:
        """Secret bytes that only the two ends of this connection know (RFC 8446 section 7.5)."""
        return bytes(self._connection.export_keying_material(label, size_bytes))

    @property
    def cipher(self) -> str:
        return str(self._connection.get_cipher_name())

    @property
    def group(self) -> str:
        """The key exchange that was agreed on."""
        return str(self._connection.get_group_name())


def _make_certificate(identity: Ed25519PrivateKey, key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    signature = identity.sign(_SIGNED + _spki(key.public_key()))
    proof = _DER_KEY + identity.public_key().public_bytes_raw() + _DER_SIGNATURE + signature
    nobody = x509.Name([])
    return (
        x509.CertificateBuilder()
        .subject_name(nobody)
        .issuer_name(nobody)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.UnrecognizedExtension(_EXTENSION, proof), critical=False)
        .sign(key, hashes.SHA256())
    )


def _make_context(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> SSL.Context:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(CIPHER)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)  # a resumed session would skip the look at the certificate
    # There is no authority to ask: OpenSSL only has to insist on a certificate, verify_peer looks at everything in it.
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *_: True)
    context.use_privatekey(key)
    context.use_certificate(certificate)
    _set_groups(context)
    return context


def _set_groups(context: SSL.Context) -> None:
    library = Binding().lib
    for groups in GROUPS:
        # pyOpenSSL has no method for several groups; the call below is what its set_tmp_ecdh would make for one
        if library.SSL_CTX_set1_curves_list(context._context, groups) == 1:
            return
    raise ConfigError("this OpenSSL has no X25519", "install the cryptography package from its wheels")


def _verify_certificate(certificate: x509.Certificate, now: datetime) -> PeerId:
    """OpenSSL's own verdict was overridden, so every condition of the specification is checked here."""
    if not certificate.not_valid_before_utc - _SKEW <= now <= certificate.not_valid_after_utc + _SKEW:
        raise RemoteError(None, "its certificate is not valid at this time; check the clocks of both machines")
    try:
        certificate.verify_directly_issued_by(certificate)
        proof = _proof(certificate)
        identity = Ed25519PublicKey.from_public_bytes(proof[len(_DER_KEY) :][:_KEY_BYTES])
        identity.verify(proof[-_SIGNATURE_BYTES:], _SIGNED + _spki(certificate.public_key()))
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise RemoteError(None, "its certificate does not prove a peer id") from error
    return peer_id_of(identity)


def _proof(certificate: x509.Certificate) -> bytes:
    """Raises ValueError when it is not an Ed25519 identity's, ExtensionNotFound without one."""
    if any(extension.critical and extension.oid != _EXTENSION for extension in certificate.extensions):
        raise ValueError("an unknown critical extension")
    extension = certificate.extensions.get_extension_for_oid(_EXTENSION).value
    if not isinstance(extension, x509.UnrecognizedExtension):
        raise ValueError("the extension was taken for another")
    proof = extension.value
    size = len(_DER_KEY) + _KEY_BYTES + len(_DER_SIGNATURE) + _SIGNATURE_BYTES
    separator = proof[len(_DER_KEY) + _KEY_BYTES :][: len(_DER_SIGNATURE)]
    if len(proof) != size or not proof.startswith(_DER_KEY) or separator != _DER_SIGNATURE:
        raise ValueError("not the encoding of an Ed25519 identity's proof")
    return proof


def _spki(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey | Ed25519PublicKey):
        raise ValueError("a certificate key that is neither ECDSA nor Ed25519")
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _reason(error: SSL.Error) -> str:
    """OpenSSL's words for the last error; pyOpenSSL gives a list of (library, function, reason)."""
    if error.args and isinstance(error.args[0], list) and error.args[0]:
        return str(error.args[0][-1][-1])
    return "connection closed"
