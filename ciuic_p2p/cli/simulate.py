"""`ciuic-peer simulate`: flags of a simulation and its table. Knows nothing of how it is done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ciuic_p2p.cli.outcome import reports_failure
from ciuic_p2p.cli.quantities import bytes_from
from ciuic_p2p.errors import ConfigError
from ciuic_p2p.lab.topology import find_topology

DEFAULT_PEERS = "10"


@reports_failure
def simulate(
    *,
    peers: Annotated[str | None, typer.Option(help="How many; several as 10,100,1000 make a curve. Default: 10.")] = None,
    regions: Annotated[int, typer.Option(help="Among which they are divided evenly.")] = 4,
    model_size: Annotated[str, typer.Option(help="As float32, such as 500MB or 2GB.")] = "500MB",
    codec: Annotated[str, typer.Option(help="float32, float16, bfloat16, int8, int4, onebit or topk.")] = "int4",
    up_mbps: Annotated[float, typer.Option(help="Of each peer's line; 0 is unlimited.")] = 100.0,
    down_mbps: Annotated[float | None, typer.Option(help="The same; default: as up.")] = None,
    cable_mbps: Annotated[float, typer.Option(help="From each region to each other one; 0 is unlimited.")] = 0.0,
    rtt_ms: Annotated[float, typer.Option(help="Between two regions, in the middle; within one a tenth.")] = 100.0,
    cpu_mbps: Annotated[float, typer.Option(help="What a peer seals and encodes, both directions; 0 is unlimited.")] = 0.0,
    topology: Annotated[str | None, typer.Option(help="The lab's: a JSON file, or the name of one that is shipped.")] = None,
    seed: Annotated[int, typer.Option(help="Says how far regions are apart.")] = 0,
    epochs: Annotated[int, typer.Option(help="That are simulated one after the other.")] = 3,
    plot: Annotated[Path | None, typer.Option(help="Draw the growth up to --peers as a PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate averaging among many peers: seconds per epoch, bytes over each ocean, rounds to mix."""
    if epochs < 1:
        raise ConfigError(f"--epochs {epochs} simulates nothing", "give 1 or more")
    if topology is not None and peers is not None:
        raise ConfigError("--topology says which peers there are", "leave out --peers")
    from ciuic_p2p.simulator.planning import Model
    from ciuic_p2p.simulator.plot import draw_growth, require_picture
    from ciuic_p2p.simulator.simulation import simulate as run
    from ciuic_p2p.simulator.simulation import sizes_up_to
    from ciuic_p2p.simulator.world import Lines, even_world, processors_of, world_of

    if plot is not None:
        require_picture(plot)
    model = Model.of_size(bytes_from(model_size), codec)
    processor_mbps = processors_of(cpu_mbps)
    if topology is not None:
        worlds = [world_of(find_topology(topology), processor_mbps=processor_mbps, is_one_machine=False)]
    else:
        lines = Lines(
            up_mbps=up_mbps, down_mbps=up_mbps if down_mbps is None else down_mbps, cable_mbps=cable_mbps, rtt_ms=rtt_ms
        )
        sizes = _counts_of(peers or DEFAULT_PEERS)
        if plot is not None and len(sizes) == 1:
            sizes = list(sizes_up_to(sizes[0]))
        worlds = [even_world(size, regions, lines, seed, processor_mbps) for size in sizes]
    found = []
    for world in worlds:
        _say(f"{len(world.peers)} peers …")
        found.append(run(world, model, epochs, said=lambda epoch: _say(f"epoch {epoch.epoch}: {epoch.epoch_s:.2f} s")))
    if plot is not None:
        draw_growth(found, plot)
    if as_json:
        typer.echo(json.dumps({"seed": seed, "simulations": [one.to_json() for one in found]}))
        return
    from rich.console import Console

    from ciuic_p2p.cli.simulated import draw_simulations

    Console().print(draw_simulations([one.to_json() for one in found]))


def _say(line: str) -> None:
    """To who watches."""
    if sys.stderr.isatty():
        typer.echo(line, err=True)


def _counts_of(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"--peers {text!r} is no number of peers", "write it as 1000, or 10,100,1000") from None
