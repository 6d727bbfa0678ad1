"""`ciuic-peer snapshot`: the saved states of runs. Knows the daemon's socket and nothing of what a state is."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ciuic_p2p.cli.outcome import reports_failure
from ciuic_p2p.cli.views import Home, Json
from ciuic_p2p.config import home_from
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import SnapshotOrder, View

app = typer.Typer(no_args_is_help=True, help="Saved states of runs: list, save, restore, export, remove.")

Run = Annotated[str | None, typer.Argument(help="Name of the run; may be left out where there is only one.")]
Epoch = Annotated[int | None, typer.Option(help="Of the snapshot; default: the newest complete one.")]
Wait = Annotated[float, typer.Option("--wait-s", help="For the epoch to come, and for the peers to save it.")]

LOOK_EVERY_S = 0.2


@app.command("ls")
@reports_failure
def ls(run: Run = None, *, home: Home = None, as_json: Json = False) -> None:
    """List the snapshots on this peer, the newest first."""
    rows = _ask(home, "ls", {"run": run})
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from rich.console import Console

    from ciuic_p2p.cli import tables

    Console().print(tables.draw_snapshots(rows))


@app.command()
@reports_failure
def save(run: Run = None, *, wait_s: Wait = 60.0, home: Home = None, as_json: Json = False) -> None:
    """Have all peers of the run save its state when they next hold the same one; nothing travels."""
    ordered = _ask(home, "save", {"run": run})
    deadline_s = time.monotonic() + wait_s
    found = _look_for(home, ordered)
    while (found is None or not found["complete"]) and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)
        found = _look_for(home, ordered)
    outcome = found or {**ordered, "complete": False}
    if as_json:
        typer.echo(json.dumps(outcome))
    elif found is None:
        typer.echo(f"{ordered['run']}: all peers save epoch {ordered['epoch']} when they come to it")
    elif not found["complete"]:
        typer.echo(f"{ordered['run']}: epoch {ordered['epoch']} is saved here; not enough others have said so yet")
    else:
        typer.echo(f"{ordered['run']}: epoch {ordered['epoch']} is saved by {found['witnesses']} peers")


@app.command()
@reports_failure
def restore(
    run: Run = None,
    *,
    name: Annotated[str, typer.Option("--as", help="The run that begins with it; trainers join that one.")],
    epoch: Epoch = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Begin another run with a saved state. The run it is of goes on untouched."""
    _say(_ask(home, "restore", {"run": run, "name": name, "epoch": epoch}), as_json, "{run} begins at epoch {epoch}")


@app.command()
@reports_failure
def export(
    run: Run = None,
    *,
    to: Annotated[Path, typer.Option(help="Folder; gets model.safetensors.")],
    epoch: Epoch = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Write a saved state as a plain safetensors file, float32, that loads without this package."""
    options = {"run": run, "folder": str(to.expanduser().absolute()), "epoch": epoch}
    _say(_ask(home, "export", options), as_json, "{file}: {run} at epoch {epoch}")


@app.command()
@reports_failure
def rm(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    *,
    epoch: Annotated[int | None, typer.Option(help="Of the one to forget; default: all of the run.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Forget snapshots on this peer; after the next start the run is not known here any more."""
    gone = _ask(home, "rm", {"run": run, "epoch": epoch})
    _say({"run": run, "forgotten": [one["epoch"] for one in gone]}, as_json, "{run}: forgot epochs {forgotten}")


def _ask(home: Path | None, what: str, options: dict[str, Any]) -> Any:
    given = {key: value for key, value in options.items() if value is not None}
    with open_channel(home_from(home)) as channel:
        return channel.ask(SnapshotOrder(what=what, options=given), View).value


def _look_for(home: Path | None, ordered: dict[str, Any]) -> dict[str, Any] | None:
    rows = _ask(home, "ls", {"run": ordered["run"]})
    return next((row for row in rows if row["epoch"] == ordered["epoch"]), None)


def _say(outcome: dict[str, Any], as_json: bool, line: str) -> None:
    sys.stdout.write((json.dumps(outcome) if as_json else line.format(**outcome)) + "\n")
