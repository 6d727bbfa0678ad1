"""When the peers of one run save a snapshot, and when it is complete. Pure; knows neither arrays nor disks.

A state is identical on all its replicas at the boundary of an epoch, so each peer saves its own and nothing travels: whoever
wants a snapshot names an epoch, and all that come to hold it save it. Each says so, signed, with the hash of what it saved. A
snapshot is complete when more than half of those that were in the epoch's mean saved the same hash: what one peer's memory or
disk did to its own copy is then never taken for the run's state.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass, field

from ciuic_p2p.terms import PeerId, StateHash

MOST_REPORTED = 64
"""Epochs of which reports are remembered; newer ones push out the oldest."""

MOST_WANTED = 4
"""Epochs to come that are asked for at once: a peer that asks for all of them does not fill the disks."""


def quorum_of(members: int) -> int:
    """More than half; 1 for a peer alone."""
    return members // 2 + 1


@dataclass(slots=True)
class _Saved:
    state_hash: StateHash
    quorum: int


@dataclass(slots=True)
class Snapshotting:
    """One run on one peer."""

    me: PeerId
    every_s: float
    next_at_s: float
    _wanted: set[int] = field(default_factory=set)
    _saved: dict[int, _Saved] = field(default_factory=dict)
    _reports: dict[int, dict[PeerId, StateHash]] = field(default_factory=dict)

    def want(self, epoch: int, now: float) -> None:
        """Somebody asked for a snapshot of this epoch; that serves for the periodic one too."""
        if len(self._wanted) < MOST_WANTED:
            self._wanted.add(epoch)
        self.next_at_s = now + self.every_s

    def is_due(self, now: float) -> bool:
        return now >= self.next_at_s

    def take_wanted(self, epoch: int) -> bool:
        """Whether the state of this epoch, which is held now, is to be saved. Earlier ones will not come any more."""
        is_wanted = epoch in self._wanted and epoch not in self._saved
        self._wanted = {one for one in self._wanted if one > epoch}
        return is_wanted

    def saved(self, epoch: int, state_hash: StateHash, members: Collection[PeerId]) -> None:
        """Is on this peer's disk. members: who was in the mean that led to it."""
        self._saved[epoch] = _Saved(state_hash, quorum_of(len({self.me, *members})))
        self.reported(self.me, epoch, state_hash)

    def reported(self, peer: PeerId, epoch: int, state_hash: StateHash) -> None:
        """A peer says, signed, that it saved this."""
        self._reports.setdefault(epoch, {})[peer] = state_hash
        for old in sorted(self._reports)[:-MOST_REPORTED]:
            del self._reports[old]
            self._saved.pop(old, None)

    def witnesses(self, epoch: int) -> Set[PeerId]:
        """Who saved the same as this peer, itself included."""
        mine = self._saved.get(epoch)
        if mine is None:
            return set()
        return {peer for peer, state_hash in self._reports.get(epoch, {}).items() if state_hash == mine.state_hash}

    def is_complete(self, epoch: int) -> bool:
        mine = self._saved.get(epoch)
        return mine is not None and len(self.witnesses(epoch)) >= mine.quorum

    def is_disputed(self, epoch: int) -> bool:
        """A quorum saved something else: this peer's state is wrong."""
        mine = self._saved.get(epoch)
        if mine is None:
            return False
        others = [state_hash for state_hash in self._reports[epoch].values() if state_hash != mine.state_hash]
        return any(others.count(one) >= mine.quorum for one in set(others))
