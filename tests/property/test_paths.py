"""The choice of a path: the same for the same measurements, never worse for better ones, and not moved by noise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.core.paths import (
    DIRECT,
    FORWARDING_HANDICAP,
    LEAST_GAIN_S,
    RELAY,
    SWITCH_GAIN,
    Leg,
    Legs,
    forwarder_of,
    paths_between,
    predict_s,
    rank,
    select_path,
    via,
)
from ciuic_p2p.terms import PeerId

US, EU, ASIA, AFRICA = (PeerId(name) for name in ("us", "eu", "as", "af"))
PEERS = (US, EU, ASIA, AFRICA)
MB = 1_000_000

legs = st.builds(
    Leg,
    rtt_ms=st.floats(0, 1000),
    goodput_mbps=st.one_of(st.just(0.0), st.floats(0.1, 10_000)),
    is_relayed=st.booleans(),
)
maps = st.dictionaries(st.tuples(st.sampled_from(PEERS), st.sampled_from(PEERS)).filter(lambda pair: pair[0] != pair[1]), legs)
sizes = st.integers(0, 10**10)
names = st.sampled_from(["", DIRECT, RELAY, via(ASIA), via(AFRICA), via(PeerId("gone"))])


def leg(goodput_mbps: float, rtt_ms: float = 100.0, *, is_relayed: bool = False) -> Leg:
    return Leg(rtt_ms=rtt_ms, goodput_mbps=goodput_mbps, is_relayed=is_relayed)


def through(direct: Leg | None, first: Leg, second: Leg, *, forwarder: PeerId = ASIA) -> dict[tuple[PeerId, PeerId], Leg]:
    own = {} if direct is None else {(US, EU): direct}
    return {**own, (US, forwarder): first, (forwarder, EU): second}


def chosen(size_bytes: int, links: Legs, current: str = "") -> str:
    path = select_path(US, EU, size_bytes, links, current)
    assert path is not None
    return path.name


def test_a_slow_direct_link_is_left_for_a_quick_third_peer_when_much_is_to_be_sent() -> None:
    links = through(leg(5, 150), leg(80, 100), leg(80, 100))
    assert chosen(50 * MB, links) == via(ASIA)
    assert chosen(1_000, links) == DIRECT  # its round trip is shorter


def test_a_third_peer_that_is_only_a_little_quicker_is_not_taken() -> None:
    assert chosen(50 * MB, through(leg(50), leg(80), leg(80))) == DIRECT
    assert chosen(50 * MB, through(leg(50), leg(200), leg(60))) == DIRECT  # the second leg is the bottleneck


def test_a_direct_link_that_nobody_has_timed_is_tried_first() -> None:
    assert chosen(50 * MB, through(leg(0), leg(80), leg(80))) == DIRECT


def test_without_a_direct_link_the_quickest_third_peer_is_taken_and_a_relay_last() -> None:
    links = {**through(None, leg(10), leg(10)), **through(None, leg(90), leg(40), forwarder=AFRICA)}
    assert chosen(50 * MB, links) == via(AFRICA)
    assert chosen(50 * MB, {**links, (US, EU): leg(0, is_relayed=True)}) == via(AFRICA)
    assert chosen(50 * MB, {(US, EU): leg(0, is_relayed=True)}) == RELAY
    assert select_path(US, EU, MB, {}) is None


def test_a_relayed_leg_is_no_way_to_a_third_peer() -> None:
    assert select_path(US, EU, MB, through(None, leg(90), leg(90, is_relayed=True))) is None


def test_the_present_path_stays_near_the_border() -> None:
    border_mbps = 80 / FORWARDING_HANDICAP
    a_little_slower = through(leg(border_mbps / 1.1, 0), leg(80, 0), leg(80, 0))
    a_little_quicker = through(leg(border_mbps * 1.1, 0), leg(80, 0), leg(80, 0))
    for links in (a_little_slower, a_little_quicker):
        for current in (DIRECT, via(ASIA)):
            assert chosen(50 * MB, links, current) == current
    assert chosen(50 * MB, through(leg(border_mbps / SWITCH_GAIN / 1.1, 0), leg(80, 0), leg(80, 0)), DIRECT) == via(ASIA)
    assert chosen(50 * MB, through(leg(border_mbps * SWITCH_GAIN * 1.1, 0), leg(80, 0), leg(80, 0)), via(ASIA)) == DIRECT


def test_names_and_ranks() -> None:
    assert [forwarder_of(path) for path in (DIRECT, RELAY, via(ASIA))] == [None, None, ASIA]
    assert sorted([RELAY, via(ASIA), DIRECT], key=rank) == [DIRECT, via(ASIA), RELAY]


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_a_leg_of_an_impossible_rate_cannot_be(wrong: float) -> None:
    with pytest.raises(ValueError, match="impossible"):
        leg(wrong)
    with pytest.raises(ValueError, match="impossible"):
        leg(1.0, wrong)


@given(maps, sizes, names, st.randoms())
def test_the_order_in_which_links_are_known_does_not_matter(links: Legs, size: int, current: str, rng) -> None:
    shuffled = list(links.items())
    rng.shuffle(shuffled)
    assert select_path(US, EU, size, dict(shuffled), current) == select_path(US, EU, size, links, current)
    assert paths_between(US, EU, size, dict(shuffled)) == paths_between(US, EU, size, links)


@given(maps, sizes, names)
def test_links_that_touch_neither_end_do_not_matter(links: Legs, size: int, current: str) -> None:
    near = {pair: each for pair, each in links.items() if pair[0] == US or pair[1] == EU}
    assert select_path(US, EU, size, near, current) == select_path(US, EU, size, links, current)


@given(maps, sizes, names)
def test_the_choice_is_within_a_bound_of_the_best_or_the_direct_one_is_not_timed(links: Legs, size: int, current: str) -> None:
    path = select_path(US, EU, size, links, current)
    every = paths_between(US, EU, size, links)
    if path is None:
        assert every == ()
        return
    assert path in every
    best_s = every[0].predicted_s
    is_untimed = path.name == DIRECT and path.goodput_mbps == 0
    assert is_untimed or path.predicted_s <= max(SWITCH_GAIN * best_s, best_s + LEAST_GAIN_S) or best_s == math.inf


@given(maps, sizes, names)
def test_what_was_chosen_is_chosen_again(links: Legs, size: int, current: str) -> None:
    """Hysteresis has no cycle."""
    path = select_path(US, EU, size, links, current)
    if path is not None:
        assert select_path(US, EU, size, links, path.name) == path


@given(maps, sizes, st.sampled_from(PEERS), st.sampled_from(PEERS), st.floats(1, 100))
def test_a_quicker_leg_makes_no_path_slower(links: Legs, size: int, source: PeerId, target: PeerId, factor: float) -> None:
    if (source, target) not in links:
        return
    before = {path.name: path.predicted_s for path in paths_between(US, EU, size, links)}
    known = links[source, target]
    better = {**links, (source, target): replace(known, goodput_mbps=known.goodput_mbps * factor, rtt_ms=known.rtt_ms / factor)}
    after = {path.name: path.predicted_s for path in paths_between(US, EU, size, better)}
    assert after.keys() == before.keys()
    assert all(after[name] <= before[name] for name in before)


@given(st.floats(0, 1000), st.floats(0, 10_000), sizes, sizes)
def test_more_bytes_take_no_less_time(rtt_ms: float, goodput_mbps: float, one: int, other: int) -> None:
    few, many = sorted((one, other))
    assert predict_s(rtt_ms, goodput_mbps, few) <= predict_s(rtt_ms, goodput_mbps, many)
