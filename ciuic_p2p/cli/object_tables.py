"""Objects as tables for people. Pure: plain data in, something that rich prints out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from ciuic_p2p.cli.tables import cell
from ciuic_p2p.wording import in_bytes


def draw_objects(objects: Iterable[dict[str, Any]]) -> RenderableType:
    """As `ls` shows them."""
    table = _table("size", "written", "by", "address")
    for row in objects:
        table.add_row(in_bytes(row["size_bytes"]), _time(row["created_at_ms"]), cell(row["author"]), cell(row["address"]))
    return table


def draw_object(row: dict[str, Any]) -> RenderableType:
    """As `stat` shows it."""
    head = Table.grid(padding=(0, 2))
    for label, value in (
        ("address", row["address"]),
        ("size", in_bytes(row["size_bytes"])),
        ("etag", row["etag"]),
        ("written", f"{_time(row['created_at_ms'])} by {row['author']}"),
        _kept(row),
    ):
        head.add_row(f"[bold]{label}[/bold]", cell(value))
    if row["conflicts"]:
        told = "written without knowledge of each other; the one above is read. Put the right one again to settle it."
        head.add_row("[bold]conflict[/bold]", cell(f"{len(row['conflicts']) + 1} versions {told}"))
    versions = _table("version", "size", "written", "by", "etag")
    for place, version in enumerate(row["versions"]):
        versions.add_row(
            _kind(place, version),
            in_bytes(version["size_bytes"]),
            _time(version["created_at_ms"]),
            cell(version["author"]),
            cell(version["etag"])[:12],
        )
    return Group(head, "", versions)


def _kept(row: dict[str, Any]) -> tuple[str, str]:
    """How far it is from being lost."""
    if not row.get("erasure"):
        return "copies", f"{row['copies']} of each of its {row['shards']} shards"
    spare = row["spare_peers"]
    told = f"{spare} of its peers may be lost" if spare >= 0 else "too few are here to read it"
    return "erasure", f"{row['erasure']}, {row['shards']} shards, {told}"


def _kind(place: int, version: dict[str, Any]) -> str:
    """The first one is read."""
    if version["removed"]:
        return "removed"
    if place == 0:
        return "current"
    return "conflicting" if version["head"] else "older"


def _time(created_at_ms: int) -> str:
    """By the author's clock, in the reader's zone; an impossible one is shown as it is."""
    try:
        return datetime.fromtimestamp(created_at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{created_at_ms} ms"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
