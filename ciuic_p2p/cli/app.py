"""Which commands there are. Knows nothing of what they do."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ciuic_p2p.cli import demo, lab, objects, simulate, snapshot, start, trade, views
from ciuic_p2p.cli.outcome import report_crash
from ciuic_p2p.config import debug_wanted

app = typer.Typer(name="ciuic-peer", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(start.start)
for view in (views.status, views.peers, views.links, views.rounds, views.plan, views.stop, views.invite):
    app.command()(view)
for object_command in (objects.put, objects.get, objects.ls, objects.rm, objects.stat):
    app.command()(object_command)
app.command("export")(trade.export_)
app.command("import")(trade.import_)
app.command()(demo.demo)
app.command()(simulate.simulate)
app.add_typer(lab.app, name="lab")
app.add_typer(snapshot.app, name="snapshot")


def print_version(wanted: bool) -> None:
    """Prints the installed version and ends."""
    if wanted:
        from importlib.metadata import version

        typer.echo(version("ciuic-p2p"))
        raise typer.Exit


@app.callback()
def ciuic_peer(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train one PyTorch model over the ordinary Internet, peer to peer."""


def main() -> None:
    """Exit 0 done, 1 it failed (one line on stderr), 2 wrong usage."""
    try:
        app()
    except Exception as error:  # the last resort: whatever nobody expected is one line too
        if debug_wanted():
            raise
        report_crash(error)
        sys.exit(1)
