"""Work on a stream of items by a few threads, in order and in constant memory. Knows nothing of the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")


def in_order(work: Callable[[Item], Done], items: Iterable[Item], threads: int) -> Generator[Done]:
    """`work` of each item, in the order of the items, by so many threads at once.

    `items` is advanced by the caller's thread, and never more than threads + 1 ahead of what the caller took. What `work`
    raises is raised in its turn. When the caller stops early, what was begun is waited for and the rest is not begun.
    """
    begun: deque[Future[Done]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="blob") as pool:
        try:
            for item in items:
                begun.append(pool.submit(work, item))
                if len(begun) > threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()
