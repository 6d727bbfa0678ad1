"""The ocean is cut: both halves of a swarm train on, and when it is there again they are one run, by a rule that all know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_kit import PeerProcess, daemons, wait_for, wait_until_met
from trainer_kit import ENDLESS, RUN, Part, TrainerProcess, assert_same_hashes, begin_together, mean_of

from ciuic_p2p.lab.lab import Lab, RunningLab
from ciuic_p2p.lab.topology import Host, Topology

pytestmark = pytest.mark.lab

VALUES = 20_000
PARTS = {"us0": Part(60.0, 1), "us1": Part(120.0, 1), "eu0": Part(240.0, 5), "eu1": Part(480.0, 5)}
"""In as many epochs the European half counts five times the samples of the other: its state goes on."""
TOPOLOGY = Topology(
    hosts=tuple(Host(name=name, region=name[:2], up_mbps=100, down_mbps=100) for name in PARTS),
    rtt_ms={"us-us": 4, "eu-eu": 4, "us-eu": 40},
)
CUT = replace(TOPOLOGY, loss={"us-eu": 1.0})
APART_EPOCHS = 5
SETTINGS = {"CIUIC_PROBE_PERIOD_S": "0.25", "CIUIC_LOG_LEVEL": "debug"}
"""A peer is given up after two seconds, so that a test need not wait for long."""


class Half:
    """The peers of one region and their trainers."""

    def __init__(self, region: str, trainers: Sequence[TrainerProcess]) -> None:
        self.trainers = [trainer for trainer in trainers if trainer.peer.name.startswith(region)]
        self.names = {trainer.peer.name for trainer in self.trainers}

    def wait_until_alone(self) -> None:
        for trainer in self.trainers:
            wait_for(lambda trainer=trainer: trainer.peer.alive() == self.names, f"{trainer.peer.name} sees its half only")

    def train_alone(self, epochs: int) -> int:
        """So many epochs at least in which all of this half and nobody else are. Returns the newest."""
        reached = max(trainer.epoch for trainer in self.trainers) + epochs
        for trainer in self.trainers:
            trainer.wait_for_epoch(reached)
            apart = [step for step in trainer.steps if reached - epochs + 2 <= step.epoch <= reached]
            assert len(apart) == epochs - 1, "an epoch was skipped or repeated"
            assert all(set(step.peers) == self.names and step.counted for step in apart)
        assert_same_hashes(self.trainers, range(reached - epochs + 2, reached + 1))
        return reached

    def given_up_samples(self) -> list[int]:
        return [trainer.peer.run(RUN)["given_up_samples"] for trainer in self.trainers]


@contextmanager
def training_over_the_ocean(folder: Path) -> Iterator[tuple[RunningLab, list[TrainerProcess]]]:
    """Four peers in a lab that have been in one mean and train on."""
    with Lab(TOPOLOGY) as lab, daemons(folder, **SETTINGS) as made:
        peers: list[PeerProcess] = []
        for name, address in lab.addresses.items():
            peer = made.new(name)
            peer.within = tuple(lab.command(name, []))
            joined = ["--join", peers[0].join] if peers else []
            peer.start("--region", name[:2], *joined, listen=f"/ip4/{address}/tcp/0")
            peers.append(peer)
        wait_until_met(peers)
        trainers = [TrainerProcess(peer, PARTS[peer.name], VALUES) for peer in peers]
        begin_together(trainers)
        for trainer in trainers:
            trainer.train_until(ENDLESS)
        yield lab, trainers


def last_common_epoch(trainers: Sequence[TrainerProcess], until: int) -> int:
    """Of those before `until`: the newest with one hash on all."""
    states = [{(step.epoch, step.state_hash) for step in trainer.steps if step.epoch < until} for trainer in trainers]
    return max(epoch for epoch, _ in set.intersection(*states))


def test_both_halves_train_on_and_become_one_run_again(tmp_path: Path) -> None:
    with training_over_the_ocean(tmp_path) as (lab, trainers):
        less, more = Half("us", trainers), Half("eu", trainers)

        # when the ocean is cut in the midst of training
        lab.set(CUT)

        # then each half finds itself alone and trains on, with its own members in every mean
        for half in (less, more):
            half.wait_until_alone()
        reached = {half: half.train_alone(APART_EPOCHS) for half in (less, more)}
        fork = last_common_epoch(trainers, min(reached.values()))
        assert [half.given_up_samples() for half in (less, more)] == [[0, 0], [0, 0]]
        ahead = {step.epoch: step.state_hash for step in more.trainers[0].steps if step.epoch <= reached[more]}

        # and once it is there again, all are in one mean,
        lab.set(TOPOLOGY)
        for trainer in trainers:
            wait_for(lambda trainer=trainer: len(trainer.steps[-1].peers) == len(trainers), f"{trainer.peer.name} is with all")
        last = max(trainer.epoch for trainer in trainers) + 3
        for trainer in trainers:
            trainer.train_until(last)
        for trainer in trainers:
            trainer.wait_for_epoch(last)
            assert set(trainer.step_to(last).peers) == set(PARTS)
            assert trainer.step_to(last).counted
            assert trainer.step_to(last).moves == {mean_of(PARTS.values())}
        assert_same_hashes(trainers, [last])

        # which stands on what the half did that counted more samples, and whose peers gave up nothing,
        assert {s.epoch: s.state_hash for s in more.trainers[0].steps if s.epoch <= reached[more]} == ahead
        assert_same_hashes(more.trainers, told_to_all(more.trainers, range(fork + 1, last + 1)))
        assert more.given_up_samples() == [0, 0]
        # and the others say how much they gave up: all that they counted meanwhile.
        for trainer in less.trainers:
            given_up = trainer.peer.run(RUN)["given_up_samples"]
            gone = [s for s in trainer.steps if s.epoch > fork and s.state_hash not in kept_hashes(more)]
            assert len(gone) >= APART_EPOCHS - 1
            assert given_up == sum(PARTS[name].samples for step in gone for name in step.peers)
            assert sum(entry["samples"] for entry in trainer.peer.logged("run.work_given_up")) == given_up


def told_to_all(trainers: Sequence[TrainerProcess], epochs: range) -> list[int]:
    """While the halves become one, a peer that was busy for too long may take an epoch's state from the others."""
    told = [{step.epoch for step in trainer.steps} for trainer in trainers]
    return sorted(set(epochs).intersection(*told))


def kept_hashes(half: Half) -> set[str]:
    return {step.state_hash for trainer in half.trainers for step in trainer.steps}
