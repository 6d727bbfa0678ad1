"""Trees of one level: every contributor sends straight to each owner. A star is one whose only owner is the best line."""

from __future__ import annotations

from collections.abc import Sequence

from ciuic_p2p.core.messages import BUTTERFLY, STAR
from ciuic_p2p.core.planning.draft import Draft, Piece, cut
from ciuic_p2p.core.planning.network import Ground


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


def draft_butterfly(ground: Ground, count: int, encoded_bytes: float) -> Draft:
    """Each owns as much as its line allows."""
    shares, _ = share_by_bandwidth(encoded_bytes, [mbps * 1e6 for mbps in ground.planned_mbps])
    pieces = (Piece(start, stop, owner) for owner, (start, stop) in enumerate(cut(count, shares)) if stop > start)
    return Draft(BUTTERFLY, tuple(pieces))


def draft_star(ground: Ground, count: int) -> Draft | None:
    """The best line owns all: a parameter server. None for a peer alone."""
    if len(ground.peers) < 2:
        return None
    best = max(range(len(ground.peers)), key=lambda peer: (ground.planned_mbps[peer], -peer))
    return Draft(STAR, (Piece(0, count, best),) if count else ())
