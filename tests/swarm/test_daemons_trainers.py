"""Trainers that die, come late, are alone, are of another model, or hand over what is no number: what their daemons make of it."""

from __future__ import annotations

from pathlib import Path

from daemon_kit import daemons, wait_for, wait_until_met
from trainer_kit import ENDLESS, PARTS, RUN, Part, TrainerProcess, assert_same_hashes, mean_of, train_together

VALUES = 1000
NEWCOMER = Part(480.0, 4)


def test_a_trainer_killed_and_started_again_goes_on_where_its_daemon_is(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given two peers in one mean
        peers = made.swarm("us", "eu")
        trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=False)]
        epoch = train_together(trainers)
        held = trainers[1].steps[-1].state_hash

        # when one trainer is killed and started again
        trainers[1].kill()
        wait_for(lambda: not peers[1].run(RUN)["training"], "its daemon has noticed")
        again = TrainerProcess(peers[1], PARTS[1], VALUES)

        # then it goes on from the state that the daemon holds
        assert (again.attached["epoch"], again.attached["state_hash"]) == (epoch, held)
        assert not again.attached["fresh"]

        # and takes part again
        last = train_together([trainers[0], again])
        assert again.step_to(last).moves == {mean_of(PARTS[:2])}
        assert_same_hashes([trainers[0], again], [last])


def test_a_newcomer_takes_the_state_of_the_others_and_counts_from_its_second_round(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given three peers that train
        peers = made.swarm("us", "eu", "as")
        trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=True)]
        epoch = train_together(trainers)
        for trainer in trainers:
            trainer.train_until(ENDLESS)

        # when a fourth one joins
        fourth = made.started("sa", "--join", peers[1].join)
        wait_until_met([*peers, fourth])
        newcomer = TrainerProcess(fourth, NEWCOMER, VALUES)
        newcomer.train_until(ENDLESS)

        # then it starts from their state, not from its own
        assert newcomer.attached["epoch"] > epoch
        assert not newcomer.attached["fresh"]

        # and its first round is not counted, a later one is
        wait_for(lambda: any(step.counted for step in newcomer.steps), "it is in a mean")
        everyone = [*trainers, newcomer]
        last = train_together(everyone)
        rounds = fourth.rounds(RUN)
        assert not rounds[min(rounds)]["counted"]
        assert newcomer.step_to(last).moves == {mean_of([*PARTS, NEWCOMER])}

        # and it never held another state than they
        assert_same_hashes(everyone, [step.epoch for step in newcomer.steps])


def test_a_peer_alone_trains_on_alone(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given a peer that trains with another
        us, eu = made.swarm("us", "eu")
        trainer, other = (TrainerProcess(peer, part, VALUES) for peer, part in zip((us, eu), PARTS, strict=False))
        epoch = train_together([trainer, other])

        # when the other is gone
        eu.kill()
        trainer.train_until(epoch + 5)

        # then it moves by its own steps alone, at the latest from the second epoch on
        trainer.wait_for_epoch(epoch + 5)
        assert [step.epoch for step in trainer.steps if step.epoch > epoch] == list(range(epoch + 1, epoch + 6))
        assert all(step.moves == {PARTS[0].move} for step in trainer.steps if step.epoch > epoch + 1)


def test_a_trainer_of_another_model_is_refused(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given a run on one peer
        us, eu = made.swarm("us", "eu")
        trainer = TrainerProcess(us, PARTS[0], VALUES)
        trainer.train_until(ENDLESS)
        trainer.wait_for_epoch(1)

        # when others come with a model of another size, at this peer and at another one
        far = TrainerProcess(eu, PARTS[1], VALUES + 1)
        assert far.ended["kind"] == "LayoutMismatch"
        trainer.kill()
        wait_for(lambda: not us.run(RUN)["training"], "its daemon has noticed")
        near = TrainerProcess(us, PARTS[1], VALUES + 1)

        # then both are refused with the remedy, and the right model is still welcome
        assert near.ended["kind"] == "LayoutMismatch"
        assert all("run name" in refused.ended["error"] for refused in (far, near))
        assert TrainerProcess(us, PARTS[0], VALUES).attached["epoch"] >= 1


def test_what_is_no_number_is_withheld(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given two peers in one mean
        peers = made.swarm("us", "eu")
        trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=False)]
        epoch = train_together(trainers)

        # when a value of one contribution is not a number
        trainers[1].poison()
        for trainer in trainers:
            trainer.train_until(epoch + 2)
        for trainer in trainers:
            trainer.wait_for_epoch(epoch + 2)

        # then that round is the other's alone, and its trainer has a whole anchor again
        assert trainers[0].step_to(epoch + 1).moves == {PARTS[0].move}
        assert trainers[1].step_to(epoch + 1).moves == {PARTS[0].move}
        assert not trainers[1].step_to(epoch + 1).counted

        # and the next round is both's
        assert trainers[1].step_to(epoch + 2).counted
        assert trainers[0].step_to(epoch + 2).moves == {mean_of(PARTS[:2])}
        assert_same_hashes(trainers, (epoch + 1, epoch + 2))
        assert peers[1].logged("run.contribution_not_finite")
