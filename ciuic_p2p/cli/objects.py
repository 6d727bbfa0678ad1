"""Commands about objects: put, get, ls, rm, stat. Knows no socket and nothing of how objects are kept."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ciuic_p2p.cli.outcome import reports_failure
from ciuic_p2p.cli.views import Home, Json
from ciuic_p2p.train.client import Client, Moved

Address = Annotated[str, typer.Argument(help="ciuic://BUCKET/KEY", show_default=False)]


@reports_failure
def put(
    file: Annotated[Path, typer.Argument(help="The file to share.", show_default=False)],
    address: Address,
    *,
    erasure: Annotated[
        str | None, typer.Option(metavar="K+M", help="Instead of copies: any K of K+M peers give it back, such as 4+2.")
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Share a file as an object; done when enough peers hold it."""
    code = None if erasure is None else _code(erasure)
    with progress(f"put {file.name}") as moved:
        row = Client(home).upload_file(file, address, moved, erasure=code)
    kept = f"{row['copies']} copies" if code is None else f"{row['erasure']}, {row['spare_peers']} peers may be lost"
    _say(row, as_json, f"{row['address']}: {kept}")


def _code(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,3})\+([0-9]{1,3})", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not K+M, such as 4+2", param_hint="--erasure")
    return int(found[1]), int(found[2])


@reports_failure
def get(
    address: Address,
    file: Annotated[Path | None, typer.Argument(help="Where to; default: the last part of the key, here.")] = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Fetch an object into a file: whole and verified, or not at all."""
    target = file or Path(address.rpartition("/")[2] or ".")
    with progress(f"get {target.name}") as moved:
        row = Client(home).download_file(address, target, moved)
    _say(row, as_json, f"{target}")


@reports_failure
def ls(
    prefix: Annotated[str, typer.Argument(help="ciuic://BUCKET/PREFIX; default: all objects.")] = "",
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List objects by the beginning of their addresses."""
    rows = Client(home).list(prefix)
    if as_json:
        typer.echo(json.dumps(list(rows)))
        return
    from rich.console import Console

    from ciuic_p2p.cli.object_tables import draw_objects

    Console().print(draw_objects(rows))


@reports_failure
def rm(address: Address, *, home: Home = None) -> None:
    """Remove an object; its versions stay listed, its bytes go when nothing else needs them."""
    Client(home).remove(address)


@reports_failure
def stat(address: Address, *, home: Home = None, as_json: Json = False) -> None:
    """Show an object: size, etag, copies, versions and conflicts."""
    row = Client(home).stat(address)
    if as_json:
        typer.echo(json.dumps(row))
        return
    from rich.console import Console

    from ciuic_p2p.cli.object_tables import draw_object

    Console().print(draw_object(row))


def _say(row: dict[str, Any], as_json: bool, line: str) -> None:
    typer.echo(json.dumps(row) if as_json else line)


@contextmanager
def progress(what: str) -> Iterator[Moved | None]:
    """A bar on stderr while it lasts, where a person watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)
