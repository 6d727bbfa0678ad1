"""Which samples are whose: all of them, once, in every pass; and what a trainer did with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from ciuic_p2p.data.slots import Slots
from ciuic_p2p.errors import LocalError
from ciuic_p2p.train.shares import Lease, Share, count_samples
from ciuic_p2p.train.tally import Tally, count_of


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class LongStream(Stream):
    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("dataset", "complaint"),
    [
        (Stream(), "a Stream has no length.*use a map-style dataset, the URL of files"),
        (LongStream(), "a LongStream has no length, or no samples by their number"),
        (iter(range(3)), "has no length"),
        ({1, 2}, "a set has no length, or no samples by their number"),
        ([], "empty"),
    ],
)
def test_what_cannot_be_divided_is_refused(dataset: Any, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint):
        count_samples(dataset)


class Ledger:
    """Gives what a test says that is held, and hears who waits."""

    def __init__(self, *stretches: tuple[int, int, int], open_pass: int = 0) -> None:
        self.lease = Lease(Slots.of(stretches), open_pass)
        self.waited = 0

    def ask(self, share: Share, waits: bool) -> Lease:
        self.waited += waits
        return self.lease

    def share(self) -> Share:
        return Share("data", 40, 8, self.ask)


def stretches(slots: Slots) -> list[tuple[int, int, int]]:
    return list(slots.stretches())


def test_what_is_delivered_is_used_and_what_is_only_handed_out_is_not() -> None:
    share = Ledger((0, 0, 12)).share()
    assert share.begin_pass()
    assert [stretches(share.take(5)) for _ in range(2)] == [[(0, 0, 5)], [(0, 5, 10)]]
    assert share.deliver()
    assert stretches(share.used) == [(0, 0, 5)]
    # another iteration begins with what was not delivered
    assert share.begin_pass()
    assert stretches(share.take(9)) == [(0, 5, 12)]


def test_what_did_not_count_is_handed_out_again() -> None:
    ledger = Ledger((0, 0, 8))
    share = ledger.share()
    share.begin_pass()
    share.take(4)
    share.deliver()
    share.anchor_loaded()  # and it is still held
    assert stretches(share.take(8)) == [(0, 0, 8)]


def test_a_batch_that_is_anothers_by_now_is_not_delivered() -> None:
    ledger = Ledger((0, 0, 8))
    share = ledger.share()
    share.begin_pass()
    share.take(4)
    ledger.lease = Lease(Slots.of([(0, 2, 10)]), 0)
    share.anchor_loaded()
    assert not share.deliver()
    assert stretches(share.take(9)) == [(0, 2, 10)], "what of it is held still is handed out again"


@pytest.mark.parametrize(
    ("held", "open_pass", "is_over"),
    [([(0, 0, 4)], 0, False), ([(0, 0, 4)], 1, True), ([(0, 0, 4), (1, 0, 4)], 0, True), ([(0, 0, 4), (1, 0, 4)], 1, True)],
)
def test_a_pass_is_over_when_nothing_of_it_is_free_or_the_next_one_was_begun(
    held: list[tuple[int, int, int]], open_pass: int, is_over: bool
) -> None:
    share = Ledger(*held, open_pass=open_pass).share()
    share.begin_pass()
    share.take(4)
    share.deliver()
    assert not share.has_more()
    assert share.is_over() == is_over


def test_each_pass_is_another_one_and_takes_along_what_came_back() -> None:
    ledger = Ledger((3, 0, 4), (4, 0, 4))
    share = ledger.share()
    assert share.begin_pass()
    assert share.pass_number == 3
    ledger.lease = Lease(Slots.of([(1, 7, 9), (4, 0, 4), (5, 0, 4)]), 5)
    assert share.begin_pass()
    assert stretches(share.take(40)) == [(1, 7, 9), (4, 0, 4)]


def test_a_loader_takes_only_whole_batches_where_it_drops_the_last() -> None:
    share = Ledger((0, 0, 6)).share()
    share.begin_pass()
    assert share.take(4, least=4).count == 4
    assert not share.take(4, least=4).count
    assert not share.has_more(least=4)
    assert share.has_more()


def test_a_tally_adds_up() -> None:
    tally = Tally()
    tally.add(10, 1.0)
    tally.add(30, torch.tensor(3.0, requires_grad=True))
    tally.add(5, None)
    tally.add(0, 7.0)
    assert (tally.samples, tally.steps, tally.loss) == (45, 4, 2.5)
    assert (tally.ready().samples, tally.ready_without_weight().samples) == (45, 0)


def test_many_losses_in_half_precision_are_summed_exactly_enough() -> None:
    tally = Tally()
    for _ in range(1000):
        tally.add(32, torch.tensor(2.0, dtype=torch.bfloat16))
    assert tally.loss == 2.0


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), torch.tensor(float("nan"))])
def test_a_loss_that_is_not_finite_is_not_told(loss: Any) -> None:
    tally = Tally()
    tally.add(4, loss)
    assert tally.loss is None
    assert tally.progress().loss is None


def test_a_loss_of_several_values_is_refused_and_one_in_brackets_is_not() -> None:
    with pytest.raises(LocalError, match=r"the loss has shape \(3,\)"):
        Tally().add(3, torch.ones(3))
    tally = Tally()
    tally.add(3, torch.ones(1))
    assert tally.loss == 1.0


@pytest.mark.parametrize("samples", [4, np.int64(4), torch.tensor(4)])
def test_a_number_of_samples_may_come_from_anywhere(samples: Any) -> None:
    assert count_of(samples) == 4
    assert type(count_of(samples)) is int


@pytest.mark.parametrize("samples", [-1, 1.5, True, None, "4", torch.ones(2)])
def test_what_is_no_number_of_samples_is_refused(samples: Any) -> None:
    with pytest.raises(LocalError, match="is not a number of samples"):
        count_of(samples)
