"""Quantities as people read them. Pure."""

from __future__ import annotations

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
