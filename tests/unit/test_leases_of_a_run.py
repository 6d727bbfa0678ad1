"""What the machine of a run does for a trainer that reads a dataset by leases."""

from __future__ import annotations

import asyncio

import pytest

from ciuic_p2p.core.events import (
    DatasetWanted,
    LeaseAwaited,
    LeaveRound,
    LoadTrainer,
    OpenRound,
    RunAction,
    RunShape,
    StateHeld,
    TimePassed,
    TrainerAttached,
    TrainerLeft,
    TrainerReady,
)
from ciuic_p2p.core.ledgers import NO_LEDGERS, Ledgers, Used, UseReport, Wanted, share_out
from ciuic_p2p.core.runs import RunMachine
from ciuic_p2p.daemon.leasing import LeaseDesk
from ciuic_p2p.data.naming import mark_dataset, name_of
from ciuic_p2p.data.slots import Slots
from ciuic_p2p.errors import LocalError
from ciuic_p2p.terms import PeerId, StateHash

ME, OTHER = PeerId("me"), PeerId("other")
WANTED = Wanted(dataset="train", count=100, samples=10)
SHAPE = RunShape(
    layout="L",
    count=10,
    parameter_count=10,
    codec_policy="float32",
    encoded_bytes={"float32": 40},
    outer_learning_rate=1.0,
    outer_momentum=0.0,
)


class Scene:
    """One peer alone in its run, whose trainer is attached."""

    def __init__(self, ledgers: Ledgers = NO_LEDGERS) -> None:
        self.now = 0.0
        self.machine = RunMachine(ME, "run", now=0.0, seed_wait_s=1e6)
        self.machine.handle(TrainerAttached(shape=SHAPE), 0.0)
        self.machine.handle(StateHeld(epoch=0, state_hash=StateHash("h0"), samples=0, ledgers=ledgers), 0.0)

    def wait(self) -> list[RunAction]:
        self.now += 10.0
        return self.machine.handle(TimePassed(), self.now)

    def starve(self) -> list[RunAction]:
        self.machine.handle(DatasetWanted(wanted=WANTED), self.now)
        return self.machine.handle(LeaseAwaited(dataset="train"), self.now)

    def held(self) -> list[tuple[int, int, int]]:
        return list(self.machine.lease_of("train").stretches())


def report(start: int, stop: int) -> UseReport:
    return (Used(dataset="train", slots=Slots.of([(0, start, stop)])),)


def kinds(actions: list[RunAction]) -> list[type]:
    return [type(action) for action in actions]


def test_a_starved_trainer_ends_a_round_that_gives_it_nothing_and_the_next_plan_grants() -> None:
    # given a round that was planned before the trainer said what it reads
    scene = Scene()
    scene.wait()
    assert scene.machine.current_round() is not None
    assert scene.held() == []
    # when it waits for samples, alone
    assert LeaveRound in kinds(scene.starve())
    # then the round is left, and the next plan grants twice what a round takes
    assert OpenRound in kinds(scene.wait())
    assert scene.held() == [(0, 0, 20)]


def test_what_was_sent_with_a_contribution_is_not_lent_to_a_new_trainer() -> None:
    scene = Scene()
    scene.starve()
    scene.wait()
    scene.machine.handle(TrainerReady(samples=5, report=report(0, 5)), scene.now)
    assert scene.held() == [(0, 5, 20)]
    scene.machine.handle(TrainerLeft(), scene.now)
    assert scene.held() == [(0, 5, 20)], "though the trainer that sent it is gone"


def test_a_contribution_of_samples_that_are_anothers_by_now_is_withheld() -> None:
    # given a plan by which this peer holds slots 0 to 20
    scene = Scene()
    scene.starve()
    scene.wait()
    # when its trainer used others
    actions = scene.machine.handle(TrainerReady(samples=5, report=report(15, 25)), scene.now)
    # then nothing is contributed, and the trainer is loaded anew
    assert LeaveRound in kinds(actions)
    assert [action.counted for action in actions if isinstance(action, LoadTrainer)] == [False]


def test_a_contribution_waits_for_a_round_that_carries_its_report() -> None:
    # given a plan that was made before the trainer said what it reads
    scene = Scene()
    scene.wait()
    scene.machine.handle(DatasetWanted(wanted=WANTED), scene.now)
    actions = scene.machine.handle(TrainerReady(samples=5, report=report(0, 5)), scene.now)
    assert LeaveRound in kinds(actions)
    assert LoadTrainer not in kinds(actions), "the contribution is kept"
    # when the next plan grants that dataset
    scene.wait()
    # then it is sent
    current = scene.machine.current_round()
    assert current is not None
    assert current.samples == {ME: 5}


def test_of_datasets_with_one_name_and_other_contents_the_first_is_divided_and_then_that_which_the_run_knows() -> None:
    # given two peers that read other files under one name
    mine, theirs = (
        Wanted(dataset=mark_dataset("train", contents), count=100, samples=10) for contents in ("contents", "others")
    )
    speeds = {ME: 1.0, OTHER: 1.0}
    for first, second in ((mine, theirs), (theirs, mine)):
        # when the run knows neither, then the first in order is divided
        [grant] = share_out({ME: (first,), OTHER: (second,)}, speeds, NO_LEDGERS)
        assert (grant.dataset, [peer for peer, _ in grant.shares]) == (first.dataset, [ME])
        # and from then on nothing else is, whoever leads
        known = NO_LEDGERS.granted([grant])
        assert known.called("train") == first.dataset
        [grant] = share_out({OTHER: (second,), ME: (first,)}, speeds, known)
        assert (grant.dataset, [peer for peer, _ in grant.shares]) == (first.dataset, [ME])
        assert share_out({OTHER: (second,)}, speeds, known) == ()


@pytest.mark.parametrize("name", ["data", "a #b", "data #0123456789abcdeg", "data#0123456789abcdef", "of #2"])
def test_a_name_is_found_again_behind_its_mark(name: str) -> None:
    assert name_of(name) == name
    assert name_of(mark_dataset(name, "x", 0)) == name
    assert mark_dataset(name, "x", 0) != mark_dataset(name, "x", 1)


def test_who_reads_other_contents_under_a_name_is_refused() -> None:
    # given a run that divides a dataset
    mine = Wanted(dataset=mark_dataset("train", "contents"), count=100, samples=10)
    known = NO_LEDGERS.granted(share_out({ME: (mine,)}, {}, NO_LEDGERS))
    scene = Scene(known)
    loop = asyncio.new_event_loop()
    try:
        desk = LeaseDesk("mnist", scene.machine, loop)
        # when others of the same number are asked for, then that is said
        for dataset in (mark_dataset("train", "others"), "train"):
            with pytest.raises(LocalError, match="dataset 'train' of run 'mnist' has other contents than this one"):
                desk.ask(Wanted(dataset=dataset, count=100, samples=10), waits=False)
        # and another name, or the same contents, are not refused
        desk.ask(Wanted(dataset=mark_dataset("test", "others"), count=100, samples=10), waits=False)
        assert desk.ask(mine, waits=False).result().slots.count == 20
    finally:
        loop.close()
