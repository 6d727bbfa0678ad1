"""The states of one run that this peer holds: the current one, and older ones while a newcomer takes them. Knows no network."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from ciuic_p2p.tensors.codecs.base import Float32
from ciuic_p2p.tensors.outer import OuterOptimizer, OuterState
from ciuic_p2p.tensors.state import StateManifest
from ciuic_p2p.terms import StateHash

PIN_S = 12.0
"""An old version is kept this long after it was last asked for, and while pieces of it are on their way: a newcomer that
lacks some asks again after 8 s (fetching.py)."""


@dataclass(frozen=True, slots=True)
class Version:
    """One epoch's state; its arrays are written again only by `stepped(in_place=True)`."""

    state: OuterState
    manifest: StateManifest

    @classmethod
    def of(cls, state: OuterState, epoch: int, samples: int, ledgers: bytes = b"") -> Version:
        """Reads every value once, for the hash."""
        return cls(state, StateManifest.describe(state, epoch, samples, ledgers))

    @property
    def epoch(self) -> int:
        return self.manifest.epoch

    @property
    def state_hash(self) -> StateHash:
        return self.manifest.state_hash

    @property
    def samples(self) -> int:
        return self.manifest.samples

    @property
    def ledgers(self) -> bytes:
        return self.manifest.ledgers

    def stepped(
        self, optimizer: OuterOptimizer, mean: Float32, samples: int, *, ledgers: bytes = b"", in_place: bool = False
    ) -> Version:
        """The version after one outer step. mean: [count] float32. Raises RoundFailed when it would not be finite.

        in_place: this version's arrays become the new one's, where that is sure to succeed; nobody may read them any more.
        """
        reuse = in_place and optimizer.cannot_overflow(self.state, mean)
        out = self.state if reuse else OuterState.empty(self.state.count, self.state.parameter_count)
        optimizer.step(self.state, mean, out)
        return Version.of(out, self.epoch + 1, self.samples + samples, ledgers)


class Loan:
    """Somebody reads a version's arrays; ends when nothing refers to it any more."""

    __slots__ = ("__weakref__", "version")

    def __init__(self, version: Version) -> None:
        self.version = version


class Versions:
    """Used under its run's lock."""

    def __init__(self) -> None:
        self.current: Version | None = None
        self._pinned: dict[StateHash, tuple[Version, float]] = {}
        self._loans: weakref.WeakSet[Loan] = weakref.WeakSet()

    def find(self, epoch: int, state_hash: StateHash, now: float) -> Loan | None:
        """The version, kept from now on for PIN_S even when the run moves on, and as long as the loan lives."""
        kept = self._pinned.get(state_hash)
        found = self.current if kept is None else kept[0]
        if found is None or (found.epoch, found.state_hash) != (epoch, state_hash):
            return None
        self._pinned[state_hash] = (found, now + PIN_S)
        loan = Loan(found)
        self._loans.add(loan)
        return loan

    def lend_current(self) -> Loan | None:
        """What is held now, as long as the loan lives and no longer."""
        if self.current is None:
            return None
        loan = Loan(self.current)
        self._loans.add(loan)
        return loan

    def hold(self, version: Version, now: float) -> None:
        self.current = version
        self._drop_unwanted(now)

    def give_up_current(self, now: float) -> bool:
        """Whether its arrays may be written to: nobody was lent it lately. From then on until `hold` there is no version."""
        self._drop_unwanted(now)
        version = self.current
        if version is None or version.state_hash in self._pinned or any(loan.version is version for loan in self._loans):
            return False
        self.current = None
        return True

    def _drop_unwanted(self, now: float) -> None:
        lent = {id(loan.version) for loan in self._loans}
        self._pinned = {key: kept for key, kept in self._pinned.items() if kept[1] > now or id(kept[0]) in lent}
