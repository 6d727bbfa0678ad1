"""Saved states for scripts: have the run saved, read a saved one into a model. Knows the daemon's socket, and no network."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciuic_p2p.config import home_from
from ciuic_p2p.errors import LayoutMismatch, Transient
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import SnapshotOrder, View

if TYPE_CHECKING:
    import torch

LOOK_EVERY_S = 0.2
ASK_AGAIN_S = 2.0
"""After so long without a state of the epoch that was named."""
SAVE_WAIT_S = 600.0
"""Until the epoch under way has ended, and the others have saved it."""
_LENGTH_BYTES = 8
_COMPILED = "_orig_mod."
"""What torch.compile puts before the names of a module that it wraps."""


def save_checkpoint(run: str, home: str | Path | None = None, wait_s: float = SAVE_WAIT_S) -> dict[str, Any]:
    """All peers of the run save the next state that they hold alike; returns what is known of it when it is complete.

    {"run", "epoch", "state_hash", "samples", "size_bytes", "complete", …}. Raises NoDaemon, LocalError for an unknown run, and
    Transient when it is not complete within `wait_s`; it may become so later.
    """
    folder = home_from(home)
    epochs = {_ask(folder, "save", {"run": run})["epoch"]}
    asked_s = time.monotonic()
    deadline_s = asked_s + wait_s
    while time.monotonic() < deadline_s:
        rows: list[dict[str, Any]] = [row for row in _ask(folder, "ls", {"run": run}) if row["epoch"] in epochs]
        for row in rows:
            if row["complete"]:
                return row
        if not rows and time.monotonic() - asked_s > ASK_AGAIN_S:
            # All trainers may have left since, and then the epoch that was to come does not: the one that is held is named now.
            epochs.add(_ask(folder, "save", {"run": run})["epoch"])
            asked_s = time.monotonic()
        time.sleep(LOOK_EVERY_S)
    what = f"the snapshot of {run!r} at epoch {max(epochs)} is not complete after {wait_s:g} s"
    raise Transient(what, "look at `snapshot ls` later")


def load_checkpoint(run: str, model: torch.nn.Module, home: str | Path | None = None, epoch: int | None = None) -> int:
    """Copies a saved state's parameters and floating buffers into the model's own, of whatever dtype and device; its epoch.

    epoch: None for the newest complete one on this peer. Raises NoDaemon, LocalError when there is none, LayoutMismatch when
    the model has other tensors; then nothing was changed.
    """
    with tempfile.TemporaryDirectory(prefix="ciuic-checkpoint-") as folder:
        options: dict[str, Any] = {"run": run, "folder": folder}
        exported = _ask(home_from(home), "export", options | ({} if epoch is None else {"epoch": epoch}))
        _copy_in(Path(exported["file"]), model)
    return int(exported["epoch"])


def _ask(home: Path, what: str, options: dict[str, Any]) -> Any:
    with open_channel(home) as channel:
        return channel.ask(SnapshotOrder(what=what, options=options), View).value


def _copy_in(file: Path, model: torch.nn.Module) -> None:
    import numpy as np
    import torch

    data = np.memmap(file, np.uint8, mode="r")
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    entries = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + header_bytes].tobytes())
    values = data[_LENGTH_BYTES + header_bytes :].view("<f4")
    entries.pop("__metadata__", None)
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors = {name.replace(_COMPILED, ""): tensor for name, tensor in named.items()}
    for name, entry in entries.items():
        if name not in tensors or list(tensors[name].shape) != entry["shape"]:
            there = f"has {list(tensors[name].shape)}" if name in tensors else "does not have it"
            what = f"tensor {name} of the snapshot is {entry['shape']}, the model {there}"
            raise LayoutMismatch(what, "load it into a model like the one that was trained")
    with torch.no_grad():
        for name, entry in entries.items():
            start, stop = (offset // 4 for offset in entry["data_offsets"])
            saved = torch.from_numpy(values[start:stop].copy()).reshape(entry["shape"])
            tensors[name].copy_(saved)
