"""The benchmark over a wide-area network runs in the lab that it brings up. Small, and held to what no network could beat."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.lab


def test_no_ping_is_faster_than_its_path() -> None:
    argv = [sys.executable, "-m", "benchmarks.wan", "--json", "--megabytes", "3", "--only", "heartbeat_extra_s"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    figure = json.loads(result.stdout)["figures"]["heartbeat_extra_s"]
    assert min(figure["samples"]) >= 0.0
    assert figure["parts"]["pings"] >= 2 * 3  # rounds of 2.4 s and more, each peer sends one a second


def test_a_round_takes_no_less_than_the_limit() -> None:
    argv = [sys.executable, "-m", "benchmarks.wan", "--json", "--megabytes", "1", "--only", "long_fat_share"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    figure = json.loads(result.stdout)["figures"]["long_fat_share"]
    assert 0 < figure["value"] <= 1.0
    assert figure["parts"]["limit_s"] == pytest.approx(0.008)


def test_a_round_is_simulated_and_measured_on_the_same_network() -> None:
    argv = [sys.executable, "-m", "benchmarks.topology", "--json", "--megabytes", "1", "--warm-up-s", "5"]
    argv += ["--only", "simulator_error", "--case", "home-links"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    parts = json.loads(result.stdout)["figures"]["simulator_error"]["parts"]
    # a contribution and a result between the two that are furthest apart: 0.21 s
    assert parts["home_links_simulated_s"] >= 0.21
    assert parts["home_links_measured_s"] >= 0.21
