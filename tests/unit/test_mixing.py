"""Sources are mixed in exact proportions, the same way everywhere, from any place on."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data_kit import corpus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ciuic_p2p.data.mixing import Mixture, place_from_plain, place_to_plain
from ciuic_p2p.data.sources import Source
from ciuic_p2p.errors import LocalError, MalformedMessage


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    folder = tmp_path_factory.mktemp("mixed")
    return [corpus(folder, name, [f"{name}{i}" for i in range(count)]) for name, count in (("a", 50), ("b", 7), ("c", 20))]


def texts(mixture: Mixture, count: int) -> list[str]:
    return [drawn.record["text"] for drawn in itertools.islice(mixture.read(mixture.beginning()), count)]


@given(weights=st.lists(st.floats(0.01, 100), min_size=3, max_size=3), seed=st.integers(0, 9))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_number_of_records_each_source_has_its_share(sources: list[Source], weights: list[float], seed: int) -> None:
    taken: Counter[str] = Counter()
    for number, text in enumerate(texts(Mixture(sources, weights, seed, passes=None), 600), start=1):
        taken[text[0]] += 1
        for name, weight in zip("abc", weights, strict=True):
            assert abs(taken[name] - number * weight / sum(weights)) <= 1 + len(sources)


def test_an_order_follows_from_the_seed(sources: list[Source]) -> None:
    orders = [texts(Mixture(sources, [3, 1, 2], seed, passes=None), 100) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_one_pass_gives_every_record_once(sources: list[Source]) -> None:
    mixture = Mixture(sources, [1, 10, 1])
    found = Counter(texts(mixture, 1000))
    assert found == Counter(f"{name}{i}" for name, count in (("a", 50), ("b", 7), ("c", 20)) for i in range(count))
    assert Counter(texts(Mixture(sources, passes=3), 1000)) == Counter(dict.fromkeys(found, 3))


@pytest.mark.parametrize("passes", [1, 2, None])
def test_a_mixture_goes_on_from_any_place(sources: list[Source], passes: int | None) -> None:
    mixture = Mixture(sources, [3, 1, 2], 5, passes)
    drawn = list(itertools.islice(mixture.read(mixture.beginning()), 340))
    for at in range(0, min(300, len(drawn)), 13):
        place = place_from_plain(place_to_plain(drawn[at].after))
        assert list(itertools.islice(mixture.read(place), 40)) == drawn[at + 1 : at + 41]
        assert drawn[at].number == at


@pytest.mark.parametrize("weights", [[1, 1], [1, 0, 1], [1, -1, 1], [1, float("nan"), 1], [1, float("inf"), 1]])
def test_weights_that_are_none_are_refused(sources: list[Source], weights: list[float]) -> None:
    with pytest.raises(LocalError, match="weights"):
        Mixture(sources, weights)


def test_an_empty_source_is_named_instead_of_sought_through_for_ever(tmp_path: Path) -> None:
    mixture = Mixture([corpus(tmp_path, "empty", [])], passes=None)
    with pytest.raises(LocalError, match="empty holds no record"):
        list(mixture.read(mixture.beginning()))


def test_a_mixture_of_nothing_is_refused() -> None:
    with pytest.raises(LocalError, match="at least one"):
        Mixture([])


@pytest.mark.parametrize("value", [None, [[1, 2, 3]], [[0, 0, 0, 0, -1]], [[0, 0, 0, 0, "0"]], {"a": 1}])
def test_a_place_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(MalformedMessage):
        place_from_plain(value)
