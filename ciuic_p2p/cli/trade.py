"""Commands `export` and `import`: objects to other file systems, and files from there. Knows no socket and no file system."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ciuic_p2p.cli.objects import progress
from ciuic_p2p.cli.outcome import reports_failure
from ciuic_p2p.cli.views import Home, Json
from ciuic_p2p.config import home_from
from ciuic_p2p.wording import in_bytes

if TYPE_CHECKING:
    from ciuic_p2p.trade import Traded

Address = Annotated[str, typer.Argument(help="ciuic://BUCKET/KEY, or all below ciuic://BUCKET/PREFIX", show_default=False)]
Url = Annotated[str, typer.Argument(help="A path, s3://BUCKET/FOLDER, gs://…: any URL of fsspec.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Copy also what is there already and equal.")]


@reports_failure
def export_(address: Address, url: Url, *, force: Force = False, home: Home = None, as_json: Json = False) -> None:
    """Copy objects to another file system; what is there already, and equal, is left alone."""
    from ciuic_p2p.trade import export_objects

    with progress("export") as moved:
        traded = export_objects(address, url, home_from(home), force=force, moved=moved)
    _say(address, url, traded, as_json)


@reports_failure
def import_(url: Url, address: Address, *, force: Force = False, home: Home = None, as_json: Json = False) -> None:
    """Make objects of the files of another file system; what is there already, and equal, is left alone."""
    from ciuic_p2p.trade import import_files

    with progress("import") as moved:
        traded = import_files(url, address, home_from(home), force=force, moved=moved)
    _say(url, address, traded, as_json)


def _say(source: str, target: str, traded: list[Traded], as_json: bool) -> None:
    copied = [each for each in traded if each.copied]
    copied_bytes = sum(each.size_bytes for each in copied)
    there = len(traded) - len(copied)
    outcome = {"from": source, "to": target, "copied": len(copied), "copied_bytes": copied_bytes, "there": there}
    if as_json:
        typer.echo(json.dumps({**outcome, "files": [asdict(each) for each in traded]}))
    else:
        typer.echo(f"{target}: {len(copied)} copied ({in_bytes(copied_bytes)}), {there} there already")
