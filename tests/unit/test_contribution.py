"""What a peer sends of its own: base minus local values, part by part, and what the codec lost is kept."""

from __future__ import annotations

import numpy as np
import pytest

from ciuic_p2p.core.parts import Part
from ciuic_p2p.daemon.contribution import LARGEST_VALUE, Contribution
from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.tensors.codecs.base import Codec, Float32
from ciuic_p2p.tensors.codecs.registry import all_codecs, codec_by_name
from ciuic_p2p.tensors.feedback import Feedback
from ciuic_p2p.tensors.tiles import TILE_VALUES
from ciuic_p2p.terms import PeerId

COUNT = 2 * TILE_VALUES + 500
PARTS = tuple(Part(start, min(start + 50_000, COUNT), PeerId("me"), lossless=False) for start in range(0, COUNT, 50_000))

every_codec = pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: codec.name)
codecs_with_feedback = pytest.mark.parametrize(
    "codec", [codec for codec in all_codecs() if codec.wants_feedback], ids=lambda codec: codec.name
)


def normal(seed: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(COUNT, dtype=np.float32)


def make(base: Float32 | None = None, local: Float32 | None = None, feedback: Feedback | None = None) -> Contribution:
    def asked_for_feedback() -> Feedback:
        assert feedback is not None, "a codec that needs none asked for feedback"
        return feedback

    return Contribution(normal(1) if base is None else base, normal(2) if local is None else local, asked_for_feedback)


def payloads(contribution: Contribution, codec: Codec) -> list[bytes]:
    made = []
    for number, part in enumerate(PARTS):
        payload = contribution.payload(number, part, codec)
        assert payload is not None
        made.append(bytes(payload))
    return made


@every_codec
def test_a_payload_is_the_encoded_difference(codec: Codec) -> None:
    contribution = make(feedback=Feedback(COUNT) if codec.wants_feedback else None)
    delta = normal(1) - normal(2)
    assert payloads(contribution, codec) == [codec.encode(delta[part.start : part.stop]) for part in PARTS]


@every_codec
def test_asked_for_twice_a_part_is_the_same_bytes(codec: Codec) -> None:
    feedback = Feedback(COUNT)
    contribution = make(feedback=feedback)
    first, kept = payloads(contribution, codec), feedback.residual.copy()
    assert payloads(contribution, codec) == first
    assert feedback.residual.tobytes() == kept.tobytes()


@every_codec
def test_after_the_end_nobody_gets_anything_and_nothing_is_kept(codec: Codec) -> None:
    feedback = Feedback(COUNT)
    contribution = make(feedback=feedback)
    contribution.payload(0, PARTS[0], codec)
    kept = feedback.residual.copy()
    contribution.end()
    assert [contribution.payload(number, part, codec) for number, part in enumerate(PARTS)] == [None] * len(PARTS)
    assert feedback.residual.tobytes() == kept.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38, -1e38])
@pytest.mark.parametrize("at", [0, TILE_VALUES, COUNT - 1])
def test_what_is_not_finite_is_found_wherever_it_is(bad: float, at: int) -> None:
    local = normal(2)
    assert make(local=local).is_finite()
    local[at] = bad
    assert not make(local=local).is_finite()


def test_the_largest_values_make_finite_differences() -> None:
    largest = np.full(COUNT, np.nextafter(LARGEST_VALUE, np.float32(0)), np.float32)
    contribution = make(base=-largest, local=largest)
    assert contribution.is_finite()
    assert np.isfinite(contribution.values(PARTS[0])).all()
    largest[5] = LARGEST_VALUE
    assert not make(base=-largest, local=largest).is_finite()


@pytest.mark.parametrize("codec", [codec for codec in all_codecs() if not codec.is_plain], ids=lambda codec: codec.name)
def test_values_that_no_codec_carries_are_refused(codec: Codec) -> None:
    local = normal(2)
    local[3] = np.nan
    with pytest.raises(MalformedPayload):
        make(local=local, feedback=Feedback(COUNT)).payload(0, PARTS[0], codec)


@codecs_with_feedback
def test_what_a_codec_lost_is_kept_for_the_next_round(codec: Codec) -> None:
    # Given a round whose result holds the contribution,
    feedback, delta = Feedback(COUNT), normal(1) - normal(2)
    contribution = make(feedback=feedback)
    sent = payloads(contribution, codec)
    for part, payload in zip(PARTS, sent, strict=True):
        span = slice(part.start, part.stop)
        assert feedback.residual[span].tobytes() == (delta[span] - codec.decode(payload, part.count)).tobytes()
    contribution.end()
    contribution.forget()
    kept = feedback.residual.copy()
    contribution.take_back()
    assert feedback.residual.tobytes() == kept.tobytes(), "what was forgotten is not taken back"
    # when the next one begins, then it sends what was left as well.
    following = payloads(make(feedback=feedback), codec)
    assert following == [codec.encode(kept[part.start : part.stop] + delta[part.start : part.stop]) for part in PARTS]


@codecs_with_feedback
def test_what_no_result_holds_is_taken_back_and_nothing_else(codec: Codec) -> None:
    # Given some parts that were sent
    feedback, delta = Feedback(COUNT), normal(1) - normal(2)
    contribution = make(feedback=feedback)
    sent = {0: contribution.payload(0, PARTS[0], codec), 2: contribution.payload(2, PARTS[2], codec)}
    kept = feedback.residual.copy()
    # when the round fails, then exactly what they carried is there for a later one,
    contribution.end()
    contribution.take_back()
    for number, part in enumerate(PARTS):
        payload, span = sent.get(number), slice(part.start, part.stop)
        if payload is None:
            assert not feedback.residual[span].any()
        else:
            back = kept[span] + codec.decode(payload, part.count)
            assert feedback.residual[span].tobytes() == back.tobytes()
            np.testing.assert_allclose(feedback.residual[span], delta[span], rtol=0, atol=1e-5)
    # once.
    taken = feedback.residual.copy()
    contribution.take_back()
    assert feedback.residual.tobytes() == taken.tobytes()


def test_parts_are_written_over_each_other_in_one_threads_room() -> None:
    contribution = make()
    first = contribution.values(PARTS[1])
    assert np.array_equal(first, (normal(1) - normal(2))[PARTS[1].start : PARTS[1].stop])
    assert np.shares_memory(first, contribution.values(PARTS[0]))


def test_a_plain_payload_is_the_values_own_bytes() -> None:
    payload = make().payload(0, PARTS[0], codec_by_name("float32"))
    assert payload is not None
    assert np.array_equal(np.frombuffer(payload, "<f4"), (normal(1) - normal(2))[: PARTS[0].stop])
