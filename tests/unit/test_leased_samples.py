"""A lease as seen by a DataLoader: handed out once, and used when the training loop has seen it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, IterableDataset

from ciuic_p2p.data.leases import Ledger, Trainer, settle
from ciuic_p2p.data.order import Order
from ciuic_p2p.data.positions import UNBOUNDED, Positions
from ciuic_p2p.data.samples import Handout, LeasedItems, LeasedSampler
from ciuic_p2p.data.slots import Slots
from ciuic_p2p.terms import PeerId


def test_what_is_handed_out_is_used_when_the_loop_has_seen_it() -> None:
    # given a loader that asks for more than was trained on
    sampler = LeasedSampler(100, seed=3)
    sampler.handout.hold(Slots.of([(0, 10, 40)]))
    order = list(Order(100, 3).samples_of(Slots.of([(0, 10, 40)])))
    loaded = iter(DataLoader(list(range(100)), batch_size=4, sampler=sampler))
    assert next(loaded).tolist() == order[:4]
    next(loaded)
    assert sampler.handout.used().count == 0
    # when one batch was trained on
    sampler.handout.use(4)
    assert list(sampler.handout.used().stretches()) == [(0, 10, 14)]
    # then the next lease gives neither of them again, nor what else was handed out
    sampler.handout.hold(Slots.of([(0, 14, 40), (0, 50, 52)]))
    rest = list(itertools.chain.from_iterable(batch.tolist() for batch in loaded))
    assert rest == [*order[8:], *Order(100, 3).samples_of(Slots.of([(0, 50, 52)]))]
    sampler.handout.use(1000)
    assert sampler.handout.used() == Slots.of([(0, 14, 40), (0, 50, 52)])


def test_what_was_taken_away_does_not_count() -> None:
    handout = Handout()
    handout.hold(Slots.of([(0, 0, 4)]))
    for slot in handout.next(4):
        handout.wait_for(slot)
    handout.hold(Slots.of([(0, 2, 4)]))
    handout.use(4)
    assert list(handout.used()) == [(0, 2), (0, 3)]


class Stream(IterableDataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def test_an_iterable_dataset_is_divided_as_well() -> None:
    items = LeasedItems(Stream(10))
    items.handout.hold(Slots.of([(0, 3, 5), (0, 8, 12), (1, 0, 1)]))
    assert list(items) == [3, 4, 8, 9, 0]
    assert list(items.ended().stretches()) == [(0, 10, UNBOUNDED)]
    items.handout.use(5)
    assert list(items.handout.used()) == [(0, 3), (0, 4), (0, 8), (0, 9), (1, 0)]
    # what another lost comes back, from before
    items.handout.hold(Slots.of([(0, 1, 2), (0, 20, 21)]))
    assert list(items) == [1]


@pytest.mark.parametrize("kind", ["map-style", "iterable"])
@pytest.mark.parametrize("seed", range(20))
def test_peers_train_on_every_sample_once_a_pass(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([3, 10, 60])

    def made() -> LeasedSampler | LeasedItems:
        return LeasedSampler(count, 0) if kind == "map-style" else LeasedItems(Stream(count))

    ledger = Ledger(positions=Positions(count=count if kind == "map-style" else UNBOUNDED))
    peers = {PeerId(f"p{i}"): made() for i in range(3)}
    seen: dict[PeerId, list[int]] = {peer: [] for peer in peers}
    trained: Counter[int] = Counter()
    reported = 0
    for epoch in range(600):
        reports = {peer: found.handout.used() for peer, found in peers.items() if rng.random() < 0.8}
        ended = Slots()
        for found in peers.values():
            ended |= found.ended() if isinstance(found, LeasedItems) else Slots()
        for peer, used in reports.items():
            assert used.count == len(seen[peer])
            reported += used.count
            trained.update(seen[peer])
            seen[peer] = []
        there = [Trainer(peer=peer, samples_per_s=rng.choice([1.0, 9.0])) for peer in peers]
        ledger = settle(ledger, there, reports, 12, ended)
        if ledger.positions.finished >= 3:
            break
        for peer, found in peers.items():
            found.handout.hold(ledger.lease_of(peer))
            batch = list(itertools.islice(found, rng.randrange(6)))
            found.handout.use(len(batch))
            seen[peer] += batch
        if rng.random() < 0.1 and len(peers) > 1:
            peers.pop(rng.choice(list(peers)))
        if rng.random() < 0.1:
            late = PeerId(f"late{epoch}")
            peers[late], seen[late] = made(), []
    beyond = sum(min(stop, count) - min(start, count) for _, start, stop in ledger.positions.beyond.stretches())
    passes = ledger.positions.finished
    assert passes >= 3
    assert reported == sum(trained.values()) == passes * count + beyond
    assert len(trained) == count
    assert min(trained.values()) >= passes
