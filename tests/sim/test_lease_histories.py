"""Random histories of trainers that join, leave, die, fall behind and restart: each sample counts once in each pass."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from ciuic_p2p.data.leases import Ledger, Trainer, settle
from ciuic_p2p.data.positions import Positions
from ciuic_p2p.data.slots import Slots
from ciuic_p2p.terms import PeerId

SEEDS = range(300)


class History:
    """What is true of one run: who is there, what each used since its last report, and what came to count."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.choice([1, 2, 7, 50, 400])
        self.ledger = Ledger(positions=Positions(count=self.count))
        self.speeds: dict[PeerId, float] = {}
        self.unreported: dict[PeerId, Slots] = {}
        self.counted: Counter[tuple[int, int]] = Counter()
        self.born = 0
        self.join()

    def join(self) -> None:
        peer = PeerId(f"peer-{self.rng.randrange(1000):03}-{self.born}")
        self.born += 1
        self.speeds[peer] = self.rng.choice([0.5, 1.0, 3.0, 40.0])
        self.unreported[peer] = Slots()

    def forget(self, peer: PeerId) -> None:
        del self.speeds[peer]
        del self.unreported[peer]

    def train(self, share: float) -> None:
        for peer, used in self.unreported.items():
            lease = self.ledger.lease_of(peer) - used
            self.unreported[peer] = used | lease.first(round(lease.count * min(1.0, share * self.rng.uniform(0.5, 1.5))))

    def end_epoch(self, silent: set[PeerId], left: set[PeerId]) -> None:
        """silent: alive, in the swarm, and not in this round. left: reported, and go."""
        reports = {peer: used for peer, used in self.unreported.items() if peer not in silent}
        for peer, used in reports.items():
            self.counted.update(used)
            assert not (used - self.ledger.lease_of(peer)).count, "a trainer uses what it holds"
            self.unreported[peer] = Slots()
        for peer in left:
            self.forget(peer)
        there = [Trainer(peer=peer, samples_per_s=speed) for peer, speed in self.speeds.items()]
        self.rng.shuffle(there)
        ahead = self.rng.choice([1, 10, 2 * self.count + 1])
        after = settle(self.ledger, there, reports, ahead)
        assert after == settle(self.ledger, there[::-1], dict(reversed(reports.items())), ahead), "the same on every peer"
        self.ledger = Ledger.from_plain(json.loads(json.dumps(after.to_plain())))
        assert self.ledger == after

    def restart_all(self) -> None:
        """From a snapshot of the last epoch: what was trained on since is lost."""
        self.ledger = Ledger(positions=self.ledger.positions)
        self.unreported = {peer: Slots() for peer in self.unreported}

    def live_one_epoch(self) -> None:
        self.train(self.rng.choice([0.0, 0.3, 1.0]))
        for peer in [peer for peer in self.speeds if self.rng.random() < 0.1]:
            self.forget(peer)  # dies with what it had not reported
        if self.rng.random() < 0.05:
            self.restart_all()
        while not self.speeds or self.rng.random() < 0.2:
            self.join()
        silent = {peer for peer in self.speeds if self.rng.random() < 0.2}
        left = {peer for peer in self.speeds if peer not in silent and self.rng.random() < 0.05}
        self.end_epoch(silent, left)

    def check(self) -> None:
        positions = self.ledger.positions
        expected = Counter((number, slot) for number in range(positions.finished) for slot in range(self.count))
        expected.update(positions.beyond)
        assert self.counted == expected


@pytest.mark.parametrize("block", range(10))
def test_every_sample_counts_once_in_every_pass(block: int) -> None:
    for seed in SEEDS[block::10]:
        history = History(seed)
        for _ in range(40):
            history.live_one_epoch()
            history.check()
        # when nobody disturbs any more, then the passes that were begun come to an end
        history.join()
        latest = max([number for number, _, _ in history.ledger.positions.beyond.stretches()], default=0)
        for _ in range(2 * (history.count + 2) * (latest + 2)):
            history.train(1.0)
            history.train(2.0)
            history.end_epoch(set(), set())
            if history.ledger.positions.finished > latest:
                break
        history.check()
        assert history.ledger.positions.finished > latest, seed
