"""Which rounds count, how long each took, and in whose turn it was run."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.arenas import MOST_PARTIAL_LAPS, Terms, median_parts, take_turns
from benchmarks.laps import Lap, lap_of_round, slowest_s
from ciuic_p2p.errors import LocalError

TERMS = Terms(laps=3, limit_s=60.0)


def row(**more: Any) -> dict[str, Any]:
    common = {"run": "r", "state_hash": "abc", "members": ["a", "b"], "counted": True, "lost": [], "repaired": 0}
    return {**common, "began_at": 100.0, "seconds": 2.0, "predicted_s": 1.0, "bytes_sent": 4_000_000, **more}


def lap(seconds: float = 1.0, **parts: float) -> Lap:
    return Lap(seconds=seconds, parts=parts)


def no_pause(_seconds: float) -> None:
    pass


def test_a_round_lasts_from_the_last_beginning_to_the_last_end() -> None:
    assert slowest_s([1.0, 3.0], [4.0, 3.5]) == 1.0
    views = [[row(), row(state_hash="later")], [row(began_at=101.5, seconds=1.0, bytes_sent=5_000_000)]]
    found = lap_of_round(views, "r", "abc", peers=2)
    assert found == Lap(seconds=1.0, began_at=101.5, parts={"predicted_s": 1.0, "sent_mb": 5.0})


@pytest.mark.parametrize(
    "second",
    [
        row(members=["a"]),
        row(counted=False),
        row(lost=["b"]),
        row(repaired=1),
        row(run="another"),
        row(state_hash="another"),
    ],
)
def test_a_round_that_is_not_whole_does_not_count(second: dict[str, Any]) -> None:
    assert lap_of_round([[row()], [second]], "r", "abc", peers=2) is None


def test_contestants_take_turns_and_the_first_turn_warms_up() -> None:
    ran: list[str] = []

    def contestant(name: str, slow_start: float):
        def race(_limit_s: float) -> Lap:
            ran.append(name)
            return lap(slow_start if ran.count(name) == 1 else 1.0)

        return race

    found = take_turns({"ours": contestant("ours", 9.0), "gloo": contestant("gloo", 8.0)}, TERMS, no_pause)
    assert ran == ["ours", "gloo"] * 4
    assert found == {"ours": [lap(1.0)] * 3, "gloo": [lap(1.0)] * 3}


def test_turns_warm_up_for_as_long_as_they_shall(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def race(_limit_s: float) -> Lap:
        nonlocal now_s
        now_s += 4.0
        return lap(now_s)

    monkeypatch.setattr("benchmarks.arenas.time.monotonic", lambda: now_s)
    found = take_turns({"ours": race}, Terms(laps=2, limit_s=60.0, warm_up_s=10.0), no_pause)
    assert [one.seconds for one in found["ours"]] == [16.0, 20.0]


def test_a_round_without_all_is_run_again_before_the_next_one_s_turn() -> None:
    ran: list[str] = []
    answers = iter([None, lap(5.0), lap(1.0), None, lap(2.0), lap(3.0)])

    def ours(_limit_s: float) -> Lap | None:
        ran.append("ours")
        return next(answers)

    def gloo(_limit_s: float) -> Lap:
        ran.append("gloo")
        return lap()

    found = take_turns({"ours": ours, "gloo": gloo}, TERMS, no_pause)
    assert ran == ["ours", "ours", "gloo", "ours", "gloo", "ours", "ours", "gloo", "ours", "gloo"]
    assert [one.seconds for one in found["ours"]] == [1.0, 2.0, 3.0]


def test_a_contestant_that_never_has_all_is_given_up_in_plain_words() -> None:
    asked: list[float] = []

    def race(limit_s: float) -> None:
        asked.append(limit_s)

    with pytest.raises(LocalError, match="ours: not all took part"):
        take_turns({"ours": race}, TERMS, no_pause)
    assert len(asked) == MOST_PARTIAL_LAPS


def test_no_round_begins_after_the_time_for_the_figure() -> None:
    def race(_limit_s: float) -> Lap:
        raise AssertionError("it was run")

    with pytest.raises(LocalError, match="gloo was not done when the 0 s"):
        take_turns({"gloo": race}, Terms(laps=3, limit_s=0.0), no_pause)


def test_parts_are_medians_under_the_contestant_s_name() -> None:
    laps = {"int4": [lap(1.0, trainer_s=4.0), lap(2.0, trainer_s=6.0), lap(9.0, trainer_s=5.0)], "gloo": [lap(3.0)]}
    assert median_parts(laps) == {"int4_s": 2.0, "int4_trainer_s": 5.0, "gloo_s": 3.0}
