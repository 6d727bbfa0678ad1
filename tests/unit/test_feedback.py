"""Error feedback: nothing that a codec drops is lost."""

from __future__ import annotations

import numpy as np
import pytest

from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.tensors.codecs.base import Codec
from ciuic_p2p.tensors.codecs.registry import all_codecs, codec_by_name
from ciuic_p2p.tensors.feedback import Feedback
from ciuic_p2p.tensors.tiles import TILE_VALUES

COUNT = TILE_VALUES + 333
ONE_BIT = codec_by_name("onebit")

every_codec = pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: codec.name)


def normal(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def send(feedback: Feedback, codec: Codec, delta: np.ndarray, start: int = 0) -> bytes:
    out = np.empty(codec.encoded_bytes(len(delta)), np.uint8)
    feedback.encode_into(codec, delta, start, out)
    return out.tobytes()


@every_codec
def test_first_round_sends_the_plain_encoding_and_keeps_the_rest(codec: Codec) -> None:
    feedback, delta = Feedback(COUNT), normal(COUNT, 1)
    payload = send(feedback, codec, delta)
    assert payload == codec.encode(delta)
    assert (feedback.residual == delta - codec.decode(payload, COUNT)).all()


@every_codec
def test_what_was_sent_and_what_is_left_add_up_to_all_that_was_given(codec: Codec) -> None:
    feedback, given, sent = Feedback(COUNT), np.zeros(COUNT), np.zeros(COUNT)
    for epoch in range(6):
        delta = normal(COUNT, epoch)
        sent += codec.decode(send(feedback, codec, delta), COUNT)
        given += delta
    np.testing.assert_allclose(sent + feedback.residual, given, rtol=0, atol=1e-4)


def test_constant_gradient_gets_through_one_bit_on_average() -> None:
    # Twice a block's mean magnitude is as much as a bit can carry in the long run.
    feedback, delta, sent = Feedback(640), np.clip(normal(640, 3), -1.2, 1.2), np.zeros(640)
    for _ in range(400):
        sent += ONE_BIT.decode(send(feedback, ONE_BIT, delta), 640)
    np.testing.assert_allclose(sent / 400, delta, rtol=0, atol=0.05)


def test_parts_have_residuals_of_their_own() -> None:
    feedback = Feedback(COUNT)
    send(feedback, ONE_BIT, normal(100, 1), start=50)
    assert not feedback.residual[:50].any()
    assert feedback.residual[50:150].any()
    assert not feedback.residual[150:].any()


def test_contribution_that_missed_its_round_is_taken_back() -> None:
    feedback, delta = Feedback(COUNT), normal(COUNT, 1)
    payload = np.frombuffer(send(feedback, ONE_BIT, delta), np.uint8)
    feedback.take_back(ONE_BIT, payload, 0, COUNT)
    np.testing.assert_allclose(feedback.residual, delta, rtol=0, atol=1e-6)


def test_malformed_payload_is_not_taken_back() -> None:
    feedback = Feedback(COUNT)
    with pytest.raises(MalformedPayload):
        feedback.take_back(ONE_BIT, np.full(ONE_BIT.encoded_bytes(COUNT), 0xFF, np.uint8), 0, COUNT)
    assert not feedback.residual.any()


@every_codec
def test_delta_that_is_not_finite_is_refused_and_leaves_no_residual(codec: Codec) -> None:
    feedback, delta = Feedback(COUNT), normal(COUNT, 1)
    send(feedback, codec, delta)
    delta[-1] = np.inf
    with pytest.raises(MalformedPayload):
        send(feedback, codec, delta)
    assert not feedback.residual.any()


def test_missed_rounds_decay_the_residual() -> None:
    feedback = Feedback(COUNT)
    feedback.residual[:] = normal(COUNT, 1)
    feedback.decay(0.5, missed_rounds=2)
    assert (feedback.residual == normal(COUNT, 1) * np.float32(0.25)).all()


def test_cap_shortens_only_what_is_too_long() -> None:
    feedback = Feedback(COUNT)
    feedback.residual[:] = normal(COUNT, 1)
    norm = float(np.linalg.norm(np.float64(normal(COUNT, 1))))
    assert feedback.norm() == pytest.approx(norm, rel=1e-5)
    feedback.cap(median_norm=norm / 3)
    assert (feedback.residual == normal(COUNT, 1)).all()
    feedback.cap(median_norm=norm / 40)
    assert feedback.norm() == pytest.approx(norm / 10, rel=1e-5)
    feedback.cap(median_norm=0.0)
    assert feedback.norm() == 0.0


def test_zero_forgets() -> None:
    feedback = Feedback(COUNT)
    feedback.residual[:] = 1
    feedback.zero()
    assert not feedback.residual.any()


@pytest.mark.parametrize(("start", "count"), [(-1, 10), (COUNT - 5, 10)])
def test_parts_outside_are_refused(start: int, count: int) -> None:
    with pytest.raises(ValueError, match="residual"):
        send(Feedback(COUNT), ONE_BIT, normal(count, 1), start)
