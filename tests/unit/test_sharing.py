"""Rates of flows that share capacities: max-min fair, by weight, never more than there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.simulator.sharing import fair_rates


def rates(routes: list[list[int]], capacities: list[float], weights: list[float] | None = None) -> list[float]:
    found = fair_rates(np.array(routes), np.array(weights or [1.0] * len(routes)), np.array(capacities))
    return [float(rate) for rate in found]


def test_what_crosses_one_capacity_shares_it_evenly() -> None:
    assert rates([[0], [0], [0], [0]], [100.0]) == pytest.approx([25.0] * 4)


def test_who_is_held_back_elsewhere_leaves_the_rest_to_others() -> None:
    # the second flow gets 10 of its own line, so the first may have 90 of what both cross
    assert rates([[0, 1], [0, 2]], [100.0, 1000.0, 10.0]) == pytest.approx([90.0, 10.0])


def test_shares_follow_weights() -> None:
    assert rates([[0], [0]], [90.0], [2.0, 1.0]) == pytest.approx([60.0, 30.0])


def test_a_capacity_that_is_crossed_twice_is_used_twice() -> None:
    assert rates([[0, 0]], [100.0]) == pytest.approx([50.0])


def test_what_nothing_limits_is_unlimited() -> None:
    assert rates([[0], [1]], [np.inf, 10.0]) == [np.inf, 10.0]


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[list[int]], list[float], list[float]]:
    capacities = draw(st.lists(st.floats(1, 1000), min_size=2, max_size=8))
    hop = st.integers(0, len(capacities) - 1)
    routes = draw(st.lists(st.lists(hop, min_size=3, max_size=3, unique=len(capacities) > 2), min_size=1, max_size=20))
    weights = draw(st.lists(st.floats(0.1, 10), min_size=len(routes), max_size=len(routes)))
    return routes, capacities, weights


@given(networks())
def test_nothing_is_overfilled_and_every_flow_is_stopped_by_a_full_capacity_where_none_gets_more(
    network: tuple[list[list[int]], list[float], list[float]],
) -> None:
    routes, capacities, weights = network
    found = rates(routes, capacities, weights)
    used = [
        sum(rate * route.count(number) for rate, route in zip(found, routes, strict=True)) for number in range(len(capacities))
    ]
    for load, capacity in zip(used, capacities, strict=True):
        assert load <= capacity * (1 + 1e-9)
    level = [rate / weight for rate, weight in zip(found, weights, strict=True)]
    for flow, route in enumerate(routes):
        stops = [
            hop
            for hop in route
            if used[hop] >= capacities[hop] * (1 - 0.01)
            and all(level[other] <= level[flow] * 1.01 for other, its in enumerate(routes) if hop in its)
        ]
        assert stops, f"flow {flow} could have more"
