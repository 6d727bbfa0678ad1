"""Waits for a line of the log, where a test has no other sign of what deliberately has no effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

_PATIENCE_S = 10.0

Entry = MutableMapping[str, Any]


async def logged(entries: Sequence[Entry], wanted: Callable[[Entry], bool]) -> None:
    """entries: what structlog.testing.capture_logs collects. Raises TimeoutError."""
    async with asyncio.timeout(_PATIENCE_S):
        while not any(wanted(entry) for entry in entries):  # noqa: ASYNC110 - the list that structlog fills tells nobody
            await asyncio.sleep(0.01)
