"""Version vectors: who had seen what when it wrote. Knows no objects and no clock.

Parker et al., Detection of Mutual Inconsistency in Distributed Systems, 1983; the order is Lamport's happened-before
(Time, Clocks, and the Ordering of Events, 1978). Each peer counts its own writes, so that no clock has to be right.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ciuic_p2p.core.wire import LARGEST_INTEGER
from ciuic_p2p.terms import PeerId

MOST_AUTHORS = 1024
"""Of one object. Peer ids stay, so that only as many peers can ever write it."""

LONGEST_PEER = 60
"""Characters of a peer id; one has 52."""


@dataclass(frozen=True, slots=True)
class VersionVector:
    """Raises ValueError at construction for counters that are not in their one form: sorted by peer, each above zero."""

    counters: tuple[tuple[PeerId, int], ...] = ()

    def __post_init__(self) -> None:
        peers = [peer for peer, _ in self.counters]
        if len(peers) > MOST_AUTHORS:
            raise ValueError(f"a version vector of {len(peers)} authors, at most {MOST_AUTHORS} can write one object")
        if any(len(peer) > LONGEST_PEER for peer in peers):
            raise ValueError("a version vector with something that is no peer id")
        if any(first >= second for first, second in itertools.pairwise(peers)):
            raise ValueError("a version vector whose peers are not sorted, or not different")
        if any(not 0 < count <= LARGEST_INTEGER for _, count in self.counters):
            raise ValueError(f"a version vector with a counter that is not from 1 to {LARGEST_INTEGER}")

    def count(self, peer: PeerId) -> int:
        return dict(self.counters).get(peer, 0)

    def writes(self) -> int:
        """All that led here. A vector that has seen another one, and more, has more of them."""
        return sum(count for _, count in self.counters)

    def has_seen(self, other: VersionVector) -> bool:
        """Everything that `other` had; so has one that equals it."""
        mine = dict(self.counters)
        return all(mine.get(peer, 0) >= count for peer, count in other.counters)

    def supersedes(self, other: VersionVector) -> bool:
        return self != other and self.has_seen(other)

    def is_concurrent_with(self, other: VersionVector) -> bool:
        return not self.has_seen(other) and not other.has_seen(self)

    def merge(self, other: VersionVector) -> VersionVector:
        """The least that has seen both."""
        merged = dict(self.counters)
        for peer, count in other.counters:
            merged[peer] = max(merged.get(peer, 0), count)
        return VersionVector(tuple(sorted(merged.items())))

    def increment(self, author: PeerId) -> VersionVector:
        """Of what `author` writes next. Raises ValueError when one author too many writes, or one too often."""
        return VersionVector(tuple(sorted({**dict(self.counters), author: self.count(author) + 1}.items())))
