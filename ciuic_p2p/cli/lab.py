"""`ciuic-peer lab`: an emulated wide-area network for trying things out. Knows flags, not namespaces."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict
from typing import Annotated

import typer

from ciuic_p2p.cli.outcome import reports_failure
from ciuic_p2p.errors import LocalError, Transient
from ciuic_p2p.lab.lab import Lab, attach_lab
from ciuic_p2p.lab.topology import find_topology

app = typer.Typer(no_args_is_help=True, help="A wide-area network on one machine; needs root.")

TopologyName = Annotated[str, typer.Argument(help="A JSON file, or three-regions, ocean-limited, home-links, long-fat, demo.")]
Name = Annotated[str, typer.Option(help="Which lab; several may be up.")]

GOING_DOWN_S = 10.0


@app.command()
@reports_failure
def up(topology: TopologyName, name: Name = "default") -> None:
    """Bring a lab up and stay in the foreground; Ctrl-C takes it down."""
    lab = Lab(find_topology(topology), name)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with lab as running:
        typer.echo("READY " + " ".join(f"{host}={address}" for host, address in running.addresses.items()))
        try:
            lab.wait()
        except KeyboardInterrupt:
            return
    raise LocalError("the router ended", "bring the lab up again")


@app.command(context_settings={"ignore_unknown_options": True})
@reports_failure
def run(host: str, command: list[str], name: Name = "default") -> None:
    """Run a command on a host of the lab: ciuic-peer lab run node-us -- ping 10.77.0.2"""
    argv = attach_lab(name).command(host, command)
    os.execvp(argv[0], argv)  # noqa: S606  the user's own command is what was asked for


@app.command(name="set")
@reports_failure
def set_topology(topology: TopologyName, name: Name = "default") -> None:
    """Change delays, rates and losses of a lab that is up; loss 1 cuts a path."""
    attach_lab(name).set(find_topology(topology))


@app.command()
@reports_failure
def stats(name: Name = "default") -> None:
    """Print what each host sent and received so far, as JSON."""
    typer.echo(json.dumps({host: asdict(traffic) for host, traffic in attach_lab(name).stats().items()}))


@app.command()
@reports_failure
def down(name: Name = "default") -> None:
    """Take a lab down, with all that runs in it."""
    lab = attach_lab(name)
    os.kill(lab.owner_pid, signal.SIGTERM)
    deadline = time.monotonic() + GOING_DOWN_S
    while lab.folder.exists():
        if time.monotonic() > deadline:
            raise Transient(f"the lab {name} is still up", "try again")
        time.sleep(0.05)
