"""Runs every benchmark, one after the other, and prints a summary. Exit 0 when all figures hold, 3 when one falls short,
1 when a benchmark could not run. Knows no benchmark: every module of this package is one, but for the `COMMON` ones."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FELL_SHORT = 3
COMMON = ("arenas", "children", "contestants", "contests", "laps", "limits", "report", "stand_in", "swarms")


def main() -> int:
    console, worst = Console(), 0
    table = Table("benchmark", "figure", "value", "goal", "holds", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names():
        console.print(f"benchmarks.{name} …", highlight=False)
        result = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--json"], capture_output=True, text=True, check=False
        )
        if result.returncode not in (0, FELL_SHORT):
            table.add_row(name, "could not run", "", "", (result.stderr.strip().splitlines() or ["it said nothing"])[-1])
            worst = 1
            continue
        worst = worst or result.returncode
        for figure, found in json.loads(result.stdout)["figures"].items():
            table.add_row(
                name, figure, shown(found["value"]), shown(found["goal"]), "yes" if found["holds"] else "[red]no[/red]"
            )
    console.print(table if table.rows else "There is no benchmark yet.")
    return worst


def names() -> list[str]:
    found = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return [name for name in found if not name.startswith("_") and name not in COMMON]


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
