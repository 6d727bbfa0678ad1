"""Commands that ask the daemon of a home something and print the answer. Knows no table and no socket."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ciuic_p2p.cli.outcome import reports_failure
from ciuic_p2p.cli.quantities import bytes_from, seconds_from
from ciuic_p2p.config import home_from
from ciuic_p2p.errors import DaemonGone, Transient
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import AskView, Invite, Stop, Stopping, View

if TYPE_CHECKING:
    from rich.console import RenderableType

Home = Annotated[Path | None, typer.Option(help="Folder of the daemon; default: CIUIC_HOME, else the user's data folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

ENDING_S = 10.0
"""A daemon that was told to stop is gone within 5 s; what takes twice that is worth a line."""


@reports_failure
def status(*, home: Home = None, as_json: Json = False) -> None:
    """Show this peer: traffic, store, runs."""
    _show("status", home, as_json)


@reports_failure
def peers(*, home: Home = None, as_json: Json = False) -> None:
    """List the peers of the swarm: alive, training, participating."""
    _show("peers", home, as_json)


@reports_failure
def links(*, home: Home = None, as_json: Json = False) -> None:
    """List the measured links: round-trip time, goodput, path."""
    _show("links", home, as_json)


@reports_failure
def rounds(*, home: Home = None, as_json: Json = False) -> None:
    """List the latest rounds: members, seconds, bytes, what was lost and repaired."""
    _show("rounds", home, as_json)


@reports_failure
def plan(
    *,
    size: Annotated[str, typer.Option(help="Of the model as float32, such as 500MB or 2GB.")],
    step_time: Annotated[str | None, typer.Option(help="Of one inner step, such as 0.5s or 80ms.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show how a model of this size would be averaged now, and how long it should take; with --step-time, how often."""
    options: dict[str, Any] = {"size_bytes": bytes_from(size)}
    if step_time is not None:
        options["step_s"] = seconds_from(step_time)
    _show("plan", home, as_json, options)


@reports_failure
def invite(*, home: Home = None, as_json: Json = False) -> None:
    """Print a join string: whoever has it may join this swarm."""
    with open_channel(home_from(home)) as channel:
        answer = channel.ask(Invite(), View).value
    typer.echo(json.dumps(answer) if as_json else answer["join"])


@reports_failure
def stop(*, home: Home = None) -> None:
    """End the daemon of this home; it leaves the swarm first."""
    with open_channel(home_from(home)) as channel:
        channel.ask(Stop(), Stopping)
        try:
            channel.receive(ENDING_S)
        except DaemonGone:
            return
    raise Transient(f"the daemon has not ended within {ENDING_S:.0f} s", "look at the log in its home")


def _show(what: str, home: Path | None, as_json: bool, options: dict[str, Any] | None = None) -> None:
    with open_channel(home_from(home)) as channel:
        answer = channel.ask(AskView(what=what, options=options or {}), View).value
    if as_json:
        typer.echo(json.dumps(answer))
        return
    from rich.console import Console

    from ciuic_p2p.cli import tables

    draw: dict[str, Callable[[Any], RenderableType]] = {
        "status": tables.draw_status,
        "peers": tables.draw_peers,
        "links": tables.draw_links,
        "rounds": tables.draw_rounds,
        "plan": tables.draw_plan,
    }
    Console().print(draw[what](answer))
