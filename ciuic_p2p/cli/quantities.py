"""Quantities as people write them: 500MB, 80ms. Pure."""

from __future__ import annotations

import math
import re

from ciuic_p2p.errors import ConfigError

QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "m": 60.0, "h": 3600.0}


def bytes_from(text: str) -> int:
    """ "1.5GB" → 1500000000. Raises ConfigError."""
    return round(_read(text, BYTES, f"{text!r} is no size", "give a number and a unit, such as 500MB, 2GB or 1GiB"))


def seconds_from(text: str) -> float:
    """ "80ms" → 0.08. Raises ConfigError."""
    return _read(text, SECONDS, f"{text!r} is no time", "give a number and a unit, such as 0.5s, 80ms or 2min")


def _read(text: str, units: dict[str, int] | dict[str, float], what: str, remedy: str) -> float:
    match = QUANTITY.fullmatch(text)
    unit = units.get(match[2].lower()) if match is not None else None
    value = float(match[1]) * unit if match is not None and unit is not None else math.nan
    if not math.isfinite(value):
        raise ConfigError(what, remedy)
    return value
