"""Ways that a plan may send its spans, whatever the network: to try the round machine on all of them."""

from __future__ import annotations

import dataclasses
import random

from ciuic_p2p.core.messages import HIERARCHICAL, RING, Plan


def in_a_ring(plan: Plan) -> Plan:
    """Each sends to the next in the order of the plan."""
    return dataclasses.replace(plan, topology=RING, groups=(tuple(range(len(plan.contributors))),))


def in_groups(plan: Plan, size: int) -> Plan:
    """Groups of `size` contributors by name, whose members take turns as carriers."""
    places = sorted(range(len(plan.contributors)), key=lambda place: plan.contributors[place])
    groups = tuple(tuple(places[i : i + size]) for i in range(0, len(places), size))
    spans = []
    for number, span in enumerate(plan.spans):
        owner = plan.contributors.index(span.owner)
        carriers = tuple(owner if owner in group else group[number % len(group)] for group in groups)
        spans.append(dataclasses.replace(span, carriers=carriers))
    return dataclasses.replace(plan, topology=HIERARCHICAL, groups=groups, spans=tuple(spans))


def in_any_way(plan: Plan) -> Plan:
    """One of all, by the plan's term: the next plan goes another way."""
    rng = random.Random(f"{plan.term} {plan.epoch}")  # noqa: S311 - a simulation wants a seed, not secrecy
    match rng.randrange(4):
        case 0:
            return plan
        case 1:
            return in_a_ring(plan)
        case _:
            return in_groups(plan, rng.randrange(1, 4))
