"""core/trees.py: the ways that a plan's spans take."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.messages import HIERARCHICAL, RING, Plan, Span, decode, encode
from ciuic_p2p.core.trees import trees_of
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId, StateHash
from ciuic_p2p.testing.ways import in_a_ring, in_any_way, in_groups


def make_plan(members: int, term: int = 1) -> Plan:
    contributors = tuple(PeerId(name) for name in "abcdefghijkl"[:members])
    return Plan(
        run="run",
        epoch=3,
        term=term,
        base_hash=StateHash("0" * 64),
        contributors=contributors,
        listeners=(),
        spans=tuple(Span(owner=peer, start=256 * i, stop=256 * (i + 1)) for i, peer in enumerate(contributors)),
        count=256 * members,
        parameter_count=256 * members,
        part_values=1024,
        codec="int8",
        lossless_level=0,
        reason="",
        outer_learning_rate=0.7,
        outer_momentum=0.6,
        predicted_s=0.1,
        patience_s=3.0,
    )


def test_in_a_hierarchy_a_group_sends_to_its_carrier_and_the_carrier_to_the_owner():
    plan = dataclasses.replace(
        make_plan(4),
        topology=HIERARCHICAL,
        groups=((0, 1), (2, 3)),
        spans=(
            Span(owner=PeerId("a"), start=0, stop=512, carriers=(0, 3)),
            Span(owner=PeerId("d"), start=512, stop=1024, carriers=(1, 3)),
        ),
    )
    first, second = trees_of(plan)
    assert dict(first.edges()) == {"b": "a", "c": "d", "d": "a"}
    assert dict(second.edges()) == {"a": "b", "b": "d", "c": "d"}
    assert (first.inner(), second.inner()) == (["d"], ["b"])
    assert first.below(PeerId("d")) == ["d", "c"]


def test_in_a_ring_each_sends_to_the_next():
    first, *_ = trees_of(dataclasses.replace(make_plan(4), topology=RING, groups=((0, 2, 1, 3),)))
    assert dict(first.edges()) == {"c": "b", "b": "d", "d": "a"}


@given(members=st.integers(1, 12), term=st.integers(1, 1000))
@settings(max_examples=200, deadline=None)
def test_every_contribution_reaches_the_owner_on_one_way(members: int, term: int):
    plan = in_any_way(make_plan(members, term))
    assert decode(encode(plan)) == plan
    for span, tree in zip(plan.spans, trees_of(plan), strict=True):
        assert sorted(tree.below(span.owner)) == sorted(plan.contributors)  # none missing, none twice
        assert tree.parent_of(span.owner) is None
        for child, parent in tree.edges():
            assert child in tree.children_of(parent)
            assert tree.parent_of(child) == parent


@pytest.mark.parametrize(
    "spoiled",
    [
        {"topology": "mesh"},
        {"topology": RING, "groups": ((0, 1), (2, 3))},
        {"topology": RING, "groups": ((0, 1, 2),)},
        {"topology": RING, "groups": ((0, 1, 2, 2),)},
        {"groups": ((0, 1), (2, 3))},
        {"topology": HIERARCHICAL, "groups": ((0, 1), (1, 2, 3))},
        {"topology": HIERARCHICAL, "groups": ((0, 1), (2, 4))},
        {"topology": HIERARCHICAL, "groups": ((0, 1), (2, 3)), "carriers": (0,)},
        {"topology": HIERARCHICAL, "groups": ((0, 1), (2, 3)), "carriers": (0, 1)},
        {"topology": HIERARCHICAL, "groups": ((0, 1), (2, 3)), "carriers": (1, 2)},
        {"topology": HIERARCHICAL, "groups": ((0, 1), (2, 3)), "carriers": (0, 9)},
        {"carriers": (0, 2)},
    ],
)
def test_a_plan_in_which_a_contribution_would_get_lost_is_refused(spoiled: dict):
    plan = make_plan(4)
    carriers = spoiled.pop("carriers", None)
    good = in_groups(plan, 2) if spoiled.get("topology") == HIERARCHICAL else plan
    spans = good.spans if carriers is None else (dataclasses.replace(good.spans[0], carriers=carriers), *good.spans[1:])
    with pytest.raises(ValueError, match=r"group|ring|topology|carrier"):
        dataclasses.replace(good, spans=spans, **spoiled)


def test_a_peer_cannot_send_such_a_plan():
    plan = in_a_ring(make_plan(4))
    object.__setattr__(plan, "groups", ((0, 1, 2, 99),))
    with pytest.raises(MalformedMessage):
        decode(encode(plan))
