"""Figures of one contestant beside another, and the processes that contestants are."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.__main__ import names
from benchmarks.arenas import Terms
from benchmarks.children import Child
from benchmarks.contestants.drivers import cue_until_whole
from benchmarks.contestants.tensors import is_mean_of_all, values_of
from benchmarks.contests import Contest, Flags
from benchmarks.laps import Lap
from benchmarks.pings import Ping
from ciuic_p2p.errors import LocalError
from ciuic_p2p.tensors.codecs.registry import codec_by_name

TERMS = Terms(laps=3, limit_s=60.0)
SECONDS = {"float32": [2.0, 4.0, 1.0], "int4": [1.0, 1.0, 2.0], "gloo": [4.0, 4.0, 4.0]}
FLAGS = Flags(terms=TERMS, megabytes=None)


class Recorded:
    """An arena whose contestants take the seconds above."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], int]] = []

    def compare(self, names: Sequence[str], count: int, terms: Terms) -> dict[str, list[Lap]]:
        assert terms == TERMS
        self.asked.append((list(names), count))
        return {
            name: [Lap(seconds=seconds, began_at=100.0 * number) for number, seconds in enumerate(SECONDS[name])]
            for name in names
        }

    def pings(self) -> list[Ping]:
        sent = [(0.5, 0.3), (1.5, 0.9), (50.0, 8.0), (103.0, 0.2), (200.0, 0.1), (200.9, 0.7)]
        return [Ping(sent_at=at, seconds=seconds, is_answered=True) for at, seconds in sent]


def test_times_faster_divides_rounds_that_followed_each_other() -> None:
    arena = Recorded()
    figure = Contest(arena, FLAGS).times_faster("float32", "gloo", 100.0, 1.5)()
    assert arena.asked == [(["float32", "gloo"], 25_000_000)]
    assert list(figure.samples) == [2.0, 1.0, 4.0]
    assert figure.holds
    assert figure.parts == {"float32_s": 2.0, "gloo_s": 4.0}
    assert not Contest(arena, FLAGS).times_faster("float32", "gloo", 100.0, 2.5)().holds


def test_times_limit_is_told_the_bytes_that_are_sent_and_better_when_low() -> None:
    asked: list[float] = []

    def limit_of(size_bytes: float) -> float:
        asked.append(size_bytes)
        return 0.5

    figure = Contest(Recorded(), FLAGS).times_limit("int4", 1.0, limit_of, 1.4)()
    assert asked == [codec_by_name("int4").encoded_bytes(250_000)]
    assert figure.value == 2.0
    assert not figure.holds
    assert figure.parts == {"limit_s": 0.5, "int4_s": 1.0}
    assert Contest(Recorded(), FLAGS).times_limit("int4", 1.0, limit_of, 2.0)().holds


def test_share_of_the_limit_is_better_when_high() -> None:
    contest = Contest(Recorded(), FLAGS)
    assert contest.share_of_limit("float32", 1.0, lambda _size: 1.0, 0.5)().value == 0.5
    assert contest.share_of_limit("float32", 1.0, lambda _size: 1.0, 0.5)().holds
    assert not contest.share_of_limit("float32", 1.0, lambda _size: 1.0, 0.6)().holds


def test_the_slowest_ping_of_each_round_is_a_sample() -> None:
    contest = Contest(Recorded(), FLAGS)
    figure = contest.slowest_ping("float32", 1.0, 0.1, 0.5)()
    assert list(figure.samples) == pytest.approx([0.8, 0.1, 0.6])
    assert not figure.holds
    assert figure.parts == pytest.approx({"median_extra_s": 0.2, "pings": 5, "float32_s": 2.0})
    assert contest.slowest_ping("float32", 1.0, 0.1, 0.6)().holds


def test_another_size_than_the_figure_s_own_has_no_goal() -> None:
    arena = Recorded()
    figure = Contest(arena, Flags(terms=TERMS, megabytes=4.0)).times_faster("float32", "gloo", 100.0, 99.0)()
    assert arena.asked == [(["float32", "gloo"], 1_000_000)]
    assert figure.goal is None


def test_ours_alone_is_reported_in_seconds() -> None:
    figure = Contest(Recorded(), FLAGS).seconds("float32", 4.0)()
    assert (figure.value, figure.goal) == (2.0, None)


def test_the_mean_of_all_is_told_from_the_mean_of_some() -> None:
    mean = np.mean([values_of(number, 10_000) for number in range(3)], axis=0, dtype=np.float32)
    assert is_mean_of_all(mean, 3)
    assert is_mean_of_all(mean[:100], 3)
    assert not is_mean_of_all(np.mean([values_of(number, 10_000) for number in range(2)], axis=0), 3)


def test_the_summary_runs_benchmarks_and_nothing_else() -> None:
    assert {"allreduce", "codecs", "overhead", "wan"} <= set(names())
    assert not {"arenas", "contestants", "limits", "report", "stand_in"} & set(names())


def child(program: str) -> Child:
    return Child("the parrot", [sys.executable, "-c", program])


def test_a_child_answers_its_cues_one_by_one() -> None:
    parrot = child("import sys\nfor line in sys.stdin: print('{\"heard\": %s}' % line.strip(), flush=True)")
    try:
        parrot.tell("1")
        parrot.tell("2")
        assert [parrot.hear(30.0), parrot.hear(30.0)] == [{"heard": 1}, {"heard": 2}]
    finally:
        parrot.stop()


def test_a_child_that_ends_is_quoted() -> None:
    parrot = child("raise SystemExit('no such device')")
    try:
        with pytest.raises(LocalError, match="the parrot ended early: no such device"):
            parrot.hear(30.0)
    finally:
        parrot.stop()


def test_a_child_that_says_nothing_is_given_up() -> None:
    parrot = child("import sys; sys.stdin.read()")
    try:
        with pytest.raises(LocalError, match="the parrot gave no answer in time"):
            parrot.hear(0.1)
    finally:
        parrot.stop()


ALONE = {"counted": True, "peers": 1}
NOT_IN = {"counted": False, "peers": 2}
WHOLE = {"counted": True, "peers": 2}


@pytest.mark.parametrize(
    ("first", "second", "partial"),
    [([WHOLE], [WHOLE], False), ([ALONE, WHOLE], [WHOLE], True), ([ALONE, ALONE, WHOLE], [NOT_IN, WHOLE], True)],
)
def test_trainers_are_told_until_all_had_a_round_together(first: list, second: list, partial: bool) -> None:
    program = "import sys, json\nfor line, answer in zip(sys.stdin, {}): print(json.dumps(answer), flush=True)"
    trainers = [child(program.format(answers)) for answers in (first, second)]
    asked = 0

    def all_are_equal() -> bool:
        nonlocal asked
        asked += 1
        return asked % 2 == 0  # never at once

    try:
        assert cue_until_whole(trainers, all_are_equal, 30.0) == ([WHOLE, WHOLE], partial)
    finally:
        for trainer in trainers:
            trainer.stop()
    assert bool(asked) == partial


def test_trainers_that_never_hold_one_state_are_given_up() -> None:
    alone = child('import sys\nfor line in sys.stdin: print(\'{"counted": true, "peers": 0}\', flush=True)')
    try:
        with pytest.raises(LocalError, match="the parrot had no round with all others in time"):
            cue_until_whole([alone], lambda: False, 1.0)
    finally:
        alone.stop()
