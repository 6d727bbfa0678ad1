"""The outer optimiser's step on flat float32 arrays, bit-identical on every replica. Knows neither rounds nor peers.

Every line is one IEEE 754 operation for each value, in a fixed order, rounded to float32, and none is fused with the
next: numpy runs each to its end. So the same arrays give the same bits on every machine.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from ciuic_p2p.errors import ConfigError, RoundFailed
from ciuic_p2p.tensors.tiles import TILE_VALUES, Float32, is_finite, tiles

_SMALL = np.float32(2.0**120)
"""With η ≤ 2 and μ < 1 a step from values below it stays below 2¹²⁴."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterState:
    """What a step reads or writes; the arrays belong to the caller."""

    anchor: Float32  # [count] float32
    momentum: Float32  # [parameter_count] float32, parameter_count ≤ count

    @classmethod
    def empty(cls, count: int, parameter_count: int) -> OuterState:
        """Arrays of these sizes whose content is not set."""
        return cls(anchor=np.empty(count, np.float32), momentum=np.empty(parameter_count, np.float32))

    @property
    def count(self) -> int:
        """Values of the whole flat array."""
        return len(self.anchor)

    @property
    def size_bytes(self) -> int:
        return self.anchor.nbytes + self.momentum.nbytes

    @property
    def parameter_count(self) -> int:
        """How many of them, from the front, are parameters; the others are averaged buffers."""
        return len(self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptimizer:
    """Nesterov momentum on the mean pseudo-gradient (DiLoCo, arXiv 2311.08105, algorithm 1).

    Raises ConfigError when a setting is out of range.
    """

    learning_rate: float
    """η, 0 < η ≤ 2"""
    momentum: float
    """μ, 0 ≤ μ < 1"""

    def __post_init__(self) -> None:
        if not 0.0 < self.learning_rate <= 2.0:
            raise ConfigError(f"an outer learning rate of {self.learning_rate}", "choose one above 0 and at most 2")
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"an outer momentum of {self.momentum}", "choose one from 0 to below 1")

    def step(self, state: OuterState, mean: Float32, out: OuterState) -> None:
        """v = μ v + r;  θ −= η (r + μ v)  for the parameters;  θ −= r  for the buffers.

        mean: [count] float32, r, the decoded mean pseudo-gradient. `out` may be `state` itself, for a step in place, or hold
        either of its arrays; arrays that are not shared are left as they were.
        Raises RoundFailed when the new state would not be finite; `out` is then undefined.
        """
        if not (state.count == len(mean) == out.count and state.parameter_count == out.parameter_count <= state.count):
            raise ValueError(f"a mean of {len(mean)} values for a state of {state.count}")
        parameters = state.parameter_count
        with np.errstate(over="ignore", invalid="ignore"):  # looked for by _require_finite
            for tile in tiles(parameters):
                self._step_parameters(state, mean, out, tile)
            for tile in tiles(state.count - parameters):
                moved = slice(parameters + tile.start, parameters + tile.stop)
                np.subtract(state.anchor[moved], mean[moved], out=out.anchor[moved])
                _require_finite(out.anchor[moved])

    @staticmethod
    def cannot_overflow(state: OuterState, mean: Float32) -> bool:
        """Whether every value is so small that a step in place is sure to succeed: half done, it could not be taken back."""
        return all(_is_small(values) for values in (mean, state.anchor, state.momentum))

    def _step_parameters(self, state: OuterState, mean: Float32, out: OuterState, tile: slice) -> None:
        rate, decay = np.float32(self.learning_rate), np.float32(self.momentum)
        gradient, velocity = mean[tile], out.momentum[tile]
        change = _THREAD.change()[: len(gradient)]
        np.multiply(state.momentum[tile], decay, out=velocity)
        np.add(velocity, gradient, out=velocity)
        np.multiply(velocity, decay, out=change)
        np.add(change, gradient, out=change)
        np.multiply(change, rate, out=change)
        np.subtract(state.anchor[tile], change, out=out.anchor[tile])
        _require_finite(out.anchor[tile])
        _require_finite(velocity)


def _is_small(values: Float32) -> bool:
    """Written so that a NaN, for which every comparison is false, is not small."""
    return all(bool(values[tile].max() < _SMALL and values[tile].min() > -_SMALL) for tile in tiles(len(values)))


def _require_finite(values: Float32) -> None:
    if not is_finite(values):
        raise RoundFailed("the outer step left the range of float32")


class _Scratch(threading.local):
    """One tile for each thread that steps, made when it first does."""

    _change: Float32 | None = None

    def change(self) -> Float32:
        if self._change is None:
            self._change = np.empty(TILE_VALUES, np.float32)
        return self._change


_THREAD = _Scratch()
