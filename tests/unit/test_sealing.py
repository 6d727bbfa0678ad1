"""Frames survive sealing; whatever is changed, repeated or left out has its own name; no nonce is used twice under a key."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.frames import HEADER_BYTES
from ciuic_p2p.errors import FrameForged, FrameReplayed
from ciuic_p2p.net import sealing
from ciuic_p2p.net.lane_opening import OPENING_BYTES, LaneOpening, session_of, unpack_opening
from ciuic_p2p.net.sealing import HEAD_BYTES, FrameOpener, FrameSealer, lane_secrets
from ciuic_p2p.terms import PeerId

SECRET = b"s" * 32
HEADER = b"h" * HEADER_BYTES
PEER = PeerId("12D3KooWpeer")


def open_frame(opener: FrameOpener, sealed: bytes) -> tuple[bytes, bytes]:
    header = opener.open_header(sealed[:HEAD_BYTES])
    payload = b""
    if len(sealed) > HEAD_BYTES:
        length = len(sealed) - HEAD_BYTES - sealing.TAG_BYTES
        opener.payload_buffer(length)[:] = sealed[HEAD_BYTES:]
        payload = bytes(opener.open_payload(header, length))
    opener.advance()
    return header, payload


@given(st.lists(st.tuples(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.binary(max_size=5000)), max_size=12))
@settings(max_examples=50)
def test_frames_survive_across_changes_of_key(frames: list[tuple[bytes, bytes]]) -> None:
    sealer, opener = FrameSealer(SECRET, frames_per_key=3), FrameOpener(PEER, SECRET, frames_per_key=3)
    for header, payload in frames:
        sealed = bytes(sealer.seal(header, payload))
        assert open_frame(opener, sealed) == (header, payload)


@given(st.integers(0, HEAD_BYTES + 100 + 16 - 1), st.integers(1, 255))
@settings(max_examples=100)
def test_no_byte_can_be_changed(position: int, change: int) -> None:
    sealed = bytearray(FrameSealer(SECRET).seal(HEADER, b"p" * 100))
    sealed[position] ^= change
    with pytest.raises((FrameForged, FrameReplayed)) as caught:
        open_frame(FrameOpener(PEER, SECRET), bytes(sealed))
    assert caught.value.peer == PEER
    assert isinstance(caught.value, FrameReplayed) == (position < 8)


def test_frames_are_taken_in_order_and_once() -> None:
    sealer, opener = FrameSealer(SECRET), FrameOpener(PEER, SECRET)
    first, second, third = (bytes(sealer.seal(HEADER, b"%d" % number)) for number in range(3))
    open_frame(opener, first)
    with pytest.raises(FrameReplayed, match="came again"):
        open_frame(opener, first)
    with pytest.raises(FrameReplayed, match="frames 1 to 1 of a lane are missing"):
        open_frame(opener, third)
    assert open_frame(opener, second)[1] == b"1"


def test_a_payload_belongs_to_its_header_and_its_place() -> None:
    sealer = FrameSealer(SECRET)
    first, second = bytes(sealer.seal(HEADER, b"one")), bytes(sealer.seal(b"g" * HEADER_BYTES, b"two"))
    with pytest.raises(FrameForged):
        open_frame(FrameOpener(PEER, SECRET), first[:HEAD_BYTES] + second[HEAD_BYTES:])


def test_keys_differ_by_session_lane_salt_and_direction() -> None:
    secrets = [
        *lane_secrets(b"a" * 32, 0, b"salt"),
        *lane_secrets(b"a" * 32, 1, b"salt"),
        *lane_secrets(b"a" * 32, 0, b"tlas"),
        *lane_secrets(b"b" * 32, 0, b"salt"),
    ]
    assert len(set(secrets)) == len(secrets)
    with pytest.raises(FrameForged):
        open_frame(FrameOpener(PEER, secrets[1]), bytes(FrameSealer(secrets[0]).seal(HEADER)))


def test_no_nonce_is_used_twice_under_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[bytes, bytes]] = []

    class WatchedCipher:
        def __init__(self, key: bytes) -> None:
            self._key, self._cipher = key, AESGCM(key)

        def encrypt_into(self, nonce: bytes, data: object, header: bytes, out: object) -> None:
            used.append((self._key, nonce))
            self._cipher.encrypt_into(nonce, data, header, out)

    monkeypatch.setattr(sealing, "AESGCM", WatchedCipher)
    sealer = FrameSealer(SECRET, frames_per_key=4)
    for _ in range(20):
        sealer.seal(HEADER, b"payload")
    assert len(used) == len(set(used)) == 40
    assert len({key for key, _ in used}) == 5


@given(st.integers(0, OPENING_BYTES - 1), st.integers(1, 255))
@settings(max_examples=50)
def test_an_opening_cannot_be_changed(position: int, change: int) -> None:
    opening = LaneOpening(b"i" * 16, 7, b"s" * 16)
    packed = opening.pack(b"key")
    assert unpack_opening(packed, b"key") == opening
    assert session_of(packed) == b"i" * 16
    changed = bytearray(packed)
    changed[position] ^= change
    assert unpack_opening(bytes(changed), b"key") is None
    assert unpack_opening(packed, b"other") is None
    assert unpack_opening(packed[:-1], b"key") is None
