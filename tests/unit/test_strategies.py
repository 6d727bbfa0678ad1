"""What a user may set, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import ciuic_p2p as ciuic

ROOT = Path(ciuic.__file__).parents[1]
HEAVY = {"torch", "hivemind", "numpy", "uvloop", "starlette"}


def test_the_defaults_are_what_the_daemon_is_told() -> None:
    told = ciuic.DiLoCo(inner_steps=7).settings()
    assert (told.name, told.inner_steps, told.codec) == ("DiLoCo", 7, "auto")
    assert (told.outer_learning_rate, told.outer_momentum) == (0.7, 0.6)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"inner_steps": 0}, "inner_steps must be a whole number from 1"),
        ({"inner_steps": 2.5}, "inner_steps must be a whole number"),
        ({"inner_steps": 10**9}, "inner_steps"),
        ({"outer_learning_rate": float("nan")}, "outer_learning_rate must be a finite number"),
        ({"outer_learning_rate": -0.1}, "outer_learning_rate"),
        ({"outer_momentum": 2}, "outer_momentum must be a number from 0"),
        ({"codec": ""}, "codec must be a word"),
    ],
)
def test_a_setting_out_of_range_is_named(setting: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ciuic.ConfigError, match=f"^DiLoCo: {complaint}"):
        ciuic.DiLoCo(**setting)


def test_a_strategy_does_not_change_and_has_no_other_settings() -> None:
    with pytest.raises(FrozenInstanceError):
        ciuic.DiLoCo().inner_steps = 3
    with pytest.raises(TypeError, match="inner_step"):
        ciuic.DiLoCo(inner_step=3)


def loaded_by(code: str) -> set[str]:
    report = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split()) & HEAVY


def test_importing_loads_nothing_heavy_and_join_loads_torch_but_no_network() -> None:
    assert loaded_by("import ciuic_p2p") == set()
    assert loaded_by("import ciuic_p2p; ciuic_p2p.DiLoCo(inner_steps=3); ciuic_p2p.NoDaemon") == set()
    assert loaded_by("import ciuic_p2p; ciuic_p2p.join") == {"torch", "numpy"}


def test_names_that_are_there_are_listed_and_others_are_not_there() -> None:
    assert {"join", "DiLoCo", "NoDaemon"} <= set(dir(ciuic))
    assert all(getattr(ciuic, name) for name in ciuic.__all__)
    with pytest.raises(AttributeError, match="no attribute 'jion'"):
        ciuic.jion  # noqa: B018  # the look-up is the test
