"""Measured links to spans: who reduces how much, and the seconds a round should take. Knows no clock and no socket.

Here the flat butterfly: every contributor reduces one span, as large as its measured bandwidth allows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ciuic_p2p.core.messages import Span
from ciuic_p2p.terms import UNKNOWN_REGION, PeerId

ALIGNMENT_VALUES = 256
"""Spans start on block borders of every codec."""

UNMEASURED_MBPS = 100.0
"""Assumed while nothing was measured; only patience depends on it then, since spans come out equal."""

LEAST_PATIENCE_S = 3.0
"""Below this a busy machine's scheduling would look like a fault."""

ALIKE = 1.4
"""Lines that differ by less from the middle one are planned as if they were like it: they differ by less than the noise."""

PATIENCE_FACTOR = 2.5
"""A round that takes this many times the predicted seconds without progress is looked into."""


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


@dataclass(frozen=True, slots=True)
class Butterfly:
    spans: tuple[Span, ...]
    predicted_s: float
    patience_s: float
    values_per_s: float
    """What one pair moves one way on the slowest line."""


def bandwidth_mbps(peer: PeerId, peers: Sequence[PeerId], links: Links) -> float:
    """What the peer's own line carries: the best goodput measured on any link it sends or receives on, quantised."""
    measured = [
        link.goodput_mbps
        for other in peers
        for link in (links.get((peer, other)), links.get((other, peer)))
        if other != peer and link is not None and link.goodput_mbps > 0
    ]
    if not measured:
        return UNMEASURED_MBPS
    return _quantise(max(measured))


def _quantise(mbps: float) -> float:
    """To quarter powers of two, so that noise does not move spans."""
    return float(2 ** (round(4 * math.log2(mbps)) / 4))


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


def share_by_bandwidth(size_bytes: float, rates_bps: Sequence[float]) -> tuple[list[float], float]:
    """The share of the tensor that each peer reduces, and the seconds of one direction.

    The smallest T with T >= S/b_i and sum clip((T b_i / S - 1) / (n - 2), 0, 1) >= 1 by bisection: peer i sends and
    receives S (1 - s_i) of others' spans and S s_i (n - 1) of its own. For two peers halves, T = S / min b.
    """
    n = len(rates_bps)
    if n == 1:
        return [1.0], 0.0
    if n == 2:
        return [0.5, 0.5], size_bytes * 8 / min(rates_bps)
    bits = max(size_bytes, 1.0) * 8

    def shares(seconds: float) -> list[float]:
        return [min(max((seconds * b / bits - 1) / (n - 2), 0.0), 1.0) for b in rates_bps]

    low = bits / min(rates_bps)
    high = low * n
    if sum(shares(low)) >= 1:
        high = low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(shares(middle)) >= 1 else (middle, high)
    found = shares(high)
    total = sum(found)
    return [share / total for share in found], high


def plan_butterfly(
    contributors: Sequence[PeerId],
    count: int,
    encoded_bytes: int,
    links: Links,
    lines_mbps: Mapping[PeerId, float],
    listeners: int = 0,
) -> Butterfly:
    """Spans in the order of `contributors`; the same inputs give the same bytes on every peer.

    encoded_bytes: the whole tensor under the round's codec, once: the mean of contributions and results.
    lines_mbps: what a peer's own line carries, where known. Each of the `listeners` is sent every result as well: that
    prolongs the round for all, for they share the same lines.
    """
    rates = [rate * 1e6 for rate in _rates_mbps(contributors, links, lines_mbps)]
    shares, seconds = share_by_bandwidth(encoded_bytes, rates)
    measured = [link for (a, b), link in links.items() if a in contributors and b in contributors and a != b]
    rtt_s = max((link.rtt_ms for link in measured), default=0.0) / 1000
    jitter_s = max((link.jitter_ms for link in measured), default=0.0) / 1000
    to_listeners_s = max(8 * encoded_bytes * share * listeners / rate for share, rate in zip(shares, rates, strict=True))
    predicted_s = seconds + to_listeners_s + 2 * rtt_s
    patience_s = max(LEAST_PATIENCE_S, PATIENCE_FACTOR * predicted_s + 6 * jitter_s)
    values_per_s = min(rates) / max(len(rates) - 1, 1) / 8 * count / max(encoded_bytes, 1)
    return Butterfly(_cut_spans(contributors, count, shares), predicted_s, patience_s, values_per_s)


def _rates_mbps(peers: Sequence[PeerId], links: Links, lines_mbps: Mapping[PeerId, float]) -> list[float]:
    """Of each peer's line. One that was not measured yet is taken for a good one: given much to do, it soon is.

    While none was, all are alike, as quick as the quickest pair: peers so near that no line is between them.
    """
    known = [lines_mbps[peer] for peer in peers if peer in lines_mbps]
    if known:
        middle = statistics.median(known)
        rates = [lines_mbps.get(peer, max(middle, UNMEASURED_MBPS)) for peer in peers]
        return [_quantise(middle if middle / ALIKE < rate < middle * ALIKE else rate) for rate in rates]
    return [max(bandwidth_mbps(peer, peers, links) for peer in peers)] * len(peers)


def _cut_spans(owners: Sequence[PeerId], count: int, shares: Sequence[float]) -> tuple[Span, ...]:
    spans, start, sum_of_shares = [], 0, 0.0
    for owner, share in zip(owners, shares, strict=True):
        sum_of_shares += share
        aligned = round(count * sum_of_shares / ALIGNMENT_VALUES) * ALIGNMENT_VALUES
        stop = count if owner == owners[-1] else min(max(aligned, start), count)
        spans.append(Span(owner=owner, start=start, stop=stop))
        start = stop
    return tuple(spans)
