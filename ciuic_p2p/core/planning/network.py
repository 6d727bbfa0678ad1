"""What was measured of a network, and what the planner takes it for where it was not. Knows no topology.

Measured: lines, cables, round trips. A line that was not is taken for a good one; a cable that was not is taken for one that
carries whatever its peers' lines do; a round trip that was not for that of other pairs of the same regions, and before there
is any of those for what geography says.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

from ciuic_p2p.core.messages import LARGEST_MBPS, LEAST_LINE_MBPS
from ciuic_p2p.core.planning.geography import assume_rtt_ms
from ciuic_p2p.core.topology import Link, Links, Places
from ciuic_p2p.terms import UNKNOWN_REGION, PeerId

UNMEASURED_MBPS = 100.0
"""A line's while nothing was measured; only patience depends on it then, since spans come out equal."""

ALIKE = 1.4
"""Lines that differ by less from the middle one are planned as if they were like it: they differ by less than the noise."""

MOST_REGIONS = 64
"""Of more labels those of the fewest peers count as none: what is planned by pairs of regions must not take long."""

LONGEST_MS = 10_000.0
"""Round trips and jitter beyond are taken for that: what a member says of its links must not make all wait without end."""

MOST_LINKS_READ = 1 << 18
"""Of a larger swarm's links as many are looked at, chosen by the peers' ids: the rest says the same of regions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """As measured. What is absent was not."""

    links: Links = field(default_factory=dict)
    """(from, to) → link."""
    places: Places = field(default_factory=dict)
    lines_mbps: Mapping[PeerId, float] = field(default_factory=dict)
    """Of each peer's own line, the slower direction; greater than 0."""
    cables_mbps: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(region, region) → what all peers of the first get to the second together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the planner plans on: peers and regions by number, in the order of their names."""

    peers: tuple[PeerId, ...]
    """The contributors, sorted."""
    regions: tuple[str, ...]
    region_of: tuple[int, ...]
    """Of each peer."""
    members: tuple[tuple[int, ...], ...]
    """Peers of each region; a region of listeners only has none."""
    listeners: tuple[int, ...]
    """How many are in each region."""
    lines_mbps: tuple[float, ...]
    """Of each peer, as measured: what seconds are predicted from."""
    planned_mbps: tuple[float, ...]
    """The same without the noise: what shares are made from, so that they stay."""
    cables_mbps: Mapping[tuple[int, int], float]
    """(region, region) → capacity from the first to the second, where that was measured."""
    pairs_mbps: Mapping[tuple[int, int], float]
    """(region, region), the lower number first → the middle goodput of their pairs; only while no line was measured."""
    rtt_ms: Mapping[tuple[int, int], float]
    """(region, region), the lower number first → the longest round trip measured, or else assumed."""
    jitter_ms: float

    @property
    def listener_count(self) -> int:
        return sum(self.listeners)

    def rtt_between_ms(self, one: int, other: int) -> float:
        """Of two regions."""
        return self.rtt_ms[(one, other) if one <= other else (other, one)]


def quantise(mbps: float) -> float:
    """To quarter powers of two, so that noise does not move spans."""
    return float(2 ** (round(4 * math.log2(mbps)) / 4))


def survey_ground(network: Network, contributors: Collection[PeerId], listeners: Collection[PeerId]) -> Ground:
    """The same for the same measurements, in whatever order peers and links are given."""
    peers = tuple(sorted(contributors))
    regions_of = _find_regions(network, peers)
    listening = [_known_region(network.places, peer) or UNKNOWN_REGION for peer in listeners]
    large = _largest_regions([*regions_of, *listening])
    regions_of = [region if region in large else UNKNOWN_REGION for region in regions_of]
    listening = [region if region in large else UNKNOWN_REGION for region in listening]
    regions = tuple(sorted({*regions_of, *listening}))
    number = {region: index for index, region in enumerate(regions)}
    region_of = tuple(number[region] for region in regions_of)
    among = _sort_links(network.links, peers, region_of)
    lines = _estimate_lines(peers, network.lines_mbps, among)
    is_measured = any(peer in network.lines_mbps for peer in peers)
    members: list[list[int]] = [[] for _ in regions]
    for peer, region in enumerate(region_of):
        members[region].append(peer)
    return Ground(
        peers=peers,
        regions=regions,
        region_of=region_of,
        members=tuple(map(tuple, members)),
        listeners=tuple(listening.count(region) for region in regions),
        lines_mbps=tuple(lines),
        planned_mbps=tuple(_without_noise(lines)),
        cables_mbps={
            (number[one], number[other]): _bound_mbps(mbps)
            for (one, other), mbps in sorted(network.cables_mbps.items())
            if one in number and other in number and one != other and mbps > 0
        },
        pairs_mbps={} if is_measured else _middle_goodputs(among),
        rtt_ms=_estimate_rtts(regions, among),
        jitter_ms=_bound_ms(max((link.jitter_ms for links in among.values() for link in links), default=0.0)),
    )


# -- regions -----------------------------------------------------------------------------------------------------------


def _known_region(places: Places, peer: PeerId) -> str:
    place = places.get(peer)
    return place.region if place is not None and place.region != UNKNOWN_REGION else ""


def _find_regions(network: Network, peers: Sequence[PeerId]) -> list[str]:
    """Of each peer. One that names none is counted to where the peer is that it reaches soonest."""
    named = {peer: region for peer in peers if (region := _known_region(network.places, peer))}
    return [named.get(peer) or _nearest_region(network.links, peer, named) for peer in peers]


def _nearest_region(links: Links, peer: PeerId, named: Mapping[PeerId, str]) -> str:
    trips = [
        (link.rtt_ms, region)
        for other, region in named.items()
        for link in (links.get((peer, other)), links.get((other, peer)))
        if link is not None and link.rtt_ms > 0
    ]
    return min(trips)[1] if trips else UNKNOWN_REGION


def _largest_regions(labels: Sequence[str]) -> frozenset[str]:
    counts = Counter(labels)
    return frozenset(sorted(counts, key=lambda region: (-counts[region], region))[:MOST_REGIONS])


# -- links -------------------------------------------------------------------------------------------------------------

_Among = dict[tuple[int, int], list[Link]]
"""(region, region), the lower number first → the links between their peers."""


def _sort_links(links: Links, peers: Sequence[PeerId], region_of: Sequence[int]) -> _Among:
    found: _Among = {}
    where = dict(zip(peers, region_of, strict=True))
    for (source, target), link in _read_links(links, peers):
        one, other = where.get(source), where.get(target)
        if one is not None and other is not None and source != target:
            found.setdefault((one, other) if one <= other else (other, one), []).append(link)
    return found


def _read_links(links: Links, peers: Sequence[PeerId]) -> Iterator[tuple[tuple[PeerId, PeerId], Link]]:
    if len(links) <= MOST_LINKS_READ:
        yield from links.items()
        return
    count = len(peers)
    each = max(MOST_LINKS_READ // count, 1)
    for place, source in enumerate(peers):
        for turn in range(min(each, count)):
            pair = (source, peers[(place + 1 + turn * count // each) % count])
            if pair in links:
                yield pair, links[pair]


def _bound_ms(measured_ms: float) -> float:
    return min(max(measured_ms, 0.0), LONGEST_MS)


def _bound_mbps(measured_mbps: float) -> float:
    return min(max(measured_mbps, LEAST_LINE_MBPS), LARGEST_MBPS)


def _estimate_rtts(regions: Sequence[str], among: _Among) -> dict[tuple[int, int], float]:
    rtts = {}
    for one, other in combinations_with_replacement(range(len(regions)), 2):
        longest = _bound_ms(max((link.rtt_ms for link in among.get((one, other), ())), default=0.0))
        rtts[one, other] = longest or assume_rtt_ms(regions[one], regions[other])
    return rtts


def _middle_goodputs(among: _Among) -> dict[tuple[int, int], float]:
    goodputs = {pair: [link.goodput_mbps for link in links if link.goodput_mbps > 0] for pair, links in among.items()}
    return {pair: _bound_mbps(statistics.median(measured)) for pair, measured in goodputs.items() if measured}


# -- lines -------------------------------------------------------------------------------------------------------------


def _estimate_lines(peers: Sequence[PeerId], lines_mbps: Mapping[PeerId, float], among: _Among) -> list[float]:
    """One that was not measured yet is taken for a good one: given much to do, it soon is.

    While none was, all are alike, as quick as the quickest pair: peers so near that no line is between them.
    """
    known = [lines_mbps[peer] for peer in peers if peer in lines_mbps]
    if known:
        good_mbps = max(statistics.median(known), UNMEASURED_MBPS)
        return [lines_mbps.get(peer, good_mbps) for peer in peers]
    quickest_mbps = max((link.goodput_mbps for links in among.values() for link in links), default=0.0)
    return [_bound_mbps(quickest_mbps) if quickest_mbps > 0 else UNMEASURED_MBPS] * len(peers)


def _without_noise(lines_mbps: Sequence[float]) -> list[float]:
    middle = statistics.median(lines_mbps)
    return [quantise(middle if middle / ALIKE < mbps < middle * ALIKE else mbps) for mbps in lines_mbps]
