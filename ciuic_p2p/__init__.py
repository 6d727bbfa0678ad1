"""Train one PyTorch model over the ordinary Internet, peer to peer.

Importing this is cheap: torch and the rest are loaded when one of the names below is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ciuic_p2p.errors import (
        CheckpointUnreadable,
        ConfigError,
        DaemonGone,
        LayoutMismatch,
        LocalError,
        NoDaemon,
        ObjectMissing,
        ObjectUnreadable,
        StoreFull,
        SwarmError,
        TooFewCopies,
        VersionGone,
    )
    from ciuic_p2p.train.client import Client
    from ciuic_p2p.train.dcp import CiuicReader, CiuicWriter
    from ciuic_p2p.train.run import Run, join
    from ciuic_p2p.train.strategies import DiLoCo

_HOMES = {
    "join": "ciuic_p2p.train.run",
    "Client": "ciuic_p2p.train.client",
    "CiuicReader": "ciuic_p2p.train.dcp",
    "CiuicWriter": "ciuic_p2p.train.dcp",
    "Run": "ciuic_p2p.train.run",
    "DiLoCo": "ciuic_p2p.train.strategies",
    "SwarmError": "ciuic_p2p.errors",
    "CheckpointUnreadable": "ciuic_p2p.errors",
    "LocalError": "ciuic_p2p.errors",
    "ConfigError": "ciuic_p2p.errors",
    "NoDaemon": "ciuic_p2p.errors",
    "LayoutMismatch": "ciuic_p2p.errors",
    "DaemonGone": "ciuic_p2p.errors",
    "ObjectMissing": "ciuic_p2p.errors",
    "ObjectUnreadable": "ciuic_p2p.errors",
    "StoreFull": "ciuic_p2p.errors",
    "TooFewCopies": "ciuic_p2p.errors",
    "VersionGone": "ciuic_p2p.errors",
}

__all__ = [
    "CheckpointUnreadable",
    "CiuicReader",
    "CiuicWriter",
    "Client",
    "ConfigError",
    "DaemonGone",
    "DiLoCo",
    "LayoutMismatch",
    "LocalError",
    "NoDaemon",
    "ObjectMissing",
    "ObjectUnreadable",
    "Run",
    "StoreFull",
    "SwarmError",
    "TooFewCopies",
    "VersionGone",
    "join",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
