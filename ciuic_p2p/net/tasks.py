"""One owner for the tasks of a part that is started and stopped. Knows nothing of what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

_log = structlog.get_logger(__name__)


class TaskSet:
    """Keeps tasks alive, logs one that fails (a defect: expected errors are handled inside), ends them together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def cancel(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self, deadline_s: float) -> None:
        """Waits until all are done by themselves, then cancels the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=deadline_s)
        await self.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task.failed", exc_info=error)
