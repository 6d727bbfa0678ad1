"""Who leads a round: the member with the lowest hash leads, the next one succeeds it. Knows no liveness."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from blake3 import blake3

from ciuic_p2p.terms import PeerId

_TIE_BITS = 16


@functools.lru_cache(maxsize=1 << 13)
def _rank(run: str, epoch: int, peer: PeerId) -> bytes:
    return blake3(f"ciuic succession\0{run}\0{epoch}\0{peer}".encode()).digest()


def order_of_succession(run: str, epoch: int, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """The same order on every peer, another one each epoch, so that leading costs everyone the same."""
    return tuple(sorted(peers, key=lambda peer: (_rank(run, epoch, peer), peer)))


def term_of(counter: int, run: str, epoch: int, leader: PeerId) -> int:
    """A 32-bit term: higher counters win, then the better rank; no two leaders of an epoch share one (Paxos ballots:
    Lamport, Paxos Made Simple, 2001, section 2.4). Raises ValueError past 65,535 terms of one epoch."""
    if not 0 < counter < 1 << _TIE_BITS:
        raise ValueError(f"term {counter} of one epoch")
    rank = int.from_bytes(_rank(run, epoch, leader)[:2], "big")
    return (counter << _TIE_BITS) | ((1 << _TIE_BITS) - 1 - rank)


def next_counter(term: int) -> int:
    """The counter of the first term above `term`."""
    return (term >> _TIE_BITS) + 1
