"""Libraries of the extra `data`, loaded when they are first used. Knows none of them."""

from __future__ import annotations

import importlib
from types import ModuleType

from ciuic_p2p.errors import LocalError


def load(name: str) -> ModuleType:
    """Raises LocalError that names what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        what = f"{name.partition('.')[0]} is not installed" if isinstance(error, ModuleNotFoundError) else f"{name}: {error}"
        raise LocalError(what, "run: pip install 'ciuic-p2p[data]'") from None
