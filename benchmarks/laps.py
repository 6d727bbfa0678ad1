"""How long a round took, of what those who took part say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One round in which all took part."""

    seconds: float
    """From the moment when the last one was ready to the moment when the last one had the mean."""
    began_at: float = 0.0
    """Unix time of the first of these moments."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What else is known of it."""


def slowest_s(began_s: Sequence[float], ended_s: Sequence[float]) -> float:
    """Of all participants' readings of one clock. Who is ready before the others can only wait for them."""
    return max(ended_s) - max(began_s)


def lap_of_round(views: Sequence[Sequence[Mapping[str, Any]]], run: str, state_hash: str, peers: int) -> Lap | None:
    """The round of `run` that led to this state, as the `rounds` views of all its peers tell it.

    None unless it is in every view, with the contributions of all and none of them withheld, lost or handed to another peer.
    """
    rows = [row for view in views for row in view if row["run"] == run and row["state_hash"] == state_hash]
    if len(rows) != peers or not all(_is_whole(row, peers) for row in rows):
        return None
    ended_s = [row["began_at"] + row["seconds"] for row in rows]
    began_s = [row["began_at"] for row in rows]
    return Lap(
        seconds=slowest_s(began_s, ended_s),
        began_at=max(began_s),
        parts={
            "predicted_s": max(row["predicted_s"] for row in rows),
            "sent_mb": max(row["bytes_sent"] for row in rows) / 1e6,
        },
    )


def _is_whole(row: Mapping[str, Any], peers: int) -> bool:
    return bool(row["counted"]) and len(row["members"]) == peers and not row["lost"] and not row["repaired"]
