"""Whatever the network: plans cover the tensor, know one way for each contributor, and ask no line and no cable for more."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.messages import HIERARCHICAL, RING, STAR, TOPOLOGIES, Plan, decode, encode
from ciuic_p2p.core.parts import choose_part_values, cut_parts
from ciuic_p2p.core.planning import planner
from ciuic_p2p.core.planning.correction import Correction
from ciuic_p2p.core.planning.cost import forecast
from ciuic_p2p.core.planning.hierarchy import EDGE_SHARE, draft_hierarchy, share_regions, survey_regions
from ciuic_p2p.core.planning.network import Network, quantise, survey_ground
from ciuic_p2p.core.planning.planner import Planned, RoundToPlan, plan_round
from ciuic_p2p.core.planning.rates import count_pair_values, pair_rates_mbps
from ciuic_p2p.core.topology import LEAST_PATIENCE_S, Link, Place
from ciuic_p2p.core.trees import trees_of
from ciuic_p2p.terms import UNKNOWN_REGION, PeerId, StateHash

LABELS = ("us", "eu-west-1", "as", "basement", UNKNOWN_REGION)


@dataclasses.dataclass(frozen=True)
class Case:
    wanted: RoundToPlan
    network: Network
    seed: int


@st.composite
def cases(draw: Any, codecs: tuple[str, ...] = ("float32", "int4", "onebit")) -> Case:
    """Small swarms of all kinds: unlike lines, some not measured, some without a region, narrow cables, listeners."""
    seed = draw(st.integers(0, 1 << 32))
    rng = random.Random(seed)
    peers = [PeerId(f"12D3KooW{number:03d}") for number in range(draw(st.integers(1, 14)))]
    listening = [PeerId(f"12D3KooL{number:03d}") for number in range(draw(st.integers(0, 3)))]
    labels = LABELS[: draw(st.integers(1, len(LABELS)))]
    unmeasured = draw(st.sampled_from((0.0, 0.3, 1.0)))
    everyone = [*peers, *listening]
    network = Network(
        links={
            (a, b): Link(rng.uniform(1, 300), rng.uniform(0, 9), rng.choice((0.0, rng.uniform(1, 900))))
            for a in everyone
            for b in everyone
            if a != b and rng.random() < 0.7
        },
        places={peer: Place(peer, rng.choice(labels)) for peer in everyone if rng.random() < 0.9},
        lines_mbps={peer: 10 ** rng.uniform(0, 4) for peer in peers if rng.random() >= unmeasured},
        cables_mbps={
            (one, other): 10 ** rng.uniform(0, 4) for one in LABELS for other in LABELS if one != other and rng.random() < 0.6
        },
    )
    count = draw(st.sampled_from((0, 1, 255, 10_000, 3_000_001, 10**9)))
    codec = draw(st.sampled_from(codecs))
    wanted = RoundToPlan(
        contributors=tuple(peers),
        listeners=tuple(listening),
        count=count,
        encoded_bytes=count * {"float32": 4.0, "int4": 0.515, "onebit": 0.34}[codec],
        codec=codec,
        previous=draw(st.sampled_from(TOPOLOGIES)),
        correction=Correction(((HIERARCHICAL, rng.uniform(0.2, 5)),)) if draw(st.booleans()) else Correction(),
    )
    return Case(wanted, network, seed)


def as_message(planned: Planned, wanted: RoundToPlan) -> Plan:
    """Which checks that spans cover the tensor in order, and each group has one carrier."""
    return Plan(
        run="run",
        epoch=0,
        term=1,
        base_hash=StateHash("0" * 64),
        contributors=wanted.contributors,
        listeners=wanted.listeners,
        spans=planned.spans,
        topology=planned.topology,
        groups=planned.groups,
        count=wanted.count,
        parameter_count=wanted.count,
        part_values=1 << 18,
        codec=wanted.codec,
        lossless_level=0,
        reason=planned.reason,
        outer_learning_rate=0.7,
        outer_momentum=0.6,
        predicted_s=planned.predicted_s,
        correction=planned.correction,
        patience_s=planned.patience_s,
    )


def lines_and_cables(case: Case, plan: Plan, per_pair: dict[tuple[PeerId, PeerId], float]) -> list[tuple[float, float]]:
    """(asked for, capacity) of every measured line and cable: added up edge by edge, as the planner does not."""
    places, lines = case.network.places, case.network.lines_mbps
    regions = {peer: place.region for peer, place in places.items() if place.region != UNKNOWN_REGION}
    found = []
    for peer, mbps in lines.items():
        found.append((sum(value for (source, _), value in per_pair.items() if source == peer), mbps))
        found.append((sum(value for (_, target), value in per_pair.items() if target == peer), mbps))
    if set(regions) >= set(plan.contributors):  # the region of one that names none is the planner's to say
        for (one, other), mbps in case.network.cables_mbps.items():
            across = sum(value for (a, b), value in per_pair.items() if regions.get(a) == one and regions.get(b, "") == other)
            found.append((across, mbps))
    return found


def forced(case: Case, topology: str) -> Planned | None:
    """The plan when only one topology may be."""
    wanted = dataclasses.replace(case.wanted, previous=topology)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "HYSTERESIS", float("inf"))
        planned = plan_round(wanted, case.network)
    return planned if planned.topology == topology else None


@given(cases(codecs=("float32",)), st.sampled_from(TOPOLOGIES))
@settings(max_examples=200, deadline=None)
def test_every_contributor_has_one_way_to_every_owner(case: Case, topology: str) -> None:
    planned = forced(case, topology)
    if planned is None:
        return
    plan = as_message(planned, case.wanted)
    if len(encode(plan)) < 100_000:
        assert decode(encode(plan)) == plan
    for span, tree in zip(plan.spans, trees_of(plan), strict=True):
        assert span.stop > span.start
        assert tree.parent_of(span.owner) is None
        for peer in plan.contributors:
            steps, here = 0, peer
            while here != span.owner:
                above = tree.parent_of(here)
                assert above is not None
                here, steps = above, steps + 1
                assert steps < len(plan.contributors)
    assert planned.patience_s >= max(LEAST_PATIENCE_S, planned.predicted_s)
    part_values = choose_part_values(plan.count, len(plan.contributors), planned.values_per_s)
    assert cut_parts(dataclasses.replace(plan, part_values=part_values)) or not plan.count


@given(cases(codecs=("float32",)), st.sampled_from(TOPOLOGIES))
@settings(max_examples=200, deadline=None)
def test_no_rate_asks_a_line_or_cable_for_more_than_it_has(case: Case, topology: str) -> None:
    planned = forced(case, topology)
    if planned is None or planned.transfer_s == 0:
        return
    plan = as_message(planned, case.wanted)
    rates = pair_rates_mbps(plan, case.wanted.encoded_bytes, planned.transfer_s)
    for asked, mbps in lines_and_cables(case, plan, dict(rates)):
        assert asked <= mbps * (1 + 1e-6)


@given(cases(codecs=("float32",)), st.sampled_from(TOPOLOGIES))
@settings(max_examples=200, deadline=None)
def test_nothing_is_predicted_to_be_quicker_than_its_busiest_line_or_cable(case: Case, topology: str) -> None:
    planned = forced(case, topology)
    if planned is None:
        return
    plan = as_message(planned, case.wanted)
    megabits = case.wanted.encoded_bytes * 8e-6 / max(case.wanted.count, 1)
    values = {pair: float(count) for pair, count in count_pair_values(plan).items()}
    least_s = max((asked * megabits / mbps for asked, mbps in lines_and_cables(case, plan, values)), default=0.0)
    assert planned.transfer_s >= least_s * (1 - 1e-9)
    assert planned.predicted_s >= least_s * planned.correction * (1 - 1e-9)
    # Where everything was measured nothing else limits the transfer: the two ways of counting agree.
    is_placed = all(
        case.network.places.get(peer, Place("", UNKNOWN_REGION)).region != UNKNOWN_REGION for peer in case.wanted.contributors
    )
    if is_placed and set(case.network.lines_mbps) == set(case.wanted.contributors) and not case.wanted.listeners:
        assert planned.transfer_s == pytest.approx(least_s, rel=1e-6)


@given(cases())
@settings(max_examples=200, deadline=None)
def test_the_order_of_contributors_changes_only_how_places_are_numbered(case: Case) -> None:
    rng = random.Random(case.seed)
    contributors = rng.sample(case.wanted.contributors, len(case.wanted.contributors))
    listeners = rng.sample(case.wanted.listeners, len(case.wanted.listeners))
    links = list(case.network.links.items())
    rng.shuffle(links)
    shuffled = dataclasses.replace(case.wanted, contributors=tuple(contributors), listeners=tuple(listeners))
    network = dataclasses.replace(
        case.network, links=dict(links), lines_mbps=dict(reversed(list(case.network.lines_mbps.items())))
    )
    one, other = plan_round(case.wanted, case.network), plan_round(shuffled, network)
    assert by_name(one, case.wanted.contributors) == by_name(other, tuple(contributors))
    assert dataclasses.replace(one, groups=(), spans=()) == dataclasses.replace(other, groups=(), spans=())
    again = plan_round(shuffled, case.network)
    assert encode(as_message(other, shuffled)) == encode(as_message(again, shuffled))


def by_name(planned: Planned, contributors: tuple[PeerId, ...]) -> tuple[Any, ...]:
    spans = [(s.owner, s.start, s.stop, [contributors[place] for place in s.carriers]) for s in planned.spans]
    return spans, [[contributors[place] for place in group] for group in planned.groups]


@given(cases())
@settings(max_examples=100, deadline=None)
def test_the_choice_is_the_quickest_or_nearly_and_never_barred(case: Case) -> None:
    planned = plan_round(case.wanted, case.network)
    allowed = {a.topology: a.predicted_s for a in planned.alternatives if not a.barred}
    assert planned.predicted_s == allowed[planned.topology]
    quickest_s = min(allowed.values())
    if planned.topology == case.wanted.previous:
        assert planned.predicted_s <= planner.HYSTERESIS * quickest_s
    else:
        assert planned.predicted_s == quickest_s
        if case.wanted.previous in allowed:
            assert allowed[case.wanted.previous] > planner.HYSTERESIS * quickest_s
    names = [a.topology for a in planned.alternatives]
    assert len(set(names)) == len(names)
    assert (STAR in names) == (len(case.wanted.contributors) > 1)
    assert (RING in names) == (len(case.wanted.contributors) > 2)


@given(cases())
@settings(max_examples=100, deadline=None)
def test_who_has_a_poor_line_for_its_region_carries_nothing(case: Case) -> None:
    planned = forced(case, HIERARCHICAL)
    if planned is None or set(case.network.lines_mbps) != set(case.wanted.contributors):
        return
    carrying = {case.wanted.contributors[place] for span in planned.spans for place in span.carriers}
    for _, members in planned.regions:
        lines = sorted(case.network.lines_mbps[peer] for peer in members)
        for peer in members:
            if case.network.lines_mbps[peer] < EDGE_SHARE / 1.5 * lines[(len(lines) - 1) // 2]:
                assert peer not in carrying


@given(st.integers(0, 1 << 32))
@settings(max_examples=100, deadline=None)
def test_a_hierarchy_takes_little_more_than_its_linear_programme_allows(seed: int) -> None:
    rng = random.Random(seed)
    peers = [PeerId(f"12D3KooW{number:03d}") for number in range(rng.randrange(3, 30))]
    labels = [f"r{number}" for number in range(rng.randrange(2, 6))]
    network = Network(
        places={peer: Place(peer, rng.choice(labels)) for peer in peers},
        lines_mbps={peer: quantise(10 ** rng.uniform(2, rng.uniform(2, 4))) for peer in peers},
        cables_mbps={(a, b): quantise(10 ** rng.uniform(1, 4)) for a in labels for b in labels if a != b},
    )
    measured = survey_ground(network, peers, ())
    ground = dataclasses.replace(measured, lines_mbps=measured.planned_mbps)
    draft = draft_hierarchy(ground, 10**8, 4e8)
    if draft is None:
        return
    regions = survey_regions(ground, 4e8 * 8e-6)
    _, least_s = share_regions(ground, regions, {pair: mbps / (4e8 * 8e-6) for pair, mbps in ground.cables_mbps.items()})
    transfer_s = forecast(draft, ground, 10**8, 4e8, "float32", str).transfer_s
    assert least_s * (1 - 1e-6) <= transfer_s <= 1.25 * least_s
