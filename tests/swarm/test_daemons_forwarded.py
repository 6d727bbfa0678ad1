"""Daemons that nobody can dial train together through one that can be reached; it may die."""

from __future__ import annotations

from pathlib import Path

from daemon_kit import LOOPBACK, Daemons, PeerProcess, daemons, wait_for, wait_until_met
from trainer_kit import ENDLESS, PARTS, Step, TrainerProcess, assert_same_hashes, begin_together, mean_of

VALUES = 1_000_000
"""Float32: 4 MB, thirty times what a circuit of libp2p's relays carries."""
NOWHERE = "192.0.2.1"
"""Of TEST-NET-1 (RFC 5737): no machine has it."""


def hide(made: Daemons, name: str, join: str) -> PeerProcess:
    """A peer whose record has no address but one that is no machine's."""
    peer = made.new(name)
    peer.start("--join", join, "--announce", f"/ip4/{NOWHERE}/tcp/4001", "--session-listen", "0.0.0.0:0", listen=LOOPBACK)
    return peer


def path(peer: PeerProcess, other: PeerProcess) -> set[str]:
    """As `peer` shows it, in both directions."""
    names = {peer.name, other.name}
    return {link["path"] for link in peer.view("links") if {link["from"], link["to"]} == names}


def wait_for_path(one: PeerProcess, other: PeerProcess, *expected: str) -> str:
    """Both show the same one."""

    def shown() -> str | None:
        paths = path(one, other) | path(other, one)
        return paths.pop() if len(paths) == 1 and paths <= set(expected) else None

    found: str = wait_for(shown, f"{one.name} and {other.name} reach each other by one of {expected}")
    return found


def is_of_both(step: Step, epoch: int) -> bool:
    """And later than an epoch."""
    return step.epoch > epoch and set(step.peers) == {"west", "east"}


def trainers_of(*peers: PeerProcess) -> list[TrainerProcess]:
    return [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=False)]


def test_two_hidden_peers_average_megabytes_through_a_third(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given two peers that nobody can dial and one that both have dialled
        us = made.started("us")
        west, east = hide(made, "west", us.join), hide(made, "east", us.join)
        peers = [us, west, east]
        wait_until_met(peers)
        wait_for_path(west, east, "via us")
        assert path(us, west) | path(us, east) == {"direct"}

        # when all three train
        trainers = trainers_of(*peers)
        epoch = begin_together(trainers)
        for trainer in trainers:
            trainer.train_until(epoch + 3)
        for trainer in trainers:
            trainer.wait_for_epoch(epoch + 3)

        # then every mean is that of all, and all hold the same state
        for trainer in trainers:
            assert {trainer.step_to(epoch + n).moves for n in (1, 2, 3)} == {frozenset({mean_of(PARTS)})}
        assert_same_hashes(trainers, range(epoch + 1, epoch + 4))

        # and what the two exchanged went through the third, which says so
        assert wait_for_path(west, east, "via us") == "via us"
        forwarding = us.view("status")["forwarding"]
        assert forwarding["is_on"]
        assert forwarding["carried_bytes"] > 4 * VALUES
        assert [link["why"] for link in west.view("links") if (link["from"], link["to"]) == ("west", "east")] == [
            "no direct connection comes about; us forwards"
        ]
        for peer in (west, east):
            assert {entry["path"] for entry in peer.logged("session.opened")} <= {
                "direct",
                f"via {us.peer_id}",
            }, "libp2p's relay was not needed"


def test_when_the_third_dies_the_rounds_go_on_through_another_one(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given two hidden peers that train, and two others that only listen
        us = made.started("us")
        eu = made.started("eu", "--join", us.join)
        west, east = hide(made, "west", us.join), hide(made, "east", us.join)
        thirds = {"via us": us, "via eu": eu}
        wait_until_met([us, eu, west, east])
        used = wait_for_path(west, east, *thirds)
        trainers = trainers_of(west, east)
        begin_together(trainers)
        for trainer in trainers:
            trainer.train_until(ENDLESS)

        # when the one that forwards is killed in the midst of it
        before = trainers[0].epoch
        wait_for(lambda: trainers[0].epoch > before, "rounds go on")
        thirds.pop(used).kill()

        # then the other one forwards, neither is given up, and the rounds are of both again
        wait_for_path(west, east, *thirds)
        moved_at = max(trainer.epoch for trainer in trainers)
        for trainer in trainers:
            wait_for(lambda trainer=trainer: is_of_both(trainer.steps[-1], moved_at), "a round of both")
        together = max(trainer.epoch for trainer in trainers)
        for trainer in trainers:
            trainer.wait_for_epoch(together + 3)
        after = range(together + 1, together + 4)
        assert_same_hashes(trainers, after)
        for trainer in trainers:
            assert {trainer.step_to(epoch).moves for epoch in after} == {frozenset({mean_of(PARTS[:2])})}
            assert all(trainer.step_to(epoch).counted for epoch in after)
        for peer in (west, east):
            assert {entry["name"] for entry in peer.logged("peer.gone")} <= {"us", "eu"}


def test_when_the_only_third_dies_each_goes_on_by_itself(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        us = made.started("us")
        west, east = hide(made, "west", us.join), hide(made, "east", us.join)
        wait_until_met([us, west, east])
        wait_for_path(west, east, "via us")
        trainers = trainers_of(west, east)
        begin_together(trainers)
        for trainer in trainers:
            trainer.train_until(ENDLESS)

        # when the third is killed
        us.kill()

        # then neither waits for the other: both train on alone
        for peer, trainer in zip((west, east), trainers, strict=True):
            wait_for(lambda peer=peer: peer.sees(), f"{peer.name} is alone")
            trainer.wait_for_epoch(trainer.epoch + 2)
            assert trainer.steps[-1].peers == (peer.name,)
            assert not trainer.facts("ended")


def test_a_peer_that_is_told_so_does_not_forward(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        us = made.started("us", CIUIC_FORWARD="false")
        for name in ("west", "east"):
            hide(made, name, us.join)
        wait_for(lambda: us.view("status")["forwarding"]["refused"] > 0, "us was asked")
        forwarding = us.view("status")["forwarding"]
        assert (forwarding["is_on"], forwarding["carried_bytes"], forwarding["splices"]) == (False, 0, 0)
