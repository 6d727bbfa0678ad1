"""What a daemon's log tells of its pings."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from benchmarks.laps import Lap
from benchmarks.pings import Ping, pings_of, sent_during
from ciuic_p2p.errors import LocalError


def line(at: float, event: str, **fields: object) -> str:
    timestamp = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({**fields, "event": event, "level": "debug", "timestamp": timestamp}) + "\n"


LOG = [
    line(10.0, "ping.sent", peer="a", number=1),
    line(10.0, "ping.sent", peer="b", number=2),
    line(10.4, "ping.answered", peer="b", number=2, seconds=0.4),
    line(11.0, "ping.sent", peer="a", number=3),
    line(11.2, "ping.answered", peer="a", number=1, seconds=1.2),
    line(13.5, "round.finished", epoch=1),
]


def test_a_ping_takes_as_long_as_its_answer_says_and_without_one_until_the_log_ends() -> None:
    assert pings_of(LOG) == [
        Ping(sent_at=10.0, seconds=1.2, is_answered=True),
        Ping(sent_at=10.0, seconds=0.4, is_answered=True),
        Ping(sent_at=11.0, seconds=2.5, is_answered=False),
    ]


def test_a_line_that_is_being_written_is_left_out() -> None:
    half = line(14.0, "ping.answered", peer="a", number=3, seconds=3.0)[:-9]
    assert pings_of([*LOG, half]) == pings_of(LOG)
    assert pings_of([]) == []


def test_pings_of_a_round_were_sent_while_it_lasted() -> None:
    pings = pings_of(LOG)
    assert sent_during(pings, Lap(seconds=1.0, began_at=9.5)) == pings[:2]
    assert sent_during(pings, Lap(seconds=1.0, began_at=10.5)) == pings[2:]
    with pytest.raises(LocalError, match="too short"):
        sent_during(pings, Lap(seconds=0.5, began_at=10.2))
