"""Records from files: `Records` in any order, `Pipeline` of `Source` as a stream. Importing this loads none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ciuic_p2p.data.indexed import Records
    from ciuic_p2p.data.pipeline import Pipeline
    from ciuic_p2p.data.sources import Source

_HOMES = {
    "Pipeline": "ciuic_p2p.data.pipeline",
    "Records": "ciuic_p2p.data.indexed",
    "Source": "ciuic_p2p.data.sources",
}

__all__ = ["Pipeline", "Records", "Source"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
