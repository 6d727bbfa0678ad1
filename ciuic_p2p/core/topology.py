"""What is known of peers and of the links between them: measurements, places, and what matters of them for all. No clock.

What becomes of it is `core/planning/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ciuic_p2p.terms import UNKNOWN_REGION, PeerId

LEAST_PATIENCE_S = 3.0
"""Below this a busy machine's scheduling would look like a fault."""


@dataclass(frozen=True, slots=True)
class Link:
    """One measured direction. 0 Mbit/s or 0 ms: not measured."""

    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    goodput_mbps: float = 0.0


Links = Mapping[tuple[PeerId, PeerId], Link]


@dataclass(frozen=True, slots=True)
class Place:
    """What a peer's record says of it."""

    name: str
    region: str = UNKNOWN_REGION


Places = Mapping[PeerId, Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSurvey:
    """The links among some peers, as far as they matter to a choice for all of them."""

    slowest_mbps: float = 0.0
    """Goodput; 0 while none was measured."""
    slowest_way: str = ""
    """For people, such as "from node-us to node-eu"."""
    is_complete: bool = False
    """Each pair was measured in one direction at least."""


def survey_links(peers: Collection[PeerId], links: Links, places: Places) -> LinkSurvey:
    """The slowest measured direction between any two of `peers`."""
    among = set(peers)
    measured = [
        (link.goodput_mbps, source, target)
        for (source, target), link in links.items()
        if source in among and target in among and source != target and link.goodput_mbps > 0
    ]
    if not measured:
        return LinkSurvey()
    slowest_mbps, source, target = min(measured)
    pairs = {frozenset((source, target)) for _, source, target in measured}
    return LinkSurvey(
        slowest_mbps=slowest_mbps,
        slowest_way=f"from {_name(source, places)} to {_name(target, places)}",
        is_complete=len(pairs) == len(among) * (len(among) - 1) // 2,
    )


def crosses_regions(peers: Collection[PeerId], places: Places) -> bool:
    """Whether two of them are known to be in different regions."""
    regions = {places[peer].region for peer in peers if peer in places}
    return len(regions - {"", UNKNOWN_REGION}) > 1


def _name(peer: PeerId, places: Places) -> str:
    return places[peer].name if peer in places else peer[-8:]
