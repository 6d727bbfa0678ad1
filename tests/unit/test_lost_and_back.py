"""One that stood still while the others went on without it is told so when it is back, and takes over what they did at once."""

from __future__ import annotations

import dataclasses

from test_late_comers import SHAPE, hash_of

from ciuic_p2p.core.events import (
    FetchState,
    LeaveRound,
    MessageReceived,
    OpenRound,
    PeerLost,
    PeerReturned,
    RunAction,
    SendMessage,
    StateHeld,
    TimePassed,
    TrainerAttached,
    TrainerReady,
)
from ciuic_p2p.core.messages import Fence, Plan, Ready, Span, Standing
from ciuic_p2p.core.rounds import GIVE_UP_PATIENCES, Round
from ciuic_p2p.core.runs import RunMachine
from ciuic_p2p.terms import PeerId, StateHash

LEADER, OTHER, STILL = PeerId("leader"), PeerId("other"), PeerId("still")
EPOCH = 3
PLAN = Plan(
    run="run",
    epoch=EPOCH,
    term=1 << 20,
    base_hash=hash_of(EPOCH),
    contributors=(LEADER, OTHER, STILL),
    listeners=(),
    spans=(Span(owner=LEADER, start=0, stop=1024),),
    count=1024,
    parameter_count=1024,
    part_values=1024,
    codec="float32",
    lossless_level=0,
    reason="",
    outer_learning_rate=1.0,
    outer_momentum=0.0,
    predicted_s=10.0,
    patience_s=25.0,
)


def fences_after_its_return(round_: Round) -> list[Fence]:
    actions = round_.handle(PeerReturned(peer=STILL), 9.0)
    sent = [action for action in actions if isinstance(action, SendMessage) and action.to == (STILL,)]
    return [action.message for action in sent if isinstance(action.message, Fence)]


def leader_without(lost: PeerId) -> Round:
    leader = Round(LEADER, PLAN, 0.0)
    leader.handle(PeerLost(peer=lost), 5.0)
    return leader


def test_the_leader_tells_one_that_is_back_that_the_others_went_on_without_it():
    [fence] = fences_after_its_return(leader_without(STILL))
    assert fence.lost == (STILL,)
    actions = Round(STILL, PLAN, 0.0).handle(MessageReceived(sender=LEADER, message=fence), 9.0)
    assert [type(action) for action in actions] == [LeaveRound]


def test_who_was_not_lost_gets_no_fence():
    assert fences_after_its_return(Round(LEADER, PLAN, 0.0)) == []
    assert fences_after_its_return(leader_without(OTHER)) == []


def test_it_takes_over_the_others_state_as_soon_as_it_is_told():
    # given a peer in a round (the leader's, of a higher term than its own plan) whose others are one epoch on
    machine = RunMachine(STILL, "run", now=0.0, seed_wait_s=1.0)
    machine.handle(PeerReturned(peer=LEADER), 0.0)
    machine.handle(TrainerAttached(shape=SHAPE), 0.0)
    machine.handle(StateHeld(epoch=EPOCH, state_hash=hash_of(EPOCH), samples=EPOCH), 0.0)
    machine.handle(MessageReceived(sender=LEADER, message=PLAN), 0.0)
    ready = Ready(run="run", epoch=EPOCH, plan_term=PLAN.term, samples=1)
    machine.handle(MessageReceived(sender=LEADER, message=ready), 1.0)
    standing = Standing(
        run="run",
        layout=SHAPE.layout,
        epoch=EPOCH + 1,
        state_hash=StateHash("f" * 64),
        samples=EPOCH + 1,
        training=True,
        samples_per_s=1.0,
    )
    waiting = machine.handle(MessageReceived(sender=LEADER, message=standing), 8.0)
    assert not [action for action in waiting if isinstance(action, FetchState)], "its round may still end"

    # when the leader says that it was lost
    [fence] = fences_after_its_return(leader_without(STILL))
    actions = machine.handle(MessageReceived(sender=LEADER, message=fence), 9.0)

    # then it does not wait for the results of a round that goes on without it
    assert [action.epoch for action in actions if isinstance(action, FetchState)] == [EPOCH + 1]


def a_peer_in_the_round(me: PeerId) -> RunMachine:
    machine = RunMachine(me, "run", now=0.0, seed_wait_s=1.0)
    for other in {LEADER, OTHER, STILL} - {me}:
        machine.handle(PeerReturned(peer=other), 0.0)
    machine.handle(TrainerAttached(shape=SHAPE), 0.0)
    machine.handle(StateHeld(epoch=EPOCH, state_hash=hash_of(EPOCH), samples=EPOCH), 0.0)
    machine.handle(TrainerReady(samples=1), 0.0)
    machine.handle(MessageReceived(sender=LEADER, message=PLAN), 0.0)
    return machine


def opened_by(actions: list[RunAction]) -> list[int]:
    return [action.epoch for action in actions if isinstance(action, OpenRound)]


def test_who_was_put_out_does_not_plan_the_epoch_anew_while_the_others_are_at_it():
    machine = a_peer_in_the_round(STILL)
    [fence] = fences_after_its_return(leader_without(STILL))
    actions = machine.handle(MessageReceived(sender=LEADER, message=fence), 9.0)
    assert [action for action in actions if isinstance(action, LeaveRound)]
    until_s = 9.0 + GIVE_UP_PATIENCES * PLAN.patience_s
    waiting = [opened_by(machine.handle(TimePassed(), now)) for now in (10.0, 60.0, until_s - 1)]
    assert waiting == [[], [], []]
    machine.handle(PeerLost(peer=LEADER), until_s - 1)
    assert opened_by(machine.handle(PeerLost(peer=OTHER), until_s - 1)) == [EPOCH], "nobody is at it any more"


def test_a_round_does_not_begin_again_for_one_that_was_put_out_of_it():
    machine = a_peer_in_the_round(OTHER)
    [fence] = fences_after_its_return(leader_without(STILL))
    machine.handle(MessageReceived(sender=LEADER, message=fence), 9.0)
    anew = dataclasses.replace(PLAN, term=PLAN.term * 4, contributors=(STILL, OTHER, LEADER))
    actions = machine.handle(MessageReceived(sender=STILL, message=anew), 10.0)
    assert opened_by(actions) == []
    assert machine.rounds[EPOCH].plan == PLAN
