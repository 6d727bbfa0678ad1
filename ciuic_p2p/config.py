"""Where a daemon keeps its things: the only module that reads the environment. Knows nothing of what lies in the home."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def home_from(explicit: str | Path | None) -> Path:
    """The home folder: `explicit`, else CIUIC_HOME, else the platform's user data folder. It need not exist yet."""
    chosen = explicit or os.environ.get("CIUIC_HOME") or platformdirs.user_data_dir("ciuic")
    return Path(chosen).expanduser().absolute()


def socket_path(home: Path) -> Path:
    """The unix socket on which the daemon of this home answers."""
    return home / "daemon.sock"
