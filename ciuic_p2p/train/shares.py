"""What a trainer holds of one dataset, and what of that it has handed out and used. Knows no daemon: it asks a function.

A DataLoader asks for samples long before they are trained on. So a batch is first handed out, then delivered to the training
loop, and from then on used: it goes with the next contribution. What was used without a contribution that counted is still
held after the next anchor was loaded, and is handed out again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from ciuic_p2p.data.positions import slots_to_plain
from ciuic_p2p.data.slots import NO_SLOTS, Slots
from ciuic_p2p.errors import LocalError


@dataclass(frozen=True, slots=True)
class Lease:
    """What the daemon says that this trainer holds."""

    slots: Slots
    open_pass: int
    """The first pass of which something is neither used nor anybody's."""


Ask = Callable[["Share", bool], Lease]
"""For what is held of a share's dataset now; True: waits until that is something."""


class Share:
    """Of one dataset, by one trainer."""

    def __init__(self, dataset: str, count: int, samples_a_round: int, ask: Ask) -> None:
        """count: slots in a pass. samples_a_round: how many are needed from one anchor to the next, as far as is known."""
        self.dataset = dataset
        self.count = count
        self.samples_a_round = samples_a_round
        self.used = NO_SLOTS
        """Delivered to the training loop since the anchor was loaded."""
        self.pass_number: int | None = None
        """The last one whose samples the iteration under way is given."""
        self._ask = ask
        self._lease = Lease(NO_SLOTS, 0)
        self._is_stale = True
        self._waiting: deque[Slots] = deque()

    # -- one pass over what is this trainer's --------------------------------------------------------------------------

    def begin_pass(self) -> bool:
        """False while nothing is held. What was handed out before and was not delivered is handed out again."""
        self._waiting.clear()
        self.refresh()
        fresh = self._fresh()
        if not fresh.count:
            return False
        lowest = fresh.passes[0][0]
        self.pass_number = lowest if self.pass_number is None else max(lowest, self.pass_number + 1)
        return True

    def take(self, count: int, least: int = 1) -> Slots:
        """Hands out the lowest `count` slots of this pass, or as many as there are; none where there are fewer than `least`."""
        found = self._fresh_in_pass()
        if found.count < max(least, 1):
            self.refresh()
            found = self._fresh_in_pass()
        taken = found.first(count) if found.count >= least else NO_SLOTS
        if taken.count:
            self._waiting.append(taken)
        return taken

    def take_singly(self, count: int) -> Slots:
        """As `take`, but each slot is delivered by itself."""
        taken = self.take(count)
        if taken.count:
            self._waiting.pop()
            self._waiting.extend(Slots.of([(number, slot, slot + 1)]) for number, slot in taken)
        return taken

    def deliver(self) -> bool:
        """The batch that was handed out first reaches the training loop. False: it is another's by now, and not to be used."""
        batch = self._waiting.popleft()
        if (batch - self._held().slots).count:
            return False
        self.used |= batch
        return True

    def holds_something(self) -> bool:
        return self._held().slots.count > 0

    def holds_what_waits(self) -> bool:
        """Whether all that was handed out and is not delivered is this trainer's still."""
        return not (self._handed_out() - self._held().slots).count

    def has_more(self, least: int = 1) -> bool:
        """Of this pass, now."""
        self.refresh()
        return self._fresh_in_pass().count >= least

    def is_over(self) -> bool:
        """Whether this pass is: all of it is used, or others'; or this trainer was given slots of the next one already."""
        assert self.pass_number is not None
        held = self._held()
        return held.open_pass > self.pass_number or any(number > self.pass_number for number, _ in self._fresh().passes)

    def wait(self) -> None:
        """Until something is held."""
        self._lease, self._is_stale = self._ask(self, True), False

    # -- contributions -------------------------------------------------------------------------------------------------

    def report(self) -> list[list[int]]:
        """What goes with a contribution."""
        return slots_to_plain(self.used)

    def anchor_loaded(self) -> None:
        """What was used counts, or is still held; the daemon knows."""
        self.used, self._is_stale = NO_SLOTS, True

    def refresh(self) -> None:
        self._lease, self._is_stale = self._ask(self, False), False

    def ran_dry(self, steps: int, inner_steps: int) -> None:
        """After so many steps all that was held is used: next time more is needed."""
        needed = math.ceil(self.used.count * (inner_steps + 1) / max(1, steps))
        self.samples_a_round = max(self.samples_a_round, needed)

    def more(self) -> None:
        """What is held does not fill a batch: next time twice as much is needed."""
        self.samples_a_round *= 2
        self.refresh()

    def _held(self) -> Lease:
        if self._is_stale:
            self.refresh()
        return self._lease

    def _fresh(self) -> Slots:
        return self._held().slots - self.used - self._handed_out()

    def _handed_out(self) -> Slots:
        return Slots.of(stretch for batch in self._waiting for stretch in batch.stretches())

    def _fresh_in_pass(self) -> Slots:
        assert self.pass_number is not None
        last = self.pass_number
        return Slots(tuple((number, slots) for number, slots in self._fresh().passes if number <= last))


def count_samples(dataset: Any) -> int:
    """Raises LocalError for a dataset that is no map-style one, or an empty one."""
    try:
        count = len(dataset) if hasattr(dataset, "__getitem__") else None
    except (TypeError, NotImplementedError):  # torch's IterableDataset has __getitem__, by inheritance
        count = None
    if count is None or isinstance(dataset, IterableDataset):
        what = f"a {type(dataset).__name__} has no length, or no samples by their number, so it cannot be divided"
        remedy = (
            "use a map-style dataset, the URL of files of records or a data.Pipeline, or divide the stream by run.position()"
        )
        raise LocalError(what, remedy)
    if count == 0:
        raise LocalError("the dataset is empty", "check where it is loaded from")
    return count
