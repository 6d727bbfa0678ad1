"""`ciuic-peer demo`: flags of the demonstration. Knows nothing of what happens in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ciuic_p2p.cli.outcome import reports_failure


@reports_failure
def demo(
    *,
    folder: Annotated[Path | None, typer.Option("--dir", help="Keep homes and logs here; it must be new or empty.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep homes and logs in a temporary folder.")] = False,
    loopback: Annotated[bool, typer.Option("--loopback", help="Do not emulate an ocean.")] = False,
) -> None:
    """Three peers train one model over an emulated ocean; one is killed and comes back."""
    from ciuic_p2p.lab.demo import run_demo

    raise typer.Exit(run_demo(folder, keep=keep or folder is not None, loopback=loopback))
