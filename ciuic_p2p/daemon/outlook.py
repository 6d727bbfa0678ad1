"""What the planner would do now with a tensor of some size among the peers that are here, for `ciuic-peer plan`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ciuic_p2p.core.codec_choice import AUTO, Situation, Stage, choose_codec
from ciuic_p2p.core.messages import HIERARCHICAL, RING, STAR
from ciuic_p2p.core.planning.network import Network
from ciuic_p2p.core.planning.planner import Planned, RoundToPlan, plan_round
from ciuic_p2p.core.planning.suggestion import suggest_inner_steps
from ciuic_p2p.core.topology import crosses_regions, survey_links
from ciuic_p2p.errors import ConfigError
from ciuic_p2p.tensors.codecs.registry import all_codecs, reply_codec
from ciuic_p2p.terms import PeerId

LARGEST_BYTES = 1 << 38
"""Of float32: the largest tensor that a plan may be for."""

LONGEST_STEP_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. Raises ConfigError for what cannot be planned."""

    size_bytes: int
    """Of the model as float32."""
    step_s: float | None = None
    """Of one inner step."""

    def __post_init__(self) -> None:
        if (
            isinstance(self.size_bytes, bool)
            or not isinstance(self.size_bytes, int)
            or not 4 <= self.size_bytes <= LARGEST_BYTES
        ):
            raise ConfigError("a model to plan for has 4 bytes to 274 GB", "give --size as in 500MB")
        step_s = self.step_s
        if step_s is None:
            return
        if isinstance(step_s, bool) or not isinstance(step_s, int | float) or not 0 < step_s <= LONGEST_STEP_S:
            raise ConfigError("an inner step takes more than 0 s and no more than a million", "give --step-time as in 0.5s")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Question:
        """Of a local message or a web address."""
        return cls(size_bytes=options.get("size_bytes", 0), step_s=options.get("step_s"))


def foresee(question: Question, contributors: tuple[PeerId, ...], network: Network) -> dict[str, Any]:
    """As `ciuic-peer plan --json` prints it."""
    count = question.size_bytes // 4
    encoded = {c.name: (c.encoded_bytes(count) + reply_codec(c).encoded_bytes(count)) // 2 for c in all_codecs()}
    choice = choose_codec(
        Situation(
            policy=AUTO,
            stage=Stage.PSEUDO_GRADIENTS,
            count=count,
            encoded_bytes=encoded,
            links=survey_links(contributors, network.links, network.places),
            crosses_regions=crosses_regions(contributors, network.places),
        )
    )
    planned = plan_round(
        RoundToPlan(contributors=contributors, count=count, encoded_bytes=encoded[choice.codec], codec=choice.codec), network
    )
    names = {peer: network.places[peer].name if peer in network.places else peer[-8:] for peer in contributors}
    return {
        "size_bytes": question.size_bytes,
        "codec": choice.codec,
        "encoded_bytes": encoded[choice.codec],
        "topology": planned.topology,
        "predicted_s": round(planned.predicted_s, 4),
        "transfer_s": round(planned.transfer_s, 4),
        "patience_s": round(planned.patience_s, 4),
        "reason": f"{choice.reason}; {planned.reason}",
        "stages": _describe_stages(planned, contributors, names),
        "regions": _describe_regions(planned, contributors, count, names),
        "alternatives": [
            {
                "topology": alternative.topology,
                "predicted_s": round(alternative.predicted_s, 4) if math.isfinite(alternative.predicted_s) else None,
                "bound_by": alternative.bound_by,
                "chosen": alternative.topology == planned.topology,
                "barred": alternative.barred,
            }
            for alternative in planned.alternatives
        ],
        "inner_steps": _describe_suggestion(planned, question.step_s),
    }


def _describe_suggestion(planned: Planned, step_s: float | None) -> dict[str, Any] | None:
    if step_s is None:
        return None
    found = suggest_inner_steps(planned.predicted_s, step_s)
    return {"steps": found.inner_steps, "step_s": step_s, "round_share": round(found.share, 4), "advice": found.advice}


def _carriers(planned: Planned, contributors: tuple[PeerId, ...]) -> dict[PeerId, int]:
    """Values that each peer sums up, as owner or as its region's carrier."""
    summed: dict[PeerId, int] = {}
    for span in planned.spans:
        for peer in {span.owner, *(contributors[place] for place in span.carriers)}:
            summed[peer] = summed.get(peer, 0) + span.stop - span.start
    return summed


def _describe_regions(
    planned: Planned, contributors: tuple[PeerId, ...], count: int, names: Mapping[PeerId, str]
) -> list[dict[str, Any]]:
    owned = dict.fromkeys(contributors, 0)
    for span in planned.spans:
        owned[span.owner] += span.stop - span.start
    summed = _carriers(planned, contributors)
    return [
        {
            "region": region,
            "share": round(sum(owned[peer] for peer in members) / count, 4),
            "peers": [
                {
                    "name": names[peer],
                    "owns": round(owned[peer] / count, 4),
                    "carries": round(summed.get(peer, 0) / count, 4),
                }
                for peer in members
            ],
        }
        for region, members in planned.regions
    ]


def _describe_stages(planned: Planned, contributors: tuple[PeerId, ...], names: Mapping[PeerId, str]) -> list[str]:
    """What happens, one step after the other."""
    if len(contributors) == 1:
        return ["nobody else is here: nothing travels"]
    owners = {span.owner for span in planned.spans}
    if planned.topology == STAR:
        return [f"all send to {names[min(owners)]}", "it sends the average to all"] if owners else []
    if planned.topology == RING:
        way = " → ".join(names[contributors[place]] for place in planned.groups[0])
        return [f"sums go around: {way}", "averages come back the same way"]
    if planned.topology != HIERARCHICAL:
        return [f"each of {len(contributors)} sends to each of {len(owners)} owners", "owners send the averages to all"]
    carriers = _carriers(planned, contributors)
    owning = [region for region, members in planned.regions if owners & set(members)]
    within = [
        f"within {region} {len(members)} send to {sum(peer in carriers for peer in members)} carriers"
        for region, members in planned.regions
        if len(members) > 1
    ]
    return [
        *within,
        f"carriers of {', '.join(region for region, _ in planned.regions)} send their sums to owners in {', '.join(owning)}",
        "averages come back the same way",
    ]
