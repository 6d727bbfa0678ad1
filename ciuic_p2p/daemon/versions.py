"""The states of one run that this peer holds: the current one, and older ones while a newcomer takes them. Knows no network."""

from __future__ import annotations

from dataclasses import dataclass

from ciuic_p2p.tensors.codecs.base import Float32
from ciuic_p2p.tensors.outer import OuterOptimizer, OuterState
from ciuic_p2p.tensors.state import StateManifest
from ciuic_p2p.terms import StateHash

PIN_S = 60.0
"""An old version is kept this long after it was last asked for."""


@dataclass(frozen=True, slots=True)
class Version:
    """One epoch's state; its arrays are never written again."""

    state: OuterState
    manifest: StateManifest

    @classmethod
    def of(cls, state: OuterState, epoch: int, samples: int) -> Version:
        """Reads every value once, for the hash."""
        return cls(state, StateManifest.describe(state, epoch, samples))

    @property
    def epoch(self) -> int:
        return self.manifest.epoch

    @property
    def state_hash(self) -> StateHash:
        return self.manifest.state_hash

    @property
    def samples(self) -> int:
        return self.manifest.samples

    def stepped(self, optimizer: OuterOptimizer, mean: Float32, samples: int) -> Version:
        """The version after one outer step. mean: [count] float32. Raises RoundFailed when it would not be finite."""
        out = OuterState.empty(self.state.count, self.state.parameter_count)
        optimizer.step(self.state, mean, out)
        return Version.of(out, self.epoch + 1, self.samples + samples)


class Versions:
    """Used under its run's lock."""

    def __init__(self) -> None:
        self.current: Version | None = None
        self._pinned: dict[StateHash, tuple[Version, float]] = {}

    def find(self, epoch: int, state_hash: StateHash, now: float) -> Version | None:
        """The version, kept from now on for PIN_S even when the run moves on."""
        kept = self._pinned.get(state_hash)
        found = self.current if kept is None else kept[0]
        if found is None or (found.epoch, found.state_hash) != (epoch, state_hash):
            return None
        self._pinned[state_hash] = (found, now + PIN_S)
        return found

    def hold(self, version: Version, now: float) -> None:
        self.current = version
        self._pinned = {key: kept for key, kept in self._pinned.items() if kept[1] > now}
