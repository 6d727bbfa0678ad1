"""How long pings of a daemon took, as its log tells at the level debug. Knows no rounds but when they were."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.laps import Lap
from ciuic_p2p.errors import LocalError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """One that was sent."""

    sent_at: float
    """Unix time."""
    seconds: float
    """Until its answer; while there is none, as long as the log goes on after it."""
    is_answered: bool


def read_pings(log: Path) -> list[Ping]:
    """In the order in which they were sent."""
    return pings_of(log.read_text(encoding="utf-8").splitlines(keepends=True))


def pings_of(lines: Iterable[str]) -> list[Ping]:
    """lines: with their ends; one without an end is still being written, and left out."""
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    answered_s = {_key(event): event["seconds"] for event in events if event["event"] == "ping.answered"}
    log_ends_at = _unix_time(events[-1]) if events else 0.0
    return [
        Ping(
            sent_at=_unix_time(event),
            seconds=answered_s.get(_key(event), log_ends_at - _unix_time(event)),
            is_answered=_key(event) in answered_s,
        )
        for event in events
        if event["event"] == "ping.sent"
    ]


def sent_during(pings: Sequence[Ping], lap: Lap) -> list[Ping]:
    """Raises LocalError when there is none: the lap was shorter than the daemons' period."""
    found = [ping for ping in pings if lap.began_at <= ping.sent_at <= lap.began_at + lap.seconds]
    if not found:
        raise LocalError(f"no ping was sent in a round of {lap.seconds:.2f} s; it is too short to say anything of them")
    return found


def _key(event: dict[str, object]) -> tuple[object, object]:
    return event["peer"], event["number"]


def _unix_time(event: dict[str, str]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()
