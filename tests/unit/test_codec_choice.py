"""Each rule by which a codec is chosen, its border and its reason; what is surveyed of the links for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ciuic_p2p.core.codec_choice import (
    DEFAULT_CODEC,
    POLICIES,
    SOURCE_TABLE,
    SPEEDS,
    CodecChoice,
    Situation,
    Stage,
    choose_codec,
)
from ciuic_p2p.core.topology import Link, LinkSurvey, Place, crosses_regions, survey_links
from ciuic_p2p.daemon.seat import Seat
from ciuic_p2p.errors import ConfigError
from ciuic_p2p.local.protocol import Attach, StrategySettings
from ciuic_p2p.local.trainer import Trainer
from ciuic_p2p.tensors.codecs.registry import all_codecs, codec_by_name
from ciuic_p2p.tensors.layout import Entry, Layout
from ciuic_p2p.terms import PeerId

US, EU, AS = PeerId("us"), PeerId("eu"), PeerId("as")
MILLION = 1_000_000
UNMEASURED = LinkSurvey()


def link(mbps: float, *, complete: bool = True) -> LinkSurvey:
    return LinkSurvey(slowest_mbps=mbps, slowest_way="from us1 to eu1", is_complete=complete)


def situation(policy: str, links: LinkSurvey = UNMEASURED, **others: Any) -> Situation:
    count = others.pop("count", MILLION)
    sizes = {codec.name: codec.encoded_bytes(count) for codec in all_codecs()}
    stage = others.pop("stage", Stage.PSEUDO_GRADIENTS)
    crosses = others.pop("crosses_regions", False)
    return Situation(
        policy=policy, stage=stage, count=count, encoded_bytes=sizes, links=links, crosses_regions=crosses, **others
    )


def chosen(codec: str, level: int = 0) -> CodecChoice:
    return CodecChoice(codec=codec, lossless_level=level, reason="")


def test_every_codec_that_a_rule_names_is_one() -> None:
    named = {DEFAULT_CODEC, *SPEEDS, *(rule.codec for rule in SOURCE_TABLE)}
    assert all(codec_by_name(name).name == name for name in named)
    assert not {codec.name for codec in all_codecs()} & set(POLICIES)


# -- the source's table ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "codec", "level", "reason"),
    [
        (situation("source", link(99.99)), "onebit", 0, "source: 99.9 Mbit/s from us1 to eu1 is below 100, so onebit"),
        (situation("source", link(18)), "onebit", 0, "source: 18 Mbit/s from us1 to eu1 is below 100, so onebit"),
        (situation("source", link(1.25)), "onebit", 0, "source: 1.2 Mbit/s from us1 to eu1 is below 100, so onebit"),
        (situation("source", link(18, complete=False), crosses_regions=True), "onebit", 0, "is below 100"),
        (situation("source", link(100)), "float32", 0, "source: at 100 Mbit/s from us1 to eu1 no rule asks for compression"),
        (situation("source", crosses_regions=True), "float32", 0, "source: no rule asks for compression"),
        (situation("source", count=50 * MILLION), "float32", 0, "no rule"),
        (situation("source", stage=Stage.PARAMETERS, crosses_regions=True), "bfloat16", 0, "in several regions, so bfloat16"),
        (situation("source", link(18), stage=Stage.PARAMETERS), "float32", 0, "no rule"),
        (situation("source", stage=Stage.CHECKPOINT, count=25 * MILLION), "float32", 0, "no rule"),
        (situation("source", stage=Stage.CHECKPOINT, count=26 * MILLION), "float32", 3, "source: 104 MB are over 100"),
    ],
)
def test_the_sources_table(asked: Situation, codec: str, level: int, reason: str) -> None:
    choice = choose_codec(asked)
    assert (choice.codec, choice.lossless_level) == (codec, level)
    assert reason in choice.reason


@pytest.mark.parametrize(("mbps", "codec"), [(101, "onebit"), (124, "onebit"), (125, "float32")])
def test_one_bit_stays_until_the_link_is_a_quarter_better(mbps: float, codec: str) -> None:
    assert choose_codec(situation("source", link(mbps), previous=chosen("onebit"))).codec == codec
    assert choose_codec(situation("source", link(mbps), previous=chosen("float32"))).codec == "float32"


def test_no_codec_stays_for_want_of_a_measurement() -> None:
    assert choose_codec(situation("source", previous=chosen("onebit"))).codec == "float32"
    assert choose_codec(situation("auto", previous=chosen("float16"))).codec == "int4"


# -- auto --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "codec", "level", "reason"),
    [
        (situation("auto"), "int4", 0, "auto: int4 until all links are measured"),
        (situation("auto", link(90_000, complete=False)), "int4", 0, "auto: int4 until all links are measured"),
        (situation("auto", link(18)), "int4", 3, "auto: at 18 Mbit/s from us1 to eu1 int4 is 1.96 times as fast as int8"),
        (situation("auto", link(119)), "int4", 3, "times as fast as int8"),
        (situation("auto", link(120)), "int4", 0, "times as fast as int8"),
        (situation("auto", link(10_000)), "int4", 0, "times as fast as"),
        (situation("auto", link(60_000)), "float16", 0, "auto: at 60000 Mbit/s from us1 to eu1 float16 is 1."),
        (situation("auto", link(5_000_000)), "float32", 0, "float32 is"),
        (situation("auto", link(18), stage=Stage.PARAMETERS), "float32", 3, "auto: state stays exact, so float32"),
        (situation("auto", link(900), stage=Stage.PARAMETERS, crosses_regions=True), "float32", 0, "state stays exact"),
        (situation("auto", link(18), stage=Stage.CHECKPOINT), "float32", 0, "state stays exact"),
        (situation("auto", stage=Stage.CHECKPOINT, count=26 * MILLION), "float32", 3, "auto: 104 MB are over 100"),
    ],
)
def test_auto(asked: Situation, codec: str, level: int, reason: str) -> None:
    choice = choose_codec(asked)
    assert (choice.codec, choice.lossless_level) == (codec, level)
    assert reason in choice.reason


@pytest.mark.parametrize("mbps", [0, 0.01, 1, 10, 99, 100, 1e3, 1e4, 1e5, 1e6, 1e9])
@pytest.mark.parametrize("held", ["onebit", "topk", "bfloat16", "float32", "int4"])
def test_auto_never_goes_below_four_bits(mbps: float, held: str) -> None:
    assert choose_codec(situation("auto", link(mbps), previous=chosen(held))).codec in SPEEDS
    assert min(situation("auto").encoded_bytes[codec] for codec in SPEEDS) >= MILLION // 2


def test_what_is_in_use_stays_while_the_quickest_gains_less_than_a_quarter() -> None:
    border = link(32_000)
    assert choose_codec(situation("auto", border, previous=chosen("int4"))).codec == "int4"
    kept = choose_codec(situation("auto", border, previous=chosen("float16")))
    assert kept.codec == "float16"
    slower = choose_codec(situation("auto", link(20_000), previous=chosen("float16")))
    assert slower.codec == "float16"
    assert slower.reason == (
        "auto: at 20000 Mbit/s from us1 to eu1 int4 is 1.01 times as fast as float16, which stays up to 1.25"
    )
    assert choose_codec(situation("auto", link(1000), previous=chosen("float16"))).codec == "int4"


def test_packing_stays_until_the_link_is_a_quarter_better() -> None:
    assert choose_codec(situation("auto", link(140), previous=chosen("int4", 3))).lossless_level == 3
    assert choose_codec(situation("auto", link(140), previous=chosen("int4"))).lossless_level == 0
    assert choose_codec(situation("auto", link(150), previous=chosen("int4", 3))).lossless_level == 0


def test_a_tensor_without_values_has_a_codec_too() -> None:
    assert choose_codec(situation("auto", link(100), count=0)).codec == "int4"


# -- the user's word ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [codec.name for codec in all_codecs()])
def test_the_codec_that_was_asked_for_is_taken_whatever_the_link(codec: str) -> None:
    for mbps in (0, 1, 1e6):
        choice = choose_codec(situation(codec, link(mbps), previous=chosen("int8", 3)))
        assert choice == CodecChoice(codec=codec, lossless_level=0, reason=f"{codec}: asked for by the trainer")


def seat(codec: str) -> Seat:
    weight = Entry(name="weight", shape=(1000,), dtype="float32", role="parameter")
    layout = Layout((weight, Entry(name="mean", shape=(10,), dtype="float32", role="buffer")))
    settings = StrategySettings(name="DiLoCo", inner_steps=1, codec=codec, outer_learning_rate=0.7, outer_momentum=0.6)
    attach = Attach(run="mnist", layout=layout.to_wire(), strategy=settings, pid=1)
    return Seat(cast(Trainer, SimpleNamespace()), attach)


@pytest.mark.parametrize("policy", [*POLICIES, *(codec.name for codec in all_codecs())])
def test_a_trainer_may_ask_for_every_policy_and_every_codec(policy: str) -> None:
    shape = seat(policy).shape
    assert shape.codec_policy == policy
    assert shape.encoded_bytes.keys() == {codec.name for codec in all_codecs()}


def test_results_count_in_a_codecs_size_and_buffers_travel_as_they_are() -> None:
    sizes = seat("auto").shape.encoded_bytes
    assert sizes["int4"] == codec_by_name("int4").encoded_bytes(1000) + 40
    assert sizes["float32"] == 4040
    replies = codec_by_name("int4").encoded_bytes(1000)
    assert sizes["onebit"] == (codec_by_name("onebit").encoded_bytes(1000) + replies) // 2 + 40, "replies are int4"


def test_another_name_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"^there is no codec 'int3'") as refused:
        seat("int3")
    choices = "auto, source, float32, float16, bfloat16, int8, int4, onebit, topk"
    assert refused.value.remedy == f"choose one of {choices}"


# -- what is surveyed --------------------------------------------------------------------------------------------------


def test_the_slowest_measured_direction_counts_and_is_named() -> None:
    links = {
        (US, EU): Link(90, 1, 80.0),
        (EU, US): Link(90, 1, 30.0),
        (EU, AS): Link(210, 1, 0.0),
        (US, AS): Link(160, 1, 50.0),
        (AS, PeerId("stranger")): Link(1, 0, 2.0),
        (US, US): Link(0, 0, 1.0),
    }
    survey = survey_links((US, EU, AS), links, {EU: Place("node-eu", "eu")})
    assert survey == LinkSurvey(slowest_mbps=30.0, slowest_way="from node-eu to us", is_complete=False)
    assert survey_links((US, EU), links, {}).is_complete


def test_links_that_nobody_measured() -> None:
    assert survey_links((US,), {}, {}) == survey_links((US, EU), {(US, EU): Link(90, 1, 0.0)}, {}) == LinkSurvey()


def test_regions_are_crossed_only_by_peers_known_to_be_in_two() -> None:
    places = {US: Place("a", "us"), EU: Place("b", "eu"), AS: Place("c")}
    assert crosses_regions((US, EU), places)
    assert not crosses_regions((US, AS), places)
    assert not crosses_regions((US, PeerId("stranger")), places)
