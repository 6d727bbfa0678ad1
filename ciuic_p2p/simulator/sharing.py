"""How transfers divide the capacities that they share: weighted max-min fairness by progressive filling. Pure numbers.

Bertsekas and Gallager, Data Networks (1992), section 6.5.2: all rates grow together, in proportion to their weights, until
one capacity is used up; the transfers that cross it stay where they are, the others go on growing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

ALIKE = 1e-3
"""Capacities that fill up at levels so near each other are taken to fill up at once: fewer passes, rates off by no more."""


def fair_rates(
    routes: Ints,  # [flows, hops]: the capacities that each flow crosses; one crossed twice is used twice
    weights: Floats,  # [flows], > 0
    capacities: Floats,  # [capacities], > 0; infinite where nothing is limited
) -> Floats:  # [flows], in the unit of the capacities
    """No capacity is overfilled by more than rounding; each flow crosses one that is full (to ALIKE), or only infinite ones."""
    rates = np.zeros(len(routes))
    growing = np.arange(len(routes))
    left = capacities.astype(np.float64)
    while len(growing):
        crossed, weight = routes[growing], weights[growing]
        levels = _levels(crossed, weight, left)
        level = levels[crossed].min(axis=1)
        stops = _is_tight(crossed, level, levels)[crossed].any(axis=1)
        if not stops.any():  # nothing limits what is left
            rates[growing] = np.inf
            break
        rates[growing[stops]] = stopped = weight[stops] * level[stops]
        for hop in range(routes.shape[1]):
            left -= np.bincount(crossed[stops, hop], stopped, len(left))
        np.maximum(left, 0.0, out=left)
        growing = growing[~stops]
    return rates


def _levels(crossed: Ints, weight: Floats, left: Floats) -> Floats:
    """Rate for each unit of weight at which each capacity would be full, if all that cross it grew together."""
    load = np.zeros(len(left))
    for hop in range(crossed.shape[1]):
        load += np.bincount(crossed[:, hop], weight, len(left))
    levels = np.full(len(left), np.inf)
    np.divide(left, load, out=levels, where=load > 0)
    return levels


def _is_tight(crossed: Ints, level: Floats, levels: Floats) -> NDArray[np.bool_]:
    """Whether each capacity is the one that stops every flow across it. The one with the least level always is."""
    lowest = np.full(len(levels), np.inf)
    for hop in range(crossed.shape[1]):
        np.minimum.at(lowest, crossed[:, hop], level)
    return np.isfinite(levels) & (lowest >= levels * (1 - ALIKE))
