"""`ciuic-peer start`: flags to a DaemonConfig. Knows nothing of how a daemon works."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ciuic_p2p.cli.outcome import reports_failure
from ciuic_p2p.config import load_config

Several = list[str] | None


@reports_failure
def start(
    *,
    join: Annotated[Several, typer.Option(help="Join string, or a multiaddr with /p2p/; may be given several times.")] = None,
    profile: Annotated[Path | None, typer.Option(help="TOML file with what differs from the defaults.")] = None,
    home: Annotated[Path | None, typer.Option(help="Folder of this daemon's identity, swarm, socket and log.")] = None,
    name: Annotated[str | None, typer.Option(help="What others see; default: the host's name.")] = None,
    region: Annotated[str | None, typer.Option(help="Such as us, eu, as.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="Token for --join with a plain multiaddr.")] = None,
    listen: Annotated[Several, typer.Option(help="Multiaddr to listen on, such as /ip4/0.0.0.0/tcp/4001.")] = None,
    session_listen: Annotated[str | None, typer.Option(help="HOST:PORT of sessions; default: the port after --listen.")] = None,
    announce: Annotated[
        Several, typer.Option(help="Multiaddr that others reach this peer at, such as a forwarded port.")
    ] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT of status, metrics and dashboard.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> None:
    """Start a peer in the foreground; without --join it starts a new private swarm. Ctrl-C leaves the swarm."""
    flags = {
        "joins": join,
        "home": home,
        "name": name,
        "region": region,
        "token_file": token_file,
        "listen": listen,
        "session_listen": session_listen,
        "announce": announce,
        "http": http,
        "log_level": log_level,
        "json": json,
    }
    config = load_config(flags, profile, os.environ)
    from ciuic_p2p.daemon.main import run_daemon  # takes seconds to import, and only this command needs it

    raise typer.Exit(run_daemon(config))
