"""What every contestant averages: normal float32 values that a peer's number decides, and what must come of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CHECKED_VALUES = 4096
TOLERANCE = 1e-4
"""Of a mean of a few normal float32 values, whatever the order of summation."""


def values_of(number: int, count: int) -> NDArray[np.float32]:
    """[count] float32, the same in every run."""
    return np.random.default_rng(number).standard_normal(count, np.float32)


def is_mean_of_all(found: NDArray[np.float32], peers: int) -> bool:
    """Whether the first values of [count] float32 are the mean of all peers' first values."""
    checked = min(len(found), CHECKED_VALUES)
    expected = np.mean([values_of(number, checked) for number in range(peers)], axis=0)
    return bool(np.allclose(found[:checked], expected, atol=TOLERANCE))
