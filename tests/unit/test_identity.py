"""The key file: private, whole, in libp2p's format; and signatures that need nothing but the peer id to check."""

from __future__ import annotations

import pytest

from ciuic_p2p.core.peerids import public_key_of
from ciuic_p2p.core.signing import verify
from ciuic_p2p.errors import HomeUnusable
from ciuic_p2p.net.home import Home
from ciuic_p2p.net.identity import IDENTITY_FILE, Identity


@pytest.fixture
def home(tmp_path):
    with Home.open(tmp_path) as home:
        yield home


def test_an_identity_is_made_once_and_read_again(home):
    first = Identity.of_home(home)
    assert first.file.stat().st_mode & 0o777 == 0o600
    assert Identity.of_home(home).peer_id == first.peer_id
    assert first.peer_id.startswith("12D3KooW")


def test_a_published_key_has_its_published_peer_id(tmp_path):
    # https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md#test-vectors, the Ed25519 private key
    file = tmp_path / "key"
    file.write_bytes(
        bytes.fromhex(
            "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
            "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
        )
    )
    file.chmod(0o600)
    public = public_key_of(Identity.read(file).peer_id).public_bytes_raw()
    assert public.hex() == "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(home, mode):
    file = Identity.of_home(home).file
    file.chmod(mode)
    with pytest.raises(HomeUnusable, match=r"others may read the identity .*; run `chmod 600 "):
        Identity.of_home(home)


def damages():
    yield "empty", lambda data: b""
    yield "short", lambda data: data[:-1]
    yield "long", lambda data: data + b"x"
    yield "another type", lambda data: b"\x08\x00" + data[2:]
    yield "seed and public key differ", lambda data: data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("damage", [pytest.param(change, id=name) for name, change in damages()])
def test_a_damaged_key_is_refused(home, damage):
    file = Identity.of_home(home).file
    home.write(IDENTITY_FILE, damage(file.read_bytes()))
    with pytest.raises(HomeUnusable, match=r"the identity .* is damaged; restore it from a backup"):
        Identity.of_home(home)


def test_a_key_that_is_no_file_is_refused(home):
    home.file(IDENTITY_FILE).mkdir()
    with pytest.raises(HomeUnusable, match="is not a file"):
        Identity.of_home(home)


def test_the_key_is_never_shown(home):
    identity = Identity.of_home(home)
    assert repr(identity) == f"Identity({identity.peer_id})"


def test_a_signature_fits_its_message_and_its_peer_only(home, tmp_path):
    identity = Identity.of_home(home)
    with Home.open(tmp_path / "other") as second:
        other = Identity.of_home(second)
    signature = identity.sign(b"message")
    assert verify(identity.peer_id, b"message", signature)
    assert not verify(identity.peer_id, b"massage", signature)
    assert not verify(other.peer_id, b"message", signature)
    assert not verify(identity.peer_id, b"message", signature[:-1])
    assert not verify("nonsense", b"message", signature)
