"""Which samples of a dataset are this peer's. Knows no daemon: it asks a function for its position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from ciuic_p2p.errors import LocalError
from ciuic_p2p.local.protocol import Position


class ShareSampler(Sampler):  # type: ignore[misc]  # torch is not followed by mypy
    """Indices of this peer's share, a new permutation and a new position at each pass.

    Peers in the same pass with the same seed have disjoint shares that together are the whole dataset. Peers in different
    passes may meet the same sample, which shuffled training does anyway.
    """

    def __init__(
        self, dataset: Dataset, batch_size: int, shuffle_seed: int, ask_position: Callable[[], Position], passes: Passes
    ) -> None:
        self._count = count_samples(dataset)
        self._batch_size = batch_size
        self._shuffle_seed = shuffle_seed
        self._ask_position = ask_position
        self._passes = passes

    def __iter__(self) -> Iterator[int]:
        position = self._ask_position()
        number = self._passes.begin(position, self._count, self._batch_size)
        return iter(share_of(self._count, position, (self._shuffle_seed, number)).tolist())

    def __len__(self) -> int:
        position = self._ask_position()
        return len(range(position.index, self._count, position.count))


class Passes:
    """Numbers a trainer's passes.

    The first number is where the run's epoch says that the others are: a trainer that was restarted again and again would
    otherwise see the beginning of the first pass each time.
    """

    def __init__(self, inner_steps: int) -> None:
        self._inner_steps = inner_steps
        self._next: int | None = None

    def begin(self, position: Position, sample_count: int, batch_size: int) -> int:
        """The number of the pass that begins now over a dataset of `sample_count`."""
        if self._next is None:
            batches_a_pass = math.ceil(sample_count / (position.count * batch_size))
            self._next = position.epoch * self._inner_steps // batches_a_pass
        number = self._next
        self._next += 1
        return number


def share_of(count: int, position: Position, seed: tuple[int, int]) -> Any:  # [≈ count / position.count] int64
    """The `position.index`-th of `position.count` slices of the permutation that `seed` names; the same on every machine.

    Raises LocalError when nothing is left for this peer.
    """
    share = np.random.default_rng(seed).permutation(count)[position.index :: position.count]
    if len(share) == 0:
        what = f"a dataset of {count} samples leaves none for trainer {position.index + 1} of {position.count}"
        raise LocalError(what, "use a larger dataset or fewer trainers")
    return share


def count_samples(dataset: Any) -> int:
    """Raises LocalError for a dataset without a length, or an empty one."""
    try:
        count = len(dataset)
    except TypeError:
        what = f"a {type(dataset).__name__} has no length, so it cannot be divided"
        raise LocalError(what, "use a map-style dataset, or divide the stream yourself by run.position()") from None
    if count == 0:
        raise LocalError("the dataset is empty", "check where it is loaded from")
    return count
