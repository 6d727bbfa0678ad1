"""The life of a run on a peer that comes late: which state it takes, which model it refuses, which frames it waits for."""

from __future__ import annotations

import dataclasses

from ciuic_p2p.core.events import (
    FetchFailed,
    FetchState,
    MessageReceived,
    OpenRound,
    PeerReturned,
    RefuseLayout,
    RunAction,
    RunShape,
    StateHeld,
    TrainerAttached,
    TrainerLeft,
)
from ciuic_p2p.core.messages import Plan, Span, Standing
from ciuic_p2p.core.runs import RunMachine
from ciuic_p2p.terms import PeerId, StateHash

ME, OTHER = PeerId("me"), PeerId("other")
SHAPE = RunShape(
    layout="right",
    count=1024,
    parameter_count=1024,
    codec_policy="float32",
    encoded_bytes={"float32": 4096},
    outer_learning_rate=1.0,
    outer_momentum=0.0,
)
WRONG_SHAPE = dataclasses.replace(SHAPE, layout="wrong")


def hash_of(epoch: int) -> StateHash:
    return StateHash(f"{epoch:064x}")


def others_standing(epoch: int) -> MessageReceived:
    standing = Standing(
        run="run",
        layout="right",
        epoch=epoch,
        state_hash=hash_of(epoch),
        samples=epoch,
        training=True,
        samples_per_s=1.0,
    )
    return MessageReceived(sender=OTHER, message=standing)


def others_plan(epoch: int, term: int) -> MessageReceived:
    plan = Plan(
        run="run",
        epoch=epoch,
        term=term,
        base_hash=hash_of(epoch),
        contributors=(OTHER,),
        listeners=(ME,),
        spans=(Span(owner=OTHER, start=0, stop=1024),),
        count=1024,
        parameter_count=1024,
        part_values=1024,
        codec="float32",
        lossless_level=0,
        reason="",
        outer_learning_rate=1.0,
        outer_momentum=0.0,
        predicted_s=0.1,
        patience_s=3.0,
    )
    return MessageReceived(sender=OTHER, message=plan)


def machine_that_sees_the_other_at(epoch: int) -> RunMachine:
    machine = RunMachine(ME, "run", now=0.0, seed_wait_s=1.0)
    machine.handle(PeerReturned(peer=OTHER), 0.0)
    machine.handle(others_standing(epoch), 0.0)
    return machine


def fetches(actions: list[RunAction]) -> list[int]:
    return [action.epoch for action in actions if isinstance(action, FetchState)]


def test_a_trainer_of_another_model_is_refused_and_no_state_is_taken_for_it():
    machine = machine_that_sees_the_other_at(4)

    actions = machine.handle(TrainerAttached(shape=WRONG_SHAPE), 1.0)

    assert RefuseLayout(theirs="right") in actions
    assert not fetches(actions)
    assert not fetches(machine.handle(others_standing(5), 2.0))


def test_nothing_is_left_of_a_refused_model():
    machine = machine_that_sees_the_other_at(4)
    machine.handle(TrainerAttached(shape=WRONG_SHAPE), 1.0)

    machine.handle(TrainerLeft(), 2.0)
    assert machine.standing().layout == ""

    assert fetches(machine.handle(TrainerAttached(shape=SHAPE), 3.0)) == [4]
    assert machine.layout == "right"


def test_a_state_under_way_keeps_its_layout_whoever_comes_meanwhile():
    machine = machine_that_sees_the_other_at(4)
    machine.handle(TrainerAttached(shape=SHAPE), 1.0)
    machine.handle(TrainerLeft(), 2.0)

    assert RefuseLayout(theirs="right") in machine.handle(TrainerAttached(shape=WRONG_SHAPE), 3.0)
    machine.handle(StateHeld(epoch=4, state_hash=hash_of(4), samples=4), 4.0)

    assert machine.standing().layout == "right"


def test_frames_of_a_round_given_up_for_a_newer_state_are_not_waited_for():
    # given a newcomer that listens to a round while it takes the state before it
    machine = machine_that_sees_the_other_at(4)
    machine.handle(TrainerAttached(shape=SHAPE), 1.0)
    opened = machine.handle(others_plan(4, term=70000), 1.0)
    assert OpenRound(epoch=4, contributes=False) in opened
    assert machine.awaits(5, term=70000), "the plan of the round after it may be on its way"

    # when that state can no longer be had, and the others are further on
    machine.handle(FetchFailed(epoch=4, state_hash=hash_of(4)), 2.0)
    assert fetches(machine.handle(others_standing(9), 3.0)) == [9]

    # then what was sent in that round is let go, and what is ahead is waited for
    assert 4 not in machine.rounds
    assert not machine.awaits(4, term=70000)
    assert machine.awaits(9, term=70000)


def test_frames_of_the_past_are_not_waited_for():
    machine = machine_that_sees_the_other_at(4)
    machine.handle(StateHeld(epoch=4, state_hash=hash_of(4), samples=4), 1.0)

    assert not machine.awaits(3, term=70000)
    assert machine.awaits(4, term=70000)
