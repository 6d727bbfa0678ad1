"""Linear programmes of a few variables. Knows nothing of what they stand for."""

from __future__ import annotations

from collections.abc import Sequence

TOLERANCE = 1e-11


def maximise(objective: Sequence[float], rows: Sequence[Sequence[float]], limits: Sequence[float]) -> list[float]:
    """The x >= 0 with the greatest objective·x of those with rows·x <= limits, which are all >= 0.

    Dantzig's simplex method on a condensed tableau with Bland's rule, so that it ends, and at the same corner everywhere.
    Raises ValueError when there is no greatest one.
    """
    width = len(objective)
    table = [[*map(float, row), float(limit)] for row, limit in zip(rows, limits, strict=True)]
    gains = [*(-float(gain) for gain in objective), 0.0]
    outside = list(range(width))
    inside = list(range(width, width + len(table)))
    while True:
        entering = min((place for place in range(width) if gains[place] < -TOLERANCE), key=outside.__getitem__, default=None)
        if entering is None:
            break
        leaving = _leaving_row(table, entering, inside)
        _pivot(table, gains, leaving, entering)
        outside[entering], inside[leaving] = inside[leaving], outside[entering]
    found = [0.0] * width
    for name, row in zip(inside, table, strict=True):
        if name < width:
            found[name] = max(row[-1], 0.0)
    return found


def _leaving_row(table: Sequence[Sequence[float]], entering: int, inside: Sequence[int]) -> int:
    bounding = [(row[-1] / row[entering], inside[place], place) for place, row in enumerate(table) if row[entering] > TOLERANCE]
    if not bounding:
        raise ValueError("the objective has no greatest value")
    return min(bounding)[2]


def _pivot(table: list[list[float]], gains: list[float], leaving: int, entering: int) -> None:
    element = table[leaving][entering]
    pivot = [value / element for value in table[leaving]]
    pivot[entering] = 1 / element
    for row in (*table, gains):
        factor = row[entering]
        if row is table[leaving] or factor == 0.0:
            continue
        row[:] = [value - factor * part for value, part in zip(row, pivot, strict=True)]
        row[entering] = -factor / element
    table[leaving][:] = pivot
