"""Which links a peer measures and tells of when there are too many to measure all: its region's, and some to each other one.

The planner takes what was not measured from other pairs of the same regions (core/planning/network.py). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blake3 import blake3

from ciuic_p2p.terms import PeerId

MOST_NEAR = 16
"""Of its own region."""
MOST_FAR = 3
"""Of each other one: with 20 peers a region every peer is in about 3 others' samples."""
PROBING_SHARE = 0.01
"""Of a line, at most, for probes of goodput."""


def sample_peers(me: PeerId, region_of: Mapping[PeerId, str]) -> frozenset[PeerId]:
    """region_of: all peers that are known, `me` too. While they stay the same so does the choice; each peer has another one."""
    by_region: dict[str, list[PeerId]] = {}
    for peer in region_of:
        if peer != me:
            by_region.setdefault(region_of[peer], []).append(peer)
    here = region_of.get(me, "")
    return frozenset(
        peer for region, peers in by_region.items() for peer in _first(me, peers, MOST_NEAR if region == here else MOST_FAR)
    )


def _first(me: PeerId, peers: Iterable[PeerId], most: int) -> list[PeerId]:
    """By a hash of the pair, the same from both ends: who measures a link tells of it, and is told."""
    return sorted(peers, key=lambda peer: blake3("|".join(sorted((me, peer))).encode()).digest())[:most]


def probing_period_s(links: int, probe_bytes: int, line_mbps: float, least_s: float) -> float:
    """How long to wait before a link is timed again, so that all of them take PROBING_SHARE of the line at most."""
    return max(least_s, links * probe_bytes * 8e-6 / (PROBING_SHARE * line_mbps))
