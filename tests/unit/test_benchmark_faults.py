"""The benchmark of histories: counts them by kind, and names the seed of each that does not hold."""

from __future__ import annotations

import pytest

from benchmarks import faults


def test_histories_are_counted_by_what_befell_them(capsys: pytest.CaptureFixture[str]) -> None:
    figure = faults.histories(runs=6, first_seed=0, processes=1)
    assert figure.value == 0
    assert figure.holds
    assert figure.parts["runs"] == 6
    assert sum(count for kind, count in figure.parts.items() if kind != "runs") == 6
    assert {kind.split("_")[0] for kind in figure.parts} >= {"runs", "disturbed", "leader"}
    assert "6 of 6 histories, 0 failed" in capsys.readouterr().err


def test_whatever_a_history_raises_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_at_4(seed: int) -> str:
        if seed == 4:
            raise AssertionError("a part has two results")
        return "disturbed"

    monkeypatch.setattr(faults, "live_through", break_at_4)
    found = faults.live_through_all(range(3, 6))
    assert found == [(3, "disturbed", ""), (4, "failed", "AssertionError: a part has two results"), (5, "disturbed", "")]
