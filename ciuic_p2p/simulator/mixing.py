"""How many rounds it takes until all peers hold (nearly) the same mean. Pure; knows groups, not how they average."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

MIXED_VARIANCE = 1e-4
"""Of what it was at first: values differ by a hundredth of what they did."""
MOST_ROUNDS = 10_000

Groups = Collection[Sequence[int]]
"""Places of the peers that average with each other in one round."""


def rounds_to_mix(groups_of: Callable[[int], Groups], peers: int, seed: int = 0) -> int | None:
    """1 where one group holds everyone: the mean is exact. Else until the variance is below MIXED_VARIANCE; None: never.

    groups_of: round (from 0) → its groups. Values are independent and normal at first; the seed draws them.
    """
    values = np.random.default_rng(seed).standard_normal(peers)
    at_first = values.var()
    for number in range(MOST_ROUNDS):
        for group in groups_of(number):
            places = np.asarray(group)
            values[places] = values[places].mean()
        if values.var() <= MIXED_VARIANCE * at_first:
            return number + 1
    return None
