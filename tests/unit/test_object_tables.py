"""Objects as people see them: sizes, conflicts, and names that play tricks shown as they are."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType

from ciuic_p2p.cli import tables
from ciuic_p2p.cli.object_tables import draw_object, draw_objects


def drawn(table: RenderableType) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 — lives as long as the console
    console.print(table)
    return console.export_text()


def row(etag: str, **changed: Any) -> dict[str, Any]:
    plain = {
        "address": "ciuic://data/[red]key",
        "size_bytes": 1_500_000,
        "etag": etag,
        "removed": False,
        "author": "node-us",
        "author_id": "12D3KooWus",
        "created_at_ms": 1_800_000_000_000,
    }
    return plain | changed


def test_a_list_shows_names_as_they_are() -> None:
    text = drawn(draw_objects([row("aa"), row("bb", address="ciuic://data/other", created_at_ms=1 << 62)]))
    assert "ciuic://data/[red]key" in text
    assert "1.5 MB" in text
    assert f"{1 << 62} ms" in text


def test_an_object_shows_its_conflicts_and_versions() -> None:
    versions = [
        row("aa", head=True),
        row("bb", head=True, author="node-eu"),
        row("cc", head=False),
        row("", removed=True, head=False, size_bytes=0),
    ]
    shown = row("aa", shards=3, copies=2, versions=versions, conflicts=[versions[1]])
    text = drawn(draw_object(shown))
    assert "2 of each of its 3 shards" in text
    coded = shown | {"erasure": "3+2", "spare_peers": 2}
    assert "3+2, 3 shards, 2 of its peers may be lost" in drawn(draw_object(coded))
    assert "too few are here" in drawn(draw_object(coded | {"spare_peers": -1}))
    assert "2 versions written without knowledge of each other" in text
    kinds = [line.split()[0] for line in text.splitlines() if "node-" in line][1:]
    assert kinds == ["current", "conflicting", "older", "removed"]
    assert "conflict " not in drawn(draw_object(shown | {"conflicts": []}))


def test_a_status_tells_of_the_store() -> None:
    facts = {"objects": 2, "under_replicated": 1, "used_bytes": 5_000_000, "quota_bytes": 10**9, "shards": 4}
    assert tables._store(facts) == "2 objects, 1 of them wait for copies; 5.0 MB of 1.0 GB here in 4 shards"
    assert tables._store(facts | {"under_replicated": 0, "quota_bytes": None}) == "2 objects; 5.0 MB here in 4 shards"
    assert tables._store(None) == tables._store({}) == "–"


def test_a_snapshot_says_what_nobody_here_has_and_who_must_return() -> None:
    plain = {
        "run": "mnist",
        "epoch": 7,
        "saved_at_s": 1_800_000_000,
        "size_bytes": 1_500_000,
        "complete": True,
        "witnesses": 3,
        "missing_shards": 10,
        "state_hash": "ab" * 32,
        "lost_shards": [f"{number:064x}" for number in range(1 << 60, (1 << 60) + 10)],
        "may_help": ["node-[red]eu", "node-as"],
        "must_return": ["node-[red]eu"],
    }
    text = " ".join(drawn(tables.draw_snapshots([plain])).split())
    assert "nobody here has 000000000000…" in text
    assert "and 2 more shards; node-[red]eu must return (or node-as)" in text
    nowhere = plain | {"may_help": [], "must_return": []}
    assert "no peer that is known had them" in " ".join(drawn(tables.draw_snapshots([nowhere])).split())
    assert "nobody here" not in drawn(tables.draw_snapshots([plain | {"lost_shards": []}]))
