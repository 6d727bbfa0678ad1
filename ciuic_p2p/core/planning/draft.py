"""One way to do a round, before it is chosen: who owns and who carries what, by the numbers of the `Ground`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT_VALUES = 256
"""Spans start on block borders of every codec."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Becomes a span."""

    start: int
    stop: int
    owner: int
    carriers: tuple[int, ...] = ()
    """In a hierarchy a peer of each group."""

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Draft:
    topology: str
    pieces: tuple[Piece, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    """Peers. Hierarchical: who sums up together. Ring: the one group, in its order."""


def cut(count: int, shares: Sequence[float]) -> list[tuple[int, int]]:
    """[start, stop) for each share, one after the other over all of `count` values; shares sum to about 1."""
    edges, total, sum_of_shares = [0], sum(shares) or 1.0, 0.0
    last = max((place for place, share in enumerate(shares) if share > 0), default=0)
    for place, share in enumerate(shares):
        sum_of_shares += share / total
        aligned = round(count * sum_of_shares / ALIGNMENT_VALUES) * ALIGNMENT_VALUES
        edges.append(count if place >= last else min(max(aligned, edges[-1]), count))
    return list(itertools.pairwise(edges))
