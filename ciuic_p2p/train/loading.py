"""A DataLoader over what a trainer holds of a map-style dataset. Knows neither daemon nor model: it asks for both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Sampler

from ciuic_p2p.data.indexed import Records
from ciuic_p2p.data.order import Order
from ciuic_p2p.data.sources import Source
from ciuic_p2p.errors import LocalError
from ciuic_p2p.train.shares import Share

_OURS = ("sampler", "batch_sampler", "shuffle")
_PREFETCH = 2
"""Batches ahead that each worker of a DataLoader makes, where nothing else is said."""

Supply = Callable[[Share], None]
"""Called between two batches when all that is held is used: ends with more, or raises."""


class LeasedLoader(DataLoader):  # type: ignore[misc]  # torch is not followed by mypy
    """Each iteration is one pass over this trainer's share. Its length is what the share should be, about."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        order: Order,
        share: Share,
        supply: Supply,
        estimate: Callable[[], int],
        *,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        """estimate: about how many samples of a pass this trainer gets. options: those of a DataLoader."""
        self._share, self._supply = share, supply
        self._least = batch_size if drop_last else 1
        batches = _Batches(share, order, batch_size, self._least, estimate)
        super().__init__(dataset, batch_sampler=batches, **options)

    def __iter__(self) -> Iterator[Any]:
        while not self._share.begin_pass():
            self._supply(self._share)
        while True:
            for batch in super().__iter__():
                if self._share.deliver():
                    yield batch
            while not self._share.has_more(self._least):
                if self._share.is_over():
                    return
                self._supply(self._share)


class _Batches(Sampler):  # type: ignore[misc]
    def __init__(self, share: Share, order: Order, batch_size: int, least: int, estimate: Callable[[], int]) -> None:
        self._share, self._order = share, order
        self._batch_size, self._least = batch_size, least
        self._estimate = estimate

    def __iter__(self) -> Iterator[list[int]]:
        while (slots := self._share.take(self._batch_size, self._least)).count:
            batch: list[int] = []
            for number, start, stop in slots.stretches():
                batch += self._order.samples_at(number, np.arange(start, stop)).tolist()
            yield batch

    def __len__(self) -> int:
        samples = self._estimate()
        return samples // self._batch_size if self._least > 1 else -(-samples // self._batch_size)


def records_of(dataset: Any, home: Path | None) -> Any:
    """Of what names files, their records; any other dataset as it is. Raises what Records raises."""
    return Records(dataset, home) if isinstance(dataset, str | os.PathLike | Source) else dataset


def require_count(name: str, value: Any) -> None:
    """Raises LocalError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LocalError(f"{name}={value!r} is no number of them", "use a whole number, 1 or more")


def require_options(options: dict[str, Any]) -> None:
    """Raises LocalError for what would take from `shard` the choice of samples, or the order of batches."""
    if ours := [name for name in _OURS if name in options]:
        raise LocalError(f"run.shard chooses the samples itself, so {ours[0]} has no meaning", "leave it out")
    if options.get("in_order") is False:
        raise LocalError("batches must come in the order in which they were asked for", "leave out in_order=False")


def batches_ahead(options: dict[str, Any]) -> int:
    """How many are made before the training loop asks for them."""
    workers = options.get("num_workers", 0)
    return workers * (options.get("prefetch_factor") or _PREFETCH) if workers else 0
