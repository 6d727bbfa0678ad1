"""Whatever the links: the same choice for the same situation, and none that noise brings back and forth."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.core.codec_choice import POLICIES, SPEEDS, CodecChoice, Situation, Stage, choose_codec
from ciuic_p2p.core.topology import LinkSurvey
from ciuic_p2p.tensors.codecs.registry import all_codecs

NAMES = [codec.name for codec in all_codecs()]

choices = st.builds(CodecChoice, codec=st.sampled_from(NAMES), lossless_level=st.sampled_from([0, 3]), reason=st.just(""))
mbps = st.floats(-2, 7).map(lambda exponent: 10.0**exponent)
"""From 10 kbit/s to 10 Tbit/s, each magnitude as often."""
borders = st.sampled_from([100.0, 125.0, 120.0, 150.0, 12_200.0, 20_400.0, 37_700.0, 65_500.0, 692_000.0]) | mbps
"""Where some choice changes, or anywhere."""


def situation_of(
    policy: str, stage: Stage, count: int, goodput_mbps: float, complete: bool, crosses: bool, previous: CodecChoice | None
) -> Situation:
    return Situation(
        policy=policy,
        stage=stage,
        count=count,
        encoded_bytes={codec.name: codec.encoded_bytes(count) for codec in all_codecs()},
        links=LinkSurvey(slowest_mbps=goodput_mbps, slowest_way="from us to eu", is_complete=complete),
        crosses_regions=crosses,
        previous=previous,
    )


situations = st.builds(
    situation_of,
    policy=st.sampled_from([*POLICIES, *NAMES]),
    stage=st.sampled_from(Stage),
    count=st.integers(0, 1 << 36),
    goodput_mbps=st.just(0.0) | mbps,
    complete=st.booleans(),
    crosses=st.booleans(),
    previous=st.none() | choices,
)


@given(situations)
def test_a_choice_is_a_codec_with_a_reason_and_always_the_same(situation: Situation) -> None:
    choice = choose_codec(situation)
    assert choice == choose_codec(situation)
    assert choice.codec in NAMES
    assert choice.lossless_level in (0, 3)
    assert choice.reason.startswith(f"{situation.policy}: ")
    assert "\n" not in choice.reason
    assert len(choice.reason) < 160


@given(
    st.sampled_from(POLICIES),
    st.integers(1000, 1 << 33),
    borders,
    st.lists(st.floats(0.9, 1.1), min_size=2, max_size=30),
    st.none() | choices,
)
def test_noise_of_a_tenth_changes_a_choice_at_most_once(
    policy: str, count: int, around_mbps: float, noise: list[float], previous: CodecChoice | None
) -> None:
    taken: list[CodecChoice] = []
    for factor in noise:
        situation = situation_of(policy, Stage.PSEUDO_GRADIENTS, count, around_mbps * factor, True, False, previous)
        previous = choose_codec(situation)
        taken.append(previous)
    assert changes([choice.codec for choice in taken]) <= 1
    assert changes([choice.lossless_level for choice in taken]) <= 1


def changes(values: list[str] | list[int]) -> int:
    return sum(before != after for before, after in itertools.pairwise(values))


@given(st.integers(1000, 1 << 33), mbps, mbps, st.sampled_from(sorted(SPEEDS)))
def test_auto_sends_no_more_bytes_over_a_slower_link(count: int, one: float, other: float, held: str) -> None:
    previous = CodecChoice(codec=held, lossless_level=0, reason="")
    slow, fast = (
        situation_of("auto", Stage.PSEUDO_GRADIENTS, count, goodput, True, False, previous) for goodput in sorted((one, other))
    )
    sizes = slow.encoded_bytes
    assert sizes[choose_codec(slow).codec] <= sizes[choose_codec(fast).codec]
