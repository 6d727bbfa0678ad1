"""Answers of the daemon as tables for people. Pure: plain data in, something that rich prints out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from ciuic_p2p.wording import UNKNOWN, in_bytes, number


def draw_status(status: dict[str, Any]) -> RenderableType:
    """One peer, and a table of its runs."""
    head = Table.grid(padding=(0, 2))
    for label, value in (
        ("peer", f"{status['name']} ({status['region']})"),
        ("peer id", status["peer_id"]),
        ("swarm", status["swarm"]),
        ("sent", in_bytes(status["bytes_sent"])),
        ("received", in_bytes(status["bytes_received"])),
        ("forwards", _forwarding(status.get("forwarding"))),
        ("store", _store(status.get("store"))),
    ):
        head.add_row(f"[bold]{label}[/bold]", cell(value))
    for waiting in status.get("recovering", []):
        head.add_row("[bold]waits[/bold]", _waiting(waiting))
    if not status["runs"]:
        return Group(head, "No run yet: ciuic.join(...) in a training script begins one.")
    runs = _table("run", "epoch", "training", "participating", "samples/s", "state hash", "last round")
    for run in status["runs"]:
        last = run.get("last_round") or {}
        runs.add_row(
            cell(run["run"]),
            cell(run["epoch"]),
            yes_no(run["training"]),
            yes_no(run["participating"]),
            number(run["samples_per_s"]),
            cell(run["state_hash"])[:12],
            f"{number(last.get('seconds'), 2)} s" if last else UNKNOWN,
        )
    return Group(head, runs)


def draw_peers(peers: list[dict[str, Any]]) -> RenderableType:
    """Who is in the swarm."""
    table = _table("name", "region", "alive", "training", "participating", "RTT ms", "version", "peer id")
    for peer in peers:
        table.add_row(
            cell(peer["name"]),
            cell(peer["region"]),
            *(yes_no(peer[key]) for key in ("alive", "training", "participating")),
            number(peer["rtt_ms"]),
            cell(peer["version"]),
            cell(peer["peer_id"]),
        )
    return table


def draw_links(links: list[dict[str, Any]]) -> RenderableType:
    """What was measured between peers."""
    table = _table("from", "to", "RTT ms", "goodput Mbit/s", "path", "why")
    for link in links:
        table.add_row(
            cell(link["from"]),
            cell(link["to"]),
            number(link["rtt_ms"]),
            number(link["goodput_mbps"]),
            cell(link["path"]),
            cell(link.get("why", "")),
        )
    return table


def draw_rounds(rounds: list[dict[str, Any]]) -> RenderableType:
    """The latest rounds."""
    table = _table(
        "run",
        "epoch",
        "members",
        "plan",
        "codec",
        "seconds",
        "predicted",
        "error",
        "sent",
        "lost",
        "repaired",
        "state hash",
        "reason",
    )
    for entry in rounds:
        table.add_row(
            cell(entry["run"]),
            cell(entry["epoch"]),
            listed(entry["members"]),
            cell(entry["plan"]),
            cell(entry["codec"]),
            number(entry["seconds"], 2),
            number(entry["predicted_s"], 2),
            number(entry.get("model_error"), 2),
            in_bytes(entry["bytes_sent"]),
            listed(entry["lost"]),
            listed(entry["repaired"]),
            cell(entry["state_hash"])[:12],
            cell(entry["reason"]),
        )
    return table


def draw_plan(plan: dict[str, Any]) -> RenderableType:
    """How a model would be averaged now."""
    head = Table.grid(padding=(0, 2))
    for label, value in (
        ("model", f"{in_bytes(plan['size_bytes'])}, {in_bytes(plan['encoded_bytes'])} as {plan['codec']}"),
        ("topology", plan["topology"]),
        ("predicted", f"{number(plan['predicted_s'], 2)} s"),
        ("why", plan["reason"]),
    ):
        head.add_row(f"[bold]{label}[/bold]", cell(value))
    for stage, text in enumerate(plan["stages"], start=1):
        head.add_row(f"[bold]stage {stage}[/bold]", cell(text))
    steps = plan["inner_steps"]
    if steps is not None:
        advice = f"{steps['advice']}: at {number(steps['step_s'], 3)} s a step a round costs {steps['round_share']:.0%}"
        head.add_row("[bold]inner steps[/bold]", cell(advice))
    peers = _table("region", "peer", "owns", "carries")
    for region in plan["regions"]:
        for peer in region["peers"]:
            peers.add_row(cell(region["region"]), cell(peer["name"]), f"{peer['owns']:.1%}", f"{peer['carries']:.1%}")
    others = _table("topology", "predicted s", "bound by", "")
    for other in plan["alternatives"]:
        note = "chosen" if other["chosen"] else other["barred"]
        others.add_row(cell(other["topology"]), number(other["predicted_s"], 2), cell(other["bound_by"]), cell(note))
    return Group(head, "", peers, "", others)


MOST_NAMED = 8
"""Shards; `--json` has all of them."""


def draw_snapshots(snapshots: list[dict[str, Any]]) -> RenderableType:
    """Saved states, run by run."""
    table = _table("run", "epoch", "saved at", "size", "complete", "saved by", "shards missing", "state")
    notes = [note for one in snapshots if (note := _lost(one))]
    for one in snapshots:
        at = datetime.fromtimestamp(one["saved_at_s"], tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        table.add_row(
            cell(one["run"]),
            cell(one["epoch"]),
            at,
            in_bytes(one["size_bytes"]),
            yes_no(one["complete"]),
            cell(one["witnesses"]),
            cell(one["missing_shards"]),
            cell(one["state_hash"])[:12],
        )
    return Group(table, *notes)


def _waiting(snapshot: dict[str, Any]) -> str:
    """What a run waits for before it goes on."""
    which = f"{cell(snapshot['run'])} {cell(snapshot['epoch'])}"
    if not snapshot["complete"]:
        return f"{which}: until enough others have said whether they saved the same"
    return _lost(snapshot) or f"{which}: the rest comes from other peers"


def _lost(snapshot: dict[str, Any]) -> str:
    """What must happen before a snapshot is whole again; nothing where its missing shards come by themselves."""
    lost = snapshot.get("lost_shards", [])
    if not lost:
        return ""
    shards = ", ".join(f"{shard[:12]}…" for shard in lost[:MOST_NAMED])
    shards += f" and {len(lost) - MOST_NAMED} more shards" if len(lost) > MOST_NAMED else ""
    who = f"{listed(snapshot['must_return'])} must return" if snapshot["must_return"] else "no peer that is known had them"
    others = sorted(set(snapshot["may_help"]) - set(snapshot["must_return"]))
    instead = f" (or {listed(others)})" if others and snapshot["must_return"] else ""
    return f"{cell(snapshot['run'])} {cell(snapshot['epoch'])}: nobody here has {cell(shards)}; {who}{instead}"


def yes_no(value: bool) -> str:
    """A word that is read without colour too."""
    return "[green]yes[/green]" if value else "no"


def cell(value: object) -> str:
    """Any value as text; what other peers chose is never taken for markup."""
    return UNKNOWN if value is None else escape(str(value))


def listed(values: object) -> str:
    """A list joined by commas; counts and texts stay as they are."""
    if isinstance(values, Iterable) and not isinstance(values, str):
        return ", ".join(cell(value) for value in values) or UNKNOWN
    return cell(values)


def _forwarding(facts: dict[str, Any] | None) -> str:
    """What a peer carries between others."""
    if facts is None or not facts["is_on"]:
        return "nothing" if facts is not None else UNKNOWN
    return f"{in_bytes(facts['carried_bytes'])}, {facts['splices']} connections now, {facts['refused']} refused"


def _store(facts: dict[str, Any] | None) -> str:
    """What a peer keeps of objects."""
    if not facts or "objects" not in facts:
        return UNKNOWN
    quota = f" of {in_bytes(facts['quota_bytes'])}" if facts["quota_bytes"] is not None else ""
    short = f", {facts['under_replicated']} of them wait for copies" if facts["under_replicated"] else ""
    damaged = facts.get("damaged_shards", 0)
    worn = f", {damaged} were damaged and {facts['repaired_shards']} of them came back" if damaged else ""
    return f"{facts['objects']} objects{short}; {in_bytes(facts['used_bytes'])}{quota} here in {facts['shards']} shards{worn}"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
