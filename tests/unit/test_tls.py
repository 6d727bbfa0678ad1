"""A TLS channel proves who is on the other side, with one cipher and no way around the certificate. No sockets."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from OpenSSL import SSL

from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.errors import RemoteError
from ciuic_p2p.net import tls
from ciuic_p2p.net.tls import TlsChannel, TlsCredentials

NOW = time.time()
DAY_S = 86400
ANNA, BERT = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


def shake(dialler: TlsChannel, dialled: TlsChannel) -> None:
    done = [False, False]
    while not all(done):
        for index, (one, other) in enumerate(((dialler, dialled), (dialled, dialler))):
            done[index] = done[index] or one.shake_hands()
            other.feed(one.take())


def make_pair() -> tuple[TlsChannel, TlsChannel]:
    pair = TlsCredentials(ANNA, NOW).channel(dialing=True), TlsCredentials(BERT, NOW).channel(dialing=False)
    shake(*pair)
    return pair


def channel_with(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> TlsChannel:
    return TlsChannel(tls._make_context(key, certificate), dialing=True)


def test_both_learn_who_the_other_is() -> None:
    dialler, dialled = make_pair()
    assert dialler.verify_peer(NOW) == peer_id_of(BERT.public_key())
    assert dialled.verify_peer(NOW) == peer_id_of(ANNA.public_key())


def test_the_strongest_that_this_openssl_has_is_agreed_on() -> None:
    dialler, dialled = make_pair()
    assert dialler.cipher == dialled.cipher == "TLS_AES_256_GCM_SHA384"
    assert dialler.group == dialled.group == "X25519MLKEM768"


def test_bytes_pass_and_both_export_the_same_secret() -> None:
    dialler, dialled = make_pair()
    said = bytes(range(256)) * 1000
    dialler.write(said)
    ciphertext = dialler.take()
    assert said[:32] not in ciphertext
    dialled.feed(ciphertext)
    assert dialled.read() == said
    assert dialled.read() == b""
    assert dialler.export(b"EXPERIMENTAL a", 32) == dialled.export(b"EXPERIMENTAL a", 32)
    assert dialler.export(b"EXPERIMENTAL a", 32) != dialler.export(b"EXPERIMENTAL b", 32)
    assert dialler.export(b"EXPERIMENTAL a", 32) != make_pair()[0].export(b"EXPERIMENTAL a", 32)


def test_a_changed_record_is_named() -> None:
    dialler, dialled = make_pair()
    dialler.write(b"hello")
    ciphertext = bytearray(dialler.take())
    ciphertext[-1] ^= 1
    dialled.feed(bytes(ciphertext))
    with pytest.raises(RemoteError, match="damaged TLS record"):
        dialled.read()


@pytest.mark.parametrize(
    ("offset_s", "valid"), [(-DAY_S + 60, True), (-2 * DAY_S, False), (9 * 365 * DAY_S, True), (11 * 365 * DAY_S, False)]
)
def test_the_certificate_is_dated_but_clocks_may_differ(offset_s: int, valid: bool) -> None:
    dialler, _ = make_pair()
    if valid:
        dialler.verify_peer(NOW + offset_s)
        return
    with pytest.raises(RemoteError, match="not valid at this time"):
        dialler.verify_peer(NOW + offset_s)


def other_key_signed(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Anna's true proof, but for another certificate key."""
    return tls._proof(tls._make_certificate(ANNA, ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)))


def wrong_identity(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Bert's public key with Anna's signature."""
    true = tls._proof(tls._make_certificate(ANNA, key, datetime.now(UTC)))
    return tls._DER_KEY + BERT.public_key().public_bytes_raw() + true[-66:]


@pytest.mark.parametrize("proof", [other_key_signed, wrong_identity, lambda key: b"", lambda key: b"\x30\x68" + b"\0" * 104])
def test_a_certificate_that_proves_nothing_is_refused(proof) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(x509.Name([])).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    extension = x509.UnrecognizedExtension(tls._EXTENSION, proof(key))
    certificate = builder.add_extension(extension, critical=False).sign(key, hashes.SHA256())
    check_refused(channel_with(certificate, key))
    check_refused(channel_with(builder.sign(key, hashes.SHA256()), key))


def check_refused(dialler: TlsChannel) -> None:
    dialled = TlsCredentials(BERT, NOW).channel(dialing=False)
    shake(dialler, dialled)
    with pytest.raises(RemoteError, match="does not prove"):
        dialled.verify_peer(NOW)


@pytest.mark.parametrize("change", ["no certificate", "old version", "other cipher"])
def test_a_weaker_handshake_fails(change: str) -> None:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_verify(SSL.VERIFY_NONE, lambda *_: True)
    if change != "no certificate":
        key = ec.generate_private_key(ec.SECP256R1())
        context.use_privatekey(key)
        context.use_certificate(tls._make_certificate(ANNA, key, datetime.now(UTC)))
    if change == "old version":
        context.set_max_proto_version(SSL.TLS1_2_VERSION)
    if change == "other cipher":
        context.set_tls13_ciphersuites(b"TLS_CHACHA20_POLY1305_SHA256")
    dialler = TlsChannel(context, dialing=True)
    with pytest.raises(RemoteError, match="handshake failed"):
        shake(dialler, TlsCredentials(BERT, NOW).channel(dialing=False))


def test_a_session_is_not_resumed() -> None:
    """A resumed one would not show the certificate again."""
    credentials, listening = TlsCredentials(ANNA, NOW), TlsCredentials(BERT, NOW)
    first = credentials.channel(dialing=True), listening.channel(dialing=False)
    shake(*first)
    first[0].read()  # takes in tickets, if there were any
    second = credentials.channel(dialing=True), listening.channel(dialing=False)
    second[0]._connection.set_session(first[0]._connection.get_session())
    shake(*second)
    first_bytes, second_bytes = (channel._connection.server_random() for channel in (first[0], second[0]))
    assert first_bytes != second_bytes
    assert second[1].verify_peer(NOW) == peer_id_of(ANNA.public_key())
    assert second[0].verify_peer(NOW) == peer_id_of(BERT.public_key())


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 70000])
def test_junk_fails(junk: bytes) -> None:
    dialled = TlsCredentials(BERT, NOW).channel(dialing=False)
    dialled.feed(junk)
    with pytest.raises(RemoteError, match="handshake failed"):
        dialled.shake_hands()
