"""The growth from few peers to many as a picture. matplotlib is loaded when a picture is wanted."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from ciuic_p2p.errors import ConfigError, LocalError
from ciuic_p2p.simulator.simulation import Simulation


def require_picture(path: Path) -> None:
    """Before anything is simulated: raises LocalError when no picture can be drawn, or it cannot be put there."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot {path} is no PNG", "give a file whose name ends in .png")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {path.absolute().parent}", "make it, or name another file with --plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise LocalError("matplotlib is not installed, which --plot needs", "pip install 'ciuic-p2p[plot]'")


def draw_growth(simulations: Sequence[Simulation], path: Path) -> None:
    """Seconds per epoch, simulated and predicted, over the number of peers. Raises LocalError when it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    peers = [len(found.world.peers) for found in simulations]
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(peers, [found.epoch_s for found in simulations], "o-", label="an epoch, simulated")
    axes.plot(peers, [found.predicted_s for found in simulations], "x--", label="predicted by the planner")
    for found in simulations:
        axes.annotate(
            found.epochs[-1].topology, (len(found.world.peers), found.epoch_s), xytext=(0, 8), textcoords="offset points"
        )
    axes.set_xscale("log")
    axes.set_xticks(peers, [str(count) for count in peers])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("peers")
    axes.set_ylabel("seconds per epoch")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise LocalError(f"{path} cannot be written ({error.strerror})", "name another file with --plot") from None
