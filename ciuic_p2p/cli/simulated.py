"""What a simulation found as tables for people. Pure: its JSON in, something that rich prints out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from ciuic_p2p.cli.tables import cell
from ciuic_p2p.wording import UNKNOWN, in_bytes, number


def draw_simulations(found: Sequence[dict[str, Any]]) -> RenderableType:
    """How the seconds grow with the peers, and what crosses each ocean with the most of them."""
    first, last = found[0], found[-1]
    head = (
        f"{in_bytes(last['model_bytes'])} as {last['codec']}, {in_bytes(last['encoded_bytes'])} on the wire;"
        f" {last['regions']} regions; {len(last['epochs'])} epochs"
    )
    growth = _table("peers", "topology", "epoch s", "round s", "predicted", "growth", "rounds to mix", "oceans")
    for one in found:
        growth.add_row(
            cell(one["peers"]),
            cell(one["topology"]),
            number(one["epoch_s"], 2),
            number(one["round_s"], 2),
            number(one["predicted_s"], 2),
            f"{one['epoch_s'] / first['epoch_s']:.2f}",
            cell(one["rounds_to_mix"]),
            in_bytes(sum(ocean["bytes"] for ocean in one["ocean_bytes"])),
        )
    return Group(head, growth, "", f"MB of one epoch over each ocean, {last['peers']} peers:", _oceans(last))


def _oceans(one: dict[str, Any]) -> RenderableType:
    crossed = {(ocean["from"], ocean["to"]): ocean["bytes"] for ocean in one["ocean_bytes"]}
    if not crossed:
        return "there is one region, and no ocean"
    regions = list(dict.fromkeys(a for a, _ in crossed))
    table = _table("from \\ to", *regions)
    for a in regions:
        table.add_row(cell(a), *(number(crossed[a, b] / 1e6) if a != b else UNKNOWN for b in regions))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
