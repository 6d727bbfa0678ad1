"""Which topology a round takes: drafts each one, predicts its seconds, and takes the quickest. The planner's entry.

What was in use before stays until another one is predicted to be quicker by HYSTERESIS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ciuic_p2p.core.codec_choice import AUTO
from ciuic_p2p.core.messages import BUTTERFLY, HIERARCHICAL, RING, STAR, Span
from ciuic_p2p.core.planning import gossip
from ciuic_p2p.core.planning.butterfly import draft_butterfly, draft_star
from ciuic_p2p.core.planning.correction import Correction
from ciuic_p2p.core.planning.cost import Forecast, forecast
from ciuic_p2p.core.planning.draft import Draft
from ciuic_p2p.core.planning.hierarchy import draft_hierarchy
from ciuic_p2p.core.planning.network import Ground, Network, survey_ground
from ciuic_p2p.core.planning.ring import draft_ring
from ciuic_p2p.core.topology import LEAST_PATIENCE_S
from ciuic_p2p.terms import PeerId

HYSTERESIS = 1.15
"""What is in use stays until another topology is predicted to be quicker by this factor."""

PATIENCE_FACTOR = 2.5
"""A round that takes this many times the predicted seconds without progress is looked into."""

WITHOUT_LOSS = frozenset(("float32", "float16", "bfloat16"))
"""Codecs that may encode what was summed up once more at each peer of a ring."""

WITH_RESIDUAL = frozenset(("onebit", "topk"))
"""Codecs whose loss only the sender's residual makes good: a carrier has none for what it sums up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundToPlan:
    """What is to be averaged, by whom."""

    contributors: tuple[PeerId, ...]
    """In the order in which the plan will name them; the draft does not depend on it."""
    listeners: tuple[PeerId, ...] = ()
    count: int
    """Values of the whole tensor."""
    encoded_bytes: float
    """Of the whole tensor under the round's codec, once: the mean of contributions and results."""
    codec: str
    wanted: str = AUTO
    """The topology that the user wants, where it is possible; AUTO: the quickest."""
    previous: str = BUTTERFLY
    """The topology of the plan before."""
    correction: Correction = field(default_factory=Correction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One topology, and what is predicted of it."""

    topology: str
    predicted_s: float
    """Corrected by experience."""
    bound_by: str
    """What takes longest, such as "the cable from us to as"."""
    barred: str = ""
    """Why it is never chosen here; empty where it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the leader puts into its plan, and why."""

    topology: str
    groups: tuple[tuple[int, ...], ...]
    """Places of contributors, as in `Plan.groups`."""
    spans: tuple[Span, ...]
    predicted_s: float
    """Corrected by experience."""
    correction: float
    """What the model's own seconds were multiplied by."""
    transfer_s: float
    """In which lines and cables can carry it all; rates are planned by it."""
    patience_s: float
    values_per_s: float
    """What the slowest pair moves one way; what parts are cut by."""
    alternatives: tuple[Alternative, ...]
    """All of them, the chosen one too, the quickest first."""
    regions: tuple[tuple[str, tuple[PeerId, ...]], ...]
    """(region, its contributors), as they were planned for."""
    reason: str
    """For people."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    draft: Draft
    expected: Forecast
    predicted_s: float
    barred: str


def plan_round(wanted: RoundToPlan, network: Network) -> Planned:
    """The same for the same measurements, whatever the order of contributors, but for how places are numbered."""
    ground = survey_ground(network, wanted.contributors, wanted.listeners)

    def name_of(peer: int) -> str:
        place = network.places.get(ground.peers[peer])
        return place.name if place is not None else ground.peers[peer][-8:]

    candidates = _draft_all(wanted, ground, name_of)
    chosen = _choose(candidates, wanted)
    alternatives = _list_alternatives(candidates, wanted, ground)
    predicted_s = chosen.predicted_s
    return Planned(
        topology=chosen.draft.topology,
        groups=_place_groups(chosen.draft, ground, wanted.contributors),
        spans=_place_spans(chosen.draft, ground, wanted.contributors),
        predicted_s=predicted_s,
        correction=wanted.correction.factor(chosen.draft.topology),
        transfer_s=chosen.expected.transfer_s,
        patience_s=max(LEAST_PATIENCE_S, PATIENCE_FACTOR * predicted_s + 6 * ground.jitter_ms / 1000),
        values_per_s=chosen.expected.values_per_s,
        alternatives=alternatives,
        regions=tuple(
            (region, tuple(ground.peers[peer] for peer in members))
            for region, members in zip(ground.regions, ground.members, strict=True)
            if members
        ),
        reason=_explain(chosen, candidates, wanted.wanted),
    )


def _choose(candidates: Sequence[_Candidate], round_: RoundToPlan) -> _Candidate:
    """What the user wants, if that may be; the quickest of those that may, unless the one before is nearly as quick."""
    allowed = [candidate for candidate in candidates if not candidate.barred]
    asked_for = [candidate for candidate in allowed if candidate.draft.topology == round_.wanted]
    if asked_for:
        return asked_for[0]
    quickest = min(allowed, key=lambda candidate: candidate.predicted_s)
    held = next((candidate for candidate in allowed if candidate.draft.topology == round_.previous), quickest)
    return held if held.predicted_s <= HYSTERESIS * quickest.predicted_s else quickest


def _draft_all(wanted: RoundToPlan, ground: Ground, name_of: Callable[[int], str]) -> list[_Candidate]:
    count, encoded_bytes = wanted.count, wanted.encoded_bytes
    drafts = [
        draft_butterfly(ground, count, encoded_bytes),
        draft_star(ground, count),
        draft_hierarchy(ground, count, encoded_bytes),
        draft_ring(ground, count),
    ]
    candidates = []
    for draft in filter(None, drafts):
        expected = forecast(draft, ground, wanted.count, wanted.encoded_bytes, wanted.codec, name_of)
        predicted_s = expected.seconds * wanted.correction.factor(draft.topology)
        candidates.append(_Candidate(draft, expected, predicted_s, _bar(draft.topology, wanted.codec)))
    return candidates


def _bar(topology: str, codec: str) -> str:
    """Why this topology is out of the question under that codec; empty when it is not."""
    if topology == RING and codec not in WITHOUT_LOSS:
        return f"each hop of a ring would encode the sum under {codec} anew"
    if topology == HIERARCHICAL and codec in WITH_RESIDUAL:
        return f"a carrier has no residual for what {codec} leaves out of its sum"
    return ""


# -- by name -----------------------------------------------------------------------------------------------------------


def _place_groups(draft: Draft, ground: Ground, contributors: Sequence[PeerId]) -> tuple[tuple[int, ...], ...]:
    place = {peer: number for number, peer in enumerate(contributors)}
    return tuple(tuple(place[ground.peers[peer]] for peer in group) for group in draft.groups)


def _place_spans(draft: Draft, ground: Ground, contributors: Sequence[PeerId]) -> tuple[Span, ...]:
    place = {peer: number for number, peer in enumerate(contributors)}
    places = [place[peer] for peer in ground.peers]
    return tuple(
        Span(
            owner=ground.peers[piece.owner],
            start=piece.start,
            stop=piece.stop,
            carriers=tuple(places[peer] for peer in piece.carriers),
        )
        for piece in draft.pieces
    )


# -- for people --------------------------------------------------------------------------------------------------------


def _list_alternatives(candidates: Sequence[_Candidate], wanted: RoundToPlan, ground: Ground) -> tuple[Alternative, ...]:
    found = [
        Alternative(
            topology=candidate.draft.topology,
            predicted_s=candidate.predicted_s,
            bound_by=candidate.expected.bound_by,
            barred=candidate.barred,
        )
        for candidate in candidates
    ]
    if len(ground.peers) > 3:
        found.append(_describe_gossip(candidates[0].expected, wanted, ground))
    return tuple(sorted(found, key=lambda alternative: alternative.predicted_s))


def _describe_gossip(direct: Forecast, wanted: RoundToPlan, ground: Ground) -> Alternative:
    grid = gossip.choose_grid(len(ground.peers))
    transfer_s = gossip.predict_transfer_s(ground, wanted.encoded_bytes)
    return Alternative(
        topology=gossip.GOSSIP,
        predicted_s=max(transfer_s, direct.compute_s / len(grid)) + direct.latency_s,
        bound_by="its groups' lines and cables",
        barred=f"no round averages all; on the grid {' × '.join(map(str, grid))} values take {len(grid)} rounds or more to mix",
    )


def _explain(chosen: _Candidate, candidates: Sequence[_Candidate], wanted: str) -> str:
    topology, expected = chosen.draft.topology, chosen.expected
    others = [c for c in candidates if c is not chosen and not c.barred and c.draft.topology != STAR]
    if topology == wanted:
        return f"{topology}: asked for by the trainer; bound by {expected.bound_by}"
    if not others or chosen.predicted_s <= 0:
        return f"{topology}: there is nothing else to choose; bound by {expected.bound_by}"
    other = min(others, key=lambda candidate: candidate.predicted_s)
    gain = other.predicted_s / chosen.predicted_s
    if gain >= 1:
        says = f"{topology} is {gain:.2f} times as quick as {other.draft.topology}"
    else:
        says = f"{other.draft.topology} is {1 / gain:.2f} times as quick as {topology}, which stays up to {HYSTERESIS}"
    return f"{says}; bound by {expected.bound_by}"
