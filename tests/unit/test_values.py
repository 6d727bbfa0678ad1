"""One round's values on two peers: sums of owned parts, results that are the same bits everywhere."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable

import numpy as np
import pytest

from ciuic_p2p.core.messages import RING, Plan, Span
from ciuic_p2p.daemon.buffers import Buffers
from ciuic_p2p.daemon.contribution import Contribution
from ciuic_p2p.daemon.values import LOSSLESS, RoundValues
from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.tensors.codecs.base import Codec, Float32
from ciuic_p2p.tensors.codecs.registry import all_codecs, codec_by_name, reply_codec
from ciuic_p2p.tensors.feedback import Feedback
from ciuic_p2p.terms import PeerId, StateHash

ONE, OTHER = PeerId("one"), PeerId("other")
SAMPLES = {ONE: 3, OTHER: 5}
TERM = 1
PARAMETERS, COUNT = 20_500, 21_000
PLAN = Plan(
    run="run",
    epoch=3,
    term=1,
    base_hash=StateHash("0" * 64),
    contributors=(ONE, OTHER),
    listeners=(),
    spans=(Span(owner=ONE, start=0, stop=9000), Span(owner=OTHER, start=9000, stop=COUNT)),
    count=COUNT,
    parameter_count=PARAMETERS,
    part_values=4096,
    codec="int8",
    lossless_level=0,
    reason="",
    outer_learning_rate=0.7,
    outer_momentum=0.6,
    predicted_s=0.1,
    patience_s=3.0,
)

every_codec = pytest.mark.parametrize("codec", all_codecs(), ids=lambda codec: codec.name)


def block_peaks(values: Float32, block: int) -> Float32:
    """For each value the largest magnitude in its block."""
    padded = np.pad(np.abs(values), (0, -len(values) % block)).reshape(-1, block)
    return np.repeat(padded.max(axis=1), block)[: len(values)]


# What each codec may be off by, for values of ordinary size.
BOUNDS: dict[str, Callable[[Float32], Float32]] = {
    "float32": np.zeros_like,
    "float16": lambda values: np.abs(values) * 2.0**-11 + 2.0**-25,
    "bfloat16": lambda values: np.abs(values) * 2.0**-8,
    "int8": lambda values: block_peaks(values, 256) / 254,
    "int4": lambda values: block_peaks(values, 256) / 14,
    "onebit": lambda values: block_peaks(values, 64) * 1.01,
    "topk": lambda values: block_peaks(values, 4096),
}


def normal(seed: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(COUNT, dtype=np.float32)


BASE = normal(0)
LOCAL = {ONE: normal(1), OTHER: normal(2)}


def deltas() -> dict[PeerId, Float32]:
    return {peer: BASE - local for peer, local in LOCAL.items()}


def make_values(codec: Codec, lossless_level: int = 0) -> dict[PeerId, RoundValues]:
    plan = dataclasses.replace(PLAN, codec=codec.name, lossless_level=lossless_level)
    made = {}
    for peer, local in LOCAL.items():
        feedback = Feedback(COUNT)
        made[peer] = RoundValues(plan, Buffers())
        made[peer].contribution = Contribution(BASE, local, lambda feedback=feedback: feedback)
    return made


def run_round(values: dict[PeerId, RoundValues]) -> None:
    """As the peers do it: contributions to the owners, means from them."""
    for number, part in enumerate(values[ONE].parts):
        (other,) = {ONE, OTHER} - {part.owner}
        owner, sender = values[part.owner], values[other]
        owner.add_own(number, SAMPLES[part.owner], TERM)
        payload = sender.contribution_payload(number)
        assert payload is not None
        packed = owner.packing.is_wanted
        owner.add(number, memoryview(bytes(payload)), sender.codec_of(number).code, SAMPLES[other], TERM, packed=packed)
        owner.publish(number, TERM)
        code, result = owner.result_payload(number)
        sender.store_result(number, memoryview(bytes(result)), code, owner.weight_of(number), packed=packed)


@every_codec
def test_a_round_gives_both_the_same_bits(codec: Codec) -> None:
    values = make_values(codec)
    run_round(values)
    assert values[ONE].results.tobytes() == values[OTHER].results.tobytes()
    assert values[ONE].counted_samples() == values[OTHER].counted_samples() == 8


@every_codec
def test_packing_changes_no_bit(codec: Codec) -> None:
    plain, packed = make_values(codec), make_values(codec, lossless_level=3)
    run_round(plain)
    run_round(packed)
    for peer in (ONE, OTHER):
        assert packed[peer].results.tobytes() == plain[peer].results.tobytes()


@every_codec
def test_the_results_are_the_weighted_mean_within_what_the_codecs_lose(codec: Codec) -> None:
    values = make_values(codec)
    run_round(values)
    weights = np.float64(list(SAMPLES.values()))
    for number, part in enumerate(values[ONE].parts):
        one, other = (delta[part.start : part.stop] for delta in deltas().values())
        used = values[ONE].codec_of(number)
        assert used is (LOSSLESS if part.start >= PARAMETERS else codec)
        exact = np.average(np.float64([one, other]), axis=0, weights=weights)
        lost = np.average(np.float64([BOUNDS[used.name](one), BOUNDS[used.name](other)]), axis=0, weights=weights)
        decoded = [used.decode(used.encode(delta), part.count) for delta in (one, other)]
        mean = np.average(np.float64(decoded), axis=0, weights=weights)
        lost_on_the_way_back = BOUNDS[reply_codec(used).name](np.float32(mean))
        got = values[ONE].results[part.start : part.stop]
        assert (np.abs(got - mean) <= lost_on_the_way_back * 1.0001 + 1e-5).all()
        assert (np.abs(got - exact) <= lost + lost_on_the_way_back * 1.0001 + 1e-5).all()


@every_codec
def test_a_result_asked_for_twice_is_the_same_bytes(codec: Codec) -> None:
    values = make_values(codec)
    run_round(values)
    owner = values[ONE]
    for number, part in enumerate(owner.parts):
        if part.owner == ONE:
            code, first = owner.result_payload(number)
            assert owner.result_payload(number) == (code, first)
            decoded = reply_codec(owner.codec_of(number)).decode(first, part.count)
            assert decoded.tobytes() == owner.results[part.start : part.stop].tobytes()


@every_codec
def test_nobodys_contribution_gives_zeros(codec: Codec) -> None:
    # Given memory that is not empty, as what comes back from another round is not,
    buffers = Buffers()
    used = RoundValues(PLAN, buffers)
    used.results[:] = np.nan
    del used
    gc.collect()
    owner = RoundValues(dataclasses.replace(PLAN, codec=codec.name), buffers)
    receiver = RoundValues(dataclasses.replace(PLAN, codec=codec.name), Buffers())
    assert np.isnan(owner.results).all()
    # when the results of parts that nobody sent are published, then they are zeros of no weight.
    for number in range(len(owner.parts)):
        owner.publish(number, TERM)
        code, payload = owner.result_payload(number)
        receiver.store_result(number, payload, code, owner.weight_of(number), packed=False)
        assert owner.weight_of(number) == 0
    assert not owner.results.any()
    assert not receiver.results.any()
    assert owner.counted_samples() == receiver.counted_samples() == 0


def test_a_part_that_one_contribution_missed_lowers_what_is_counted() -> None:
    values = make_values(codec_by_name("int8"))[ONE]
    assert values.counted_samples() == 0
    for number in range(len(values.parts)):
        values.add_own(number, 3, TERM)
    values.add(1, memoryview(LOSSLESS.encode(np.ones(values.parts[1].count, np.float32))), LOSSLESS.code, 5, TERM, packed=False)
    for number in range(len(values.parts)):
        values.publish(number, TERM)
    assert (values.weight_of(0), values.weight_of(1), values.counted_samples()) == (3, 8, 3)


def test_a_contribution_that_does_not_decode_adds_nothing() -> None:
    values = make_values(codec_by_name("float32"))[ONE]
    values.add_own(0, 3, TERM)
    bad = np.ones(values.parts[0].count, np.float32)
    bad[-1] = np.inf
    with pytest.raises(MalformedPayload):
        values.add(0, memoryview(bad.tobytes()), LOSSLESS.code, 5, TERM, packed=False)
    with pytest.raises(MalformedPayload):
        values.add(0, memoryview(b"too short"), LOSSLESS.code, 5, TERM, packed=False)
    values.publish(0, TERM)
    assert values.weight_of(0) == 3
    part = values.parts[0]
    np.testing.assert_allclose(values.results[: part.stop], deltas()[ONE][: part.stop], rtol=1e-6)


def test_a_sum_out_of_range_gives_zeros() -> None:
    values = make_values(codec_by_name("float32"))[ONE]
    huge = np.full(values.parts[0].count, 3e38, np.float32)
    for _ in range(2):
        values.add(0, memoryview(huge.tobytes()), LOSSLESS.code, 1, TERM, packed=False)
    values.publish(0, TERM)
    assert not values.results[: values.parts[0].stop].any()


def test_an_ended_contribution_is_not_added() -> None:
    values = make_values(codec_by_name("int8"))[ONE]
    assert values.contribution is not None
    values.contribution.end()
    values.add_own(0, 3, TERM)
    values.publish(0, TERM)
    assert values.weight_of(0) == 0


# -- by way of a carrier ---------------------------------------------------------------------------------------------------


@every_codec
def test_what_a_carrier_passes_on_is_the_mean_of_what_it_added(codec: Codec) -> None:
    # Given a carrier that adds its own and another's contribution,
    plan = dataclasses.replace(PLAN, codec=codec.name, topology=RING, groups=((0, 1),))
    carrier, owner, feedback = RoundValues(plan, Buffers()), RoundValues(plan, Buffers()), Feedback(COUNT)
    carrier.contribution = Contribution(BASE, LOCAL[ONE], lambda: feedback)
    other = LOSSLESS.encode(deltas()[OTHER][: carrier.parts[0].count])
    carrier.add_own(0, 3, TERM)
    carrier.add(0, memoryview(other), LOSSLESS.code, 5, TERM, packed=False)
    # when it passes them on, and the owner adds nothing else,
    payload = carrier.partial_payload(0, TERM)
    assert payload is not None
    passed_on = reply_codec(carrier.codec_of(0))
    assert owner.may_come_under(0, passed_on.code)
    owner.add(0, memoryview(bytes(payload)), passed_on.code, carrier.weight_under(0, TERM), TERM, packed=False)
    owner.publish(0, TERM)
    # then the result stands for all samples and is their mean within what the codecs lose.
    count = carrier.parts[0].count
    one = codec.decode(codec.encode(deltas()[ONE][:count]), count)
    mean = np.average([one, deltas()[OTHER][:count]], axis=0, weights=[3, 5])
    lost = 2 * BOUNDS[passed_on.name](np.float32(mean))
    assert owner.weight_of(0) == 8
    assert (np.abs(owner.results[:count] - mean) <= lost * 1.001 + 1e-5).all()
    # And what the carrier passes down are the owner's bytes.
    code, result = owner.result_payload(0)
    carrier.store_result(0, result, code, 8, packed=False)
    assert carrier.result_payload(0) == (code, result)


def test_nothing_of_an_earlier_term_enters_a_sum() -> None:
    values = make_values(codec_by_name("float32"))[ONE]
    count = values.parts[0].count
    ones, twos = (memoryview(np.full(count, v, np.float32).tobytes()) for v in (1, 2))
    values.add(0, ones, LOSSLESS.code, 5, TERM, packed=False)
    values.add(0, twos, LOSSLESS.code, 7, TERM + 1, packed=False)
    values.add(0, ones, LOSSLESS.code, 5, TERM, packed=False)
    assert values.weight_under(0, TERM) == 0
    assert values.partial_payload(0, TERM) is None
    values.publish(0, TERM + 1)
    assert values.weight_of(0) == 7
    assert (values.results[:count] == 2).all()


def test_a_sum_of_an_earlier_term_is_not_published() -> None:
    values = make_values(codec_by_name("float32"))[ONE]
    values.add_own(0, 5, TERM)
    values.publish(0, TERM + 1)
    assert values.weight_of(0) == 0
    assert not values.results[: values.parts[0].stop].any()


def test_a_result_is_not_added_to() -> None:
    values = make_values(codec_by_name("float32"))[ONE]
    ones = memoryview(np.ones(values.parts[0].count, np.float32).tobytes())
    values.add(0, ones, LOSSLESS.code, 5, TERM, packed=False)
    values.store_result(0, ones, LOSSLESS.code, 9, packed=False)
    values.add(0, ones, LOSSLESS.code, 5, TERM + 1, packed=False)
    assert values.partial_payload(0, TERM) is None
    assert values.weight_of(0) == 9
    assert (values.results[: values.parts[0].stop] == 1).all()
