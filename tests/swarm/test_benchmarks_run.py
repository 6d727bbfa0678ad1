"""The benchmark of averaging runs with real daemons, gloo and hivemind, and leaves no process behind. Small and untimed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import psutil
import pytest

LIMIT_S = 240


def run_small(*arguments: str) -> dict[str, Any]:
    """The figures that a benchmark printed of a tensor of 1 MB, after all that it started has ended."""
    argv = [sys.executable, "-m", *arguments, "--json", "--megabytes", "1"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    benchmark = psutil.Process(process.pid)
    started: set[psutil.Process] = set()
    printed = None
    while printed is None:
        try:
            printed, _ = process.communicate(timeout=0.5)
        except subprocess.TimeoutExpired:
            started |= set(benchmark.children(recursive=True))
    assert process.returncode == 0
    assert started
    assert not psutil.wait_procs(list(started), timeout=10)[1]
    return json.loads(printed)["figures"]


@pytest.mark.timeout(LIMIT_S)
def test_ours_gloo_and_hivemind_average_on_one_machine() -> None:
    figures = run_small("benchmarks.allreduce", "--only", "loopback2_gloo", "--only", "loopback2_hivemind")
    assert set(figures) == {"loopback2_gloo", "loopback2_hivemind"}
    for name, other in (("loopback2_gloo", "gloo"), ("loopback2_hivemind", "hivemind")):
        parts = figures[name]["parts"]
        assert len(figures[name]["samples"]) == 3
        assert 0 < parts["float32_s"] <= parts["float32_trainer_s"]
        assert parts[f"{other}_s"] > 0
        assert parts["float32_sent_mb"] >= 1.0
