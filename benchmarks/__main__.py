"""Runs every benchmark, one after the other, and prints a summary. Exit 0 when all figures hold, 3 when one falls short,
1 when one could not be taken. Knows no benchmark: every module of this package is one, but for the `COMMON` ones."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.report import FALLS_SHORT, MISSING

NOTHING = '{"figures": {}}'
COMMON = (
    "arenas",
    "children",
    "contestants",
    "contests",
    "drops",
    "injections",
    "laps",
    "limits",
    "oceans",
    "outages",
    "pings",
    "report",
    "stand_in",
    "swarms",
)


def main() -> int:
    console, worst = Console(), 0
    table = Table("benchmark", "figure", "value", "goal", "holds", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names():
        console.print(f"benchmarks.{name} …", highlight=False)
        exit_code, printed, said = run(name)
        if exit_code not in (0, FALLS_SHORT):
            for line in [line for line in said if MISSING in line] or said[-1:] or ["it said nothing"]:
                table.add_row(name, "could not run", "", "", line)
            worst = 1
        worst = worst or exit_code
        for figure, found in json.loads(printed or NOTHING)["figures"].items():
            table.add_row(
                name, figure, shown(found["value"]), shown(found["goal"]), "yes" if found["holds"] else "[red]no[/red]"
            )
    console.print(table if table.rows else "There is no benchmark yet.")
    return worst


def run(name: str) -> tuple[int, str, list[str]]:
    """One benchmark: its exit code, what it printed, and the lines of its progress, which are passed on as they come."""
    with tempfile.TemporaryFile("w+") as printed:
        argv = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
        process = subprocess.Popen(argv, stdout=printed, stderr=subprocess.PIPE, text=True)
        said = []
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            said.append(line.rstrip())
        exit_code = process.wait()
        printed.seek(0)
        return exit_code, printed.read(), said


def names() -> list[str]:
    found = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return [name for name in found if not name.startswith("_") and name not in COMMON]


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
