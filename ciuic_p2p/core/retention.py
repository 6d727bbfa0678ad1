"""Which snapshots of one run are kept: the newest few, then the newest of each day. Pure; knows no clock of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    newest: int = 5
    days: int = 30
    """Of each of so many days, counted from the newest snapshot, the last one stays."""


@dataclass(frozen=True, slots=True, order=True)
class Saved:
    """One snapshot: in the order of epochs."""

    epoch: int
    saved_at_s: int
    is_complete: bool


def kept(saved: Iterable[Saved], retention: Retention) -> set[Saved]:
    """The newest complete one always; others by the rule. Clocks may be wrong: then a day has more or fewer, and no more."""
    ordered = sorted(saved, reverse=True)
    chosen = {*ordered[: retention.newest], *[one for one in ordered if one.is_complete][:1]}
    today = ordered[0].saved_at_s // DAY_S if ordered else 0
    of_day: dict[int, Saved] = {}
    for one in ordered:
        of_day.setdefault(one.saved_at_s // DAY_S, one)
    return chosen | {one for day, one in of_day.items() if today - retention.days < day <= today}
