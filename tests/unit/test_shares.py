"""Which samples are whose: all of them, once, in every pass; and what a trainer did with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset

from ciuic_p2p.errors import LocalError
from ciuic_p2p.local.protocol import Position
from ciuic_p2p.train.shares import Passes, ShareSampler, count_samples, share_of
from ciuic_p2p.train.tally import Tally, count_of


def at(index: int, count: int, epoch: int = 0) -> Position:
    return Position(index=index, count=count, epoch=epoch)


def shares(samples: int, peers: int, seed: tuple[int, int] = (0, 0)) -> list[list[int]]:
    return [share_of(samples, at(index, peers), seed).tolist() for index in range(peers)]


@given(peers=st.integers(1, 20), more=st.integers(0, 300), seed=st.tuples(st.integers(0, 99), st.integers(0, 99)))
@settings(max_examples=50)
def test_in_a_pass_every_sample_is_somebodys_once(peers: int, more: int, seed: tuple[int, int]) -> None:
    samples = peers + more
    divided = shares(samples, peers, seed)
    assert Counter(i for share in divided for i in share) == Counter(range(samples))
    assert max(map(len, divided)) - min(map(len, divided)) <= 1
    assert divided == shares(samples, peers, seed), "the same on every machine"


def test_another_pass_or_another_seed_is_another_order() -> None:
    assert len({tuple(shares(100, 2, seed)[0]) for seed in ((0, 0), (0, 1), (1, 0), (1, 1))}) == 4


def test_a_share_of_nothing_is_an_error_that_says_whose() -> None:
    with pytest.raises(LocalError, match="a dataset of 2 samples leaves none for trainer 3 of 3"):
        share_of(2, at(2, 3), (0, 0))


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(("dataset", "complaint"), [(Stream(), "has no length"), ([], "empty")])
def test_what_cannot_be_divided_is_refused(dataset: Any, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint):
        count_samples(dataset)


def sampler(position: Callable[[], Position], passes: Passes, samples: int = 40) -> ShareSampler:
    return ShareSampler(TensorDataset(torch.arange(samples)), 4, 0, position, passes)


def test_passes_follow_one_another_and_heed_who_joined() -> None:
    positions = [at(0, 1), at(0, 2), at(0, 2)]
    loaded = sampler(lambda: positions[0], Passes(5))
    first = list(loaded)
    assert sorted(first) == list(range(40))
    positions.pop(0)
    second = list(loaded)
    assert len(second) == len(loaded) == 20
    others = list(sampler(lambda: at(1, 2), started_at(1)))
    assert sorted(second + others) == list(range(40))
    assert set(second) != set(loaded)


def started_at(number: int) -> Passes:
    passes = Passes(5)
    for _ in range(number):
        passes.begin(at(0, 1), 40, 4)
    return passes


def test_a_restarted_trainer_goes_on_with_the_pass_that_the_others_are_in() -> None:
    # given 40 samples for 2 trainers in batches of 4: 5 batches a pass, 5 steps an epoch
    steady, restarted = Passes(5), Passes(5)
    steady_numbers = [steady.begin(at(0, 2, epoch), 40, 4) for epoch in range(4)]
    # when another one begins at epoch 3
    assert restarted.begin(at(1, 2, 3), 40, 4) == steady_numbers[3] == 3
    # then it counts on from there
    assert restarted.begin(at(1, 2, 3), 40, 4) == 4


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
