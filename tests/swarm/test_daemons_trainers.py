"""Trainers of real daemons die, come late, bring another model or break: what the run keeps, what the others notice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_kit import Daemons, PeerProcess, daemons, wait_for
from trainer_kit import ENDLESS, PARTS, Part, TrainerProcess, assert_same_hashes, begin_together, mean_of

VALUES = 20_000
NEWCOMER = Part(480.0, 4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    with daemons(tmp_path_factory.mktemp("trainers")) as made:
        made.swarm("us", "eu", "as")
        yield made


@pytest.fixture
def peers(made: Daemons) -> list[PeerProcess]:
    """Three daemons that know each other; each test has a run of its own."""
    return made.made[:3]


def attach(peers: list[PeerProcess], run: str) -> list[TrainerProcess]:
    return [TrainerProcess(peer, part, VALUES, run) for peer, part in zip(peers, PARTS, strict=False)]


def leave(trainers: list[TrainerProcess]) -> None:
    for trainer in trainers:
        trainer.leave()


def test_a_killed_trainer_that_is_started_again_goes_on_from_the_daemons_state(peers: list[PeerProcess]) -> None:
    # given a run of one peer that has come to some epoch
    run = "killed alone"
    (trainer,) = attach(peers[:1], run)
    assert trainer.attached["fresh"]
    trainer.train_until(4)
    trainer.wait_for_epoch(4)

    # when its trainer is killed and started again
    trainer.kill()
    wait_for(lambda: not peers[0].run(run)["training"], "the daemon has noticed")
    (again,) = attach(peers[:1], run)

    # then it has the very state that the first one had, and goes on
    assert again.attached == trainer.attached | {"epoch": 4, "fresh": False, "state_hash": trainer.step_to(4).state_hash}
    again.train_until(6)
    again.wait_for_epoch(6)
    assert [step.epoch for step in again.steps] == [5, 6]
    leave([again])


def test_the_others_train_on_while_a_killed_trainer_is_away(peers: list[PeerProcess]) -> None:
    run = "killed among others"
    trainers = attach(peers, run)
    staying, killed = trainers[:2], trainers[2]
    begin_together(trainers)
    for trainer in trainers:
        trainer.train_until(ENDLESS)

    # when the trainer is killed in whatever it does
    killed.kill()

    # then the two others go on by themselves
    without = sorted(trainer.peer.name for trainer in staying)
    for trainer in staying:
        wait_for(lambda trainer=trainer: sorted(trainer.steps[-1].peers) == without, "a mean of the two")

    # and the one that was started again is counted again, from the state that the others have
    again = TrainerProcess(killed.peer, killed.part, VALUES, run)
    epoch = again.attached["epoch"]
    staying[0].wait_for_epoch(epoch)
    assert not again.attached["fresh"]
    assert again.attached["state_hash"] == staying[0].step_to(epoch).state_hash
    again.train_until(ENDLESS)
    wait_for(lambda: again.steps and len(again.steps[-1].peers) == 3, "all are in one mean again")
    assert again.steps[-1].counted
    for trainer in staying:
        epochs = [step.epoch for step in trainer.steps if step.epoch > 1]
        assert epochs == list(range(epochs[0], epochs[-1] + 1)), "an epoch was lost"
        assert all(step.counted for step in trainer.steps)
    leave([*staying, again])


def test_a_newcomer_takes_the_state_and_is_counted_from_its_second_round_on(made: Daemons, peers: list[PeerProcess]) -> None:
    # given a round that is planned and waits for its contributions
    run = "joined"
    trainers = attach(peers, run)
    epoch = begin_together(trainers)

    # when a fourth peer comes, by a peer that did not begin the swarm
    fourth = made.started("nw", "--join", peers[1].join)
    assert fourth.ready
    newcomer = TrainerProcess(fourth, NEWCOMER, VALUES, run)

    # then it has the state of the others
    assert (newcomer.attached["epoch"], newcomer.attached["fresh"]) == (epoch, False)
    assert newcomer.attached["state_hash"] == trainers[0].step_to(epoch).state_hash

    # and is not in the mean of that round, but in one soon after
    everyone = [*trainers, newcomer]
    for trainer in everyone:
        trainer.train_until(ENDLESS)
    wait_for(lambda: newcomer.steps, "the newcomer is told of a round")
    counted = newcomer.steps[0].epoch
    for trainer in everyone:
        trainer.wait_for_epoch(counted + 2)
    assert newcomer.steps[0].counted
    assert counted > epoch + 1
    assert "nw" not in trainers[0].step_to(epoch + 1).peers
    assert "nw" in trainers[0].step_to(counted).peers
    assert trainers[0].step_to(counted + 1).moves == {mean_of(trainer.part for trainer in everyone)}
    assert_same_hashes(everyone, range(counted, counted + 3))
    leave(everyone)
    assert fourth.terminate() == 0


def test_a_trainer_of_another_model_is_refused_and_the_run_goes_on(peers: list[PeerProcess]) -> None:
    # given a run that another peer trains
    run = "other model"
    (trainer,) = attach(peers[:1], run)
    trainer.train_until(ENDLESS)
    trainer.wait_for_epoch(1)

    # when one comes with a model of another size
    refused = TrainerProcess(peers[1], PARTS[1], VALUES + 1, run)

    # then it is told so
    assert refused.ended["kind"] == "LayoutMismatch"
    assert run in refused.ended["error"]

    # and one with the right model may take its place
    wait_for(lambda: not peers[1].run(run)["training"], "the refused one has gone")
    right = TrainerProcess(peers[1], PARTS[1], VALUES, run)
    right.train_until(ENDLESS)
    wait_for(lambda: right.steps and len(right.steps[-1].peers) == 2, "both are in one mean")

    # and now that the daemon itself knows the model, the wrong one is refused by it
    leave([right])
    wait_for(lambda: not peers[1].run(run)["training"], "it has left")
    assert TrainerProcess(peers[1], PARTS[1], VALUES + 1, run).ended["kind"] == "LayoutMismatch"
    leave([trainer])


def test_values_that_are_no_numbers_are_withheld_and_the_trainer_recovers_with_the_anchor(peers: list[PeerProcess]) -> None:
    trainers = attach(peers[:2], "not finite")
    sound, broken = trainers
    epoch = begin_together(trainers)

    # when one hands over a value that is not a number
    broken.poison()
    for trainer in trainers:
        trainer.train_until(epoch + 2)
    for trainer in trainers:
        trainer.wait_for_epoch(epoch + 2)

    # then the mean of that round is the other's alone
    assert sound.step_to(epoch + 1).moves == {sound.part.move}
    assert (sound.step_to(epoch + 1).counted, broken.step_to(epoch + 1).counted) == (True, False)

    # and both are in the next one, from the same state
    assert broken.step_to(epoch + 2).moves == {mean_of(trainer.part for trainer in trainers)}
    assert broken.step_to(epoch + 2).counted
    assert_same_hashes(trainers, (epoch + 1, epoch + 2))
    leave(trainers)


def test_a_peer_whose_only_companion_dies_trains_on_alone(tmp_path: Path) -> None:
    with daemons(tmp_path, CIUIC_PROBE_PERIOD_S="0.5") as made:
        us, eu = made.swarm("us", "eu")
        trainers = attach([us, eu], "left alone")
        trainer = trainers[0]
        epoch = begin_together(trainers)

        # when the other daemon dies
        eu.kill()
        trainer.train_until(epoch + 4)

        # then no epoch is skipped, and soon it moves by its own steps alone
        trainer.wait_for_epoch(epoch + 4)
        later = [step for step in trainer.steps if step.epoch > epoch]
        assert [step.epoch for step in later] == [epoch + 1, epoch + 2, epoch + 3, epoch + 4]
        assert all(step.counted for step in later)
        assert all(step.moves == {trainer.part.move} for step in later[1:])


def test_a_trainer_alone_that_breaks_waits_for_nobody(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        trainer = TrainerProcess(made.swarm("us")[0], PARTS[0], VALUES)
        trainer.train_until(2)
        trainer.wait_for_epoch(2)

        # when its contribution is withheld, so that nobody contributes
        trainer.poison()
        trainer.train_until(4)

        # then it is given the same state again and goes on from there
        trainer.wait_for_epoch(4)
        told = [(step.epoch, step.counted, step.moves) for step in trainer.steps[2:]]
        moved = frozenset({trainer.part.move})
        assert told == [(2, False, frozenset({0.0})), (3, True, moved), (4, True, moved)]
        assert trainer.steps[2].state_hash == trainer.steps[1].state_hash
