"""What the demonstration showed: a table, and what of it falls short. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from ciuic_p2p.wording import UNKNOWN, in_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerResult:
    """One peer at the end."""

    name: str
    epoch: int
    samples: int
    """Trained on here, those before a kill included."""
    accuracy: float | None
    """On the test images, with the parameters of the last epoch that its trainer saw."""
    bytes_sent: int
    plain_bytes: float
    """What plain float32 data parallel would have sent for the same samples."""
    state_hash: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What the kill cost."""

    killed: str
    epoch: int
    """That the others had finished."""
    others_s: float
    """From the kill until the others finished an epoch without it."""
    state_s: float
    """From its second start until its daemon held the others' state."""
    back_s: float | None
    """From its second start until it finished an epoch whose result its contribution is in; None: the run was over before."""


def differing_epochs(hashes: Iterable[Mapping[int, str]]) -> list[int]:
    """Epochs of which two peers saw different states. hashes: epoch → state hash, of each peer."""
    seen: dict[int, set[str]] = {}
    for of_peer in hashes:
        for epoch, state_hash in of_peer.items():
            seen.setdefault(epoch, set()).add(state_hash)
    return sorted(epoch for epoch, states in seen.items() if len(states) > 1)


def shortfalls(results: Sequence[PeerResult], recovery: Recovery, least_accuracy: float) -> list[str]:
    """What must not be; empty when all is well."""
    found = []
    if recovery.back_s is None:
        found.append(f"{recovery.killed} did not take part again before the end")
    if len({(result.epoch, result.state_hash) for result in results}) != 1 or results[0].state_hash is None:
        states = ", ".join(f"{result.name} {(result.state_hash or 'none')[:12]} at epoch {result.epoch}" for result in results)
        found.append(f"the replicas differ: {states}")
    found += [
        f"{result.name}'s accuracy is {_percent(result.accuracy)}, under {_percent(least_accuracy)}"
        for result in results
        if result.accuracy is None or not result.accuracy >= least_accuracy
    ]
    return found


def draw_results(results: Sequence[PeerResult]) -> Table:
    """One row a peer; "float32" is what plain data parallel would have sent, "ratio" how many times more that is."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("peer", "epochs", "samples", "accuracy", "sent", "float32", "ratio", "state hash"):
        table.add_column(title, justify="left" if title in ("peer", "state hash") else "right", no_wrap=True)
    for result in results:
        ratio = f"{result.plain_bytes / result.bytes_sent:.0f}×" if result.bytes_sent else UNKNOWN
        table.add_row(
            result.name,
            str(result.epoch),
            f"{result.samples:,}",
            _percent(result.accuracy),
            in_bytes(result.bytes_sent),
            in_bytes(result.plain_bytes),
            ratio,
            (result.state_hash or UNKNOWN)[:12],
        )
    return table


def tell_recovery(recovery: Recovery) -> str:
    """In words."""
    return (
        f"{recovery.killed} was killed after epoch {recovery.epoch} (kill -9, daemon and trainer). The others finished the next"
        f" epoch {recovery.others_s:.1f} s later. Started again, it held their state after {recovery.state_s:.1f} s"
        + (f" and took part after {recovery.back_s:.1f} s." if recovery.back_s is not None else " and never took part.")
    )


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.1%}"
