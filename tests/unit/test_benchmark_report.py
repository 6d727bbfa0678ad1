"""What every benchmark prints and how it exits."""

from __future__ import annotations

import argparse
import json

import pytest

from benchmarks.report import Figure, run_benchmark
from ciuic_p2p.errors import P2PDown

FAST = Figure(samples=[3.0, 1.0, 2.0], goal=1.5, parts={"seconds": 0.123456})
SLOW = Figure(samples=[3.0, 1.0, 2.0], goal=1.5, higher_is_better=False)


def test_stdout_is_one_object_with_the_median_and_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benchmark("demo", {"fast": lambda: FAST}, ["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"benchmark", "machine", "versions", "figures"}
    assert report["figures"] == {
        "fast": {"value": 2.0, "goal": 1.5, "holds": True, "samples": [3.0, 1.0, 2.0], "parts": {"seconds": 0.1235}}
    }


def test_one_figure_that_falls_short_exits_with_3() -> None:
    assert run_benchmark("demo", {"fast": lambda: FAST, "slow": lambda: SLOW}, []) == 3


def test_only_takes_the_named_figure() -> None:
    assert run_benchmark("demo", {"fast": lambda: FAST, "slow": lambda: SLOW}, ["--only", "fast"]) == 0


def test_figure_without_a_goal_always_holds() -> None:
    assert Figure(samples=[1, 2, 3], goal=None).holds


def test_what_could_not_run_exits_with_1_and_prints_no_object(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Figure:
        raise P2PDown("the child is down")

    assert run_benchmark("demo", {"broken": fail}, ["--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the child is down" in captured.err


def test_two_samples_make_no_figure() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        Figure(samples=[1.0, 2.0], goal=None)


def test_a_figure_that_could_not_be_taken_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Figure:
        raise P2PDown("the child is down")

    assert run_benchmark("demo", {"broken": fail, "fast": lambda: FAST}, ["--json"]) == 1
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)["figures"]) == {"fast"}
    assert "demo: broken could not run: the child is down" in captured.err


def test_a_benchmark_s_own_flags_are_left_to_it() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--topology")
    assert run_benchmark("demo", {"fast": lambda: FAST}, ["--topology", "x", "--only", "fast"], own_flags=own) == 0
    with pytest.raises(SystemExit):
        run_benchmark("demo", {"fast": lambda: FAST}, ["--topology", "x"])
