"""The one JSON object that every benchmark prints, its flags and its exit code. Knows nothing of what is measured.

    {"benchmark", "machine", "versions", "figures": {NAME: {"value", "goal", "holds", "samples", "parts"}}}

`value` is the median of `samples`; `parts` are the seconds (or whatever their names say) behind it. Progress goes to stderr.
Exit code 0 when every figure reaches its goal, 3 when one falls short, 1 when one could not be taken.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ciuic_p2p.errors import SwarmError

COULD_NOT_RUN = 1
FALLS_SHORT = 3
LEAST_SAMPLES = 3
MISSING = " could not run: "
"""In the line of a figure that could not be taken."""

_VERSIONS = ("ciuic-p2p", "numpy", "torch", "hivemind", "cryptography", "uvloop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number beside its goal."""

    samples: Sequence[float]
    """At least 3, each taken in turn with the other contestants'."""
    goal: float | None
    """None for a figure that is reported only."""
    higher_is_better: bool = True
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.samples) < LEAST_SAMPLES:
            raise ValueError(f"{len(self.samples)} samples, at least {LEAST_SAMPLES} make a figure")

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def holds(self) -> bool:
        if self.goal is None:
            return True
        return self.value >= self.goal if self.higher_is_better else self.value <= self.goal

    def to_json(self) -> dict[str, Any]:
        return {
            "value": _round(self.value),
            "goal": self.goal,
            "holds": self.holds,
            "samples": [_round(sample) for sample in self.samples],
            "parts": {name: _round(part) for name, part in self.parts.items()},
        }


Measurement = Callable[[], Figure]


def run_benchmark(
    name: str,
    measurements: Mapping[str, Measurement],
    arguments: Sequence[str] | None = None,
    own_flags: argparse.ArgumentParser | None = None,
) -> int:
    """Takes every figure (or those named by --only), prints the report, returns the exit code.

    measurements: figure's name → what takes it. Any exception but SwarmError passes, which exits with 1 too, and a traceback.
    A figure that cannot be taken is one line on stderr; the others are taken and printed all the same.
    own_flags: what else the command line may say; the caller has read it.
    """
    flags = _parse(name, measurements, arguments, own_flags)
    figures: dict[str, Figure] = {}
    could_run = True
    for chosen in flags.only or measurements:
        progress(f"{name}: {chosen}")
        try:
            figures[chosen] = measurements[chosen]()
        except SwarmError as error:
            progress(f"{name}: {chosen}{MISSING}{error}")
            could_run = False
    if figures:
        print(_as_json(name, figures) if flags.json else _as_table(figures))
    if not could_run:
        return COULD_NOT_RUN
    return 0 if all(figure.holds for figure in figures.values()) else FALLS_SHORT


def progress(line: str) -> None:
    """One line for whoever watches, on stderr."""
    print(line, file=sys.stderr, flush=True)


def describe_machine() -> dict[str, Any]:
    """What a reader needs to place the figures; no host name."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "memory_gb": _round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
    }


def describe_versions() -> dict[str, str]:
    """Python's version and those of the packages that move bytes and numbers, as far as they are installed."""
    installed = {distribution.name: distribution.version for distribution in importlib.metadata.distributions()}
    return {"python": platform.python_version()} | {name: installed[name] for name in _VERSIONS if name in installed}


def _parse(
    name: str,
    measurements: Mapping[str, Measurement],
    arguments: Sequence[str] | None,
    own_flags: argparse.ArgumentParser | None,
) -> argparse.Namespace:
    parents = [own_flags] if own_flags is not None else []
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", parents=parents)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--only", action="append", choices=list(measurements), metavar="NAME", help="take this figure only")
    return parser.parse_args(arguments)


def _as_json(name: str, figures: Mapping[str, Figure]) -> str:
    report = {
        "benchmark": name,
        "machine": describe_machine(),
        "versions": describe_versions(),
        "figures": {figure_name: figure.to_json() for figure_name, figure in figures.items()},
    }
    return json.dumps(report, allow_nan=False)


def _as_table(figures: Mapping[str, Figure]) -> str:
    rows = [f"{'figure':<36}{'value':>12}{'goal':>12}  holds"]
    for name, figure in figures.items():
        goal = "-" if figure.goal is None else f"{figure.goal:g}"
        rows.append(f"{name:<36}{figure.value:>12.3f}{goal:>12}  {'yes' if figure.holds else 'NO'}")
    return "\n".join(rows)


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"


def _round(value: float) -> float:
    """Four significant digits: no measurement here is better than that."""
    return float(f"{value:.4g}")
