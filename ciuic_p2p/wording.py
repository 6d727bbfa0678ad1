"""Quantities as people read them. Pure."""

from __future__ import annotations

import re

UNKNOWN = "–"
"""Stands for what is not known."""


def in_bytes(count: float | None) -> str:
    """1234567 → "1.2 MB"."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(value: float | None, digits: int = 1) -> str:
    """With so many digits."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def bytes_of(text: str) -> int:
    """ "2GB" → 2000000000; also "500 MB", "1.5gb", "4096". Raises ValueError for anything else, and for nothing at all."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?b?)\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is no size; write it as 500MB or 2GB")
    size = float(found[1]) * 1000.0 ** " kmgt".index(found[2].lower().rstrip("b") or " ")
    if size < 1:
        raise ValueError(f"{text!r} is nothing; write a size as 500MB or 2GB")
    return round(size)
