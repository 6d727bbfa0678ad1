"""The samples of a lease for a DataLoader: indices of a map-style dataset, or items of an iterable one.

A DataLoader asks for samples before they are trained on. So what is handed out is one thing, and what is used another: the
training loop says how many samples it has seen, and they are the first that were handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ciuic_p2p.data.order import Order
from ciuic_p2p.data.positions import UNBOUNDED
from ciuic_p2p.data.slots import NO_SLOTS, Slots

_BLOCK = 1 << 10
"""Slots handed out at once: indices are computed in one go."""


class Handout:
    """What of a lease was handed out, and what of that is used."""

    def __init__(self) -> None:
        self._lease = NO_SLOTS
        self._given = NO_SLOTS
        self._used = NO_SLOTS
        self._waiting: deque[tuple[int, int]] = deque()

    def hold(self, lease: Slots) -> None:
        """From now on the lease is this. What of it was handed out is not handed out again, reported or not."""
        self._lease = lease
        self._given &= lease
        self._used &= lease

    def begin_anew(self) -> None:
        """What was handed out and is not used will be handed out again: nobody waits for it any more."""
        self._given = self._used
        self._waiting.clear()

    def next(self, count: int) -> Slots:
        """At most `count` slots that were not handed out, the lowest first; they count as handed out from now on."""
        slots = (self._lease - self._given).first(count)
        self._given |= slots
        return slots

    def wait_for(self, slot: tuple[int, int]) -> None:
        """This slot is on its way to the training loop."""
        self._waiting.append(slot)

    def use(self, count: int) -> None:
        """The training loop has seen so many samples more. Others than those handed out do not count."""
        seen = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        self._used |= Slots.of((number, slot, slot + 1) for number, slot in seen) & self._lease

    def used(self) -> Slots:
        """Of the lease: to be reported along with the contribution."""
        return self._used


class LeasedSampler:
    """Indices of the samples of a lease, for `DataLoader(dataset, sampler=…)`. Ends when all of the lease was handed out.

    Each iteration begins with what is not used yet.
    """

    def __init__(self, count: int, seed: int) -> None:
        """count: samples of the dataset. seed: of the order; the same on every peer."""
        self.handout = Handout()
        self._order = Order(count, seed)

    def __iter__(self) -> Iterator[int]:
        self.handout.begin_anew()
        while (slots := self.handout.next(_BLOCK)).count:
            for number, start, stop in slots.stretches():
                there = np.arange(start, stop)
                for slot, sample in zip(there.tolist(), self._order.samples_at(number, there).tolist(), strict=True):
                    self.handout.wait_for((number, slot))
                    yield sample


class LeasedItems:
    """Items of an iterable dataset that gives the same ones each time it is iterated; those of other peers are passed over.

    Its slots are UNBOUNDED; `ended` says where a pass was found to end. Each iteration begins with what is not used yet; to
    go back costs iterating over the dataset anew.
    """

    def __init__(self, dataset: Iterable[Any]) -> None:
        self.handout = Handout()
        self._dataset = dataset
        self._stream: Iterator[Any] = iter(())
        self._next = (-1, 0)
        self._ends: dict[int, int] = {}

    def ended(self) -> Slots:
        """Of passes whose end was found, the slots after it: for `settle` on every peer."""
        return Slots.of((number, end, UNBOUNDED) for number, end in self._ends.items())

    def __iter__(self) -> Iterator[Any]:
        self.handout.begin_anew()
        while (slots := self.handout.next(1)).count:
            [(number, slot)] = slots
            if slot < self._ends.get(number, UNBOUNDED) and self._go_to(number, slot):
                item = next(self._stream, self)
                self._next = (number, slot + 1)
                if item is not self:
                    self.handout.wait_for((number, slot))
                    yield item
                    continue
                self._ends[number] = slot

    def _go_to(self, number: int, slot: int) -> bool:
        """Whether the stream is before this slot now; else it ended earlier."""
        if self._next[0] != number or self._next[1] > slot:
            self._stream, self._next = iter(self._dataset), (number, 0)
        for at in range(self._next[1], slot):
            if next(self._stream, self) is self:
                self._ends[number] = at
                self._next = (-1, 0)
                return False
        return True
