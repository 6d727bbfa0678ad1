"""Tries several ways at once, each with a head start before the next (as RFC 8305 does). Refuses to know what is tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ciuic_p2p.errors import PeerUnreachable, RemoteError, Transient

Attempt = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Way:
    """attempt: raises Transient or RemoteError when it fails. head_start_s: before the next way is tried beside it."""

    attempt: Attempt
    head_start_s: float


async def take_first(ways: Sequence[Way]) -> None:
    """Returns when one succeeded; the others are cancelled. Raises the RemoteError if one failed so, else PeerUnreachable."""
    race = _Race()
    try:
        for way in ways:
            race.start(way.attempt)
            if await race.won(way.head_start_s):
                return
        if await race.won(None):
            return
    finally:
        await race.stop()
    raise race.failure()


class _Race:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._errors: list[Transient | RemoteError] = []

    def start(self, attempt: Attempt) -> None:
        self._running.add(asyncio.get_running_loop().create_task(attempt()))

    async def won(self, wait_s: float | None) -> bool:
        """Waits until one succeeded, all failed, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = None if wait_s is None else loop.time() + wait_s
        while self._running:
            left = None if deadline is None else max(0.0, deadline - loop.time())
            done, self._running = await asyncio.wait(self._running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return False
            outcomes = [self._succeeded(task) for task in done]  # all are asked: an exception nobody fetched would be logged
            if any(outcomes):
                return True
        return False

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def failure(self) -> Transient | RemoteError:
        for error in self._errors:
            if isinstance(error, RemoteError):
                return error
        return PeerUnreachable("; ".join(error.what for error in self._errors) or "no address and no relay is known")

    def _succeeded(self, task: asyncio.Task[None]) -> bool:
        try:
            task.result()
        except (Transient, RemoteError) as error:
            self._errors.append(error)
            return False
        return True
