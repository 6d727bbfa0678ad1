"""Two peers whose direct path is bad send their frames through a third one, and directly again when that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_kit import PeerProcess, daemons, wait_for, wait_until_met
from trainer_kit import ENDLESS, PARTS, TrainerProcess

from ciuic_p2p.lab.lab import Lab, RunningLab
from ciuic_p2p.lab.system import lab_available
from ciuic_p2p.lab.topology import Host, Topology

pytestmark = [
    pytest.mark.skipif(lab_available() is not None, reason=f"needs a lab: {lab_available()}"),
    pytest.mark.timeout(240),
]

VALUES = 1_000_000
US, EU, ASIA = "us", "eu", "as"
TOPOLOGY = Topology(
    hosts=tuple(Host(name=name, region=name, up_mbps=80, down_mbps=80) for name in (US, EU, ASIA)),
    rtt_ms={"us-eu": 60, "us-as": 40, "eu-as": 40},
    loss={"us-eu": 0.02},
    cable_mbps={"us-eu": 3},
)
SLOW_S = 120.0
WAYS = ((US, EU), (EU, US))


@pytest.fixture
def lab() -> Iterator[RunningLab]:
    with Lab(TOPOLOGY) as running:
        yield running


def path(peer: PeerProcess, source: str, target: str) -> tuple[str, str]:
    """And why."""
    return next(
        ((link["path"], link["why"]) for link in peer.view("links") if (link["from"], link["to"]) == (source, target)), ("", "")
    )


def test_frames_leave_a_bad_direct_path_and_come_back_when_the_third_peer_dies(lab: RunningLab, tmp_path: Path) -> None:
    with daemons(tmp_path, CIUIC_LOG_LEVEL="debug") as made:
        # given three peers that train, two of them with a bad path between them
        us, eu, asia = peers = [made.new(name) for name in (US, EU, ASIA)]
        for peer in peers:
            peer.within = tuple(lab.command(peer.name, []))
            join = () if peer is us else ("--join", us.join)
            peer.start(*join, listen=f"/ip4/{lab.addresses[peer.name]}/tcp/4001")
        wait_until_met(peers)
        trainers = [  # that all exchange with all: the planner would send nothing over the bad path
            TrainerProcess(peer, part, VALUES, codec="float32@butterfly", noise=True)
            for peer, part in zip(peers, PARTS, strict=True)
        ]
        wait_for(lambda: all(trainer.attached for trainer in trainers), "all hold the first state")
        for trainer in trainers:
            trainer.train_until(ENDLESS)

        # when it is known how bad, then the frames of those two go through the third, and their messages stay
        for peer in (us, eu):
            wait_for(
                lambda peer=peer: "via as" in {path(peer, *way)[0] for way in WAYS}, f"{peer.name} takes the detour", SLOW_S
            )
        whys = {entry["why"] for peer in (us, eu) for entry in peer.logged("path.detour")}
        assert any("directly" in why and "this way" in why for why in whys), whys
        wait_for(lambda: asia.view("status")["forwarding"]["carried_bytes"] > 0, "the third has carried something")
        epoch = max(trainer.epoch for trainer in trainers)
        for trainer in trainers:
            wait_for(lambda trainer=trainer: trainer.epoch >= epoch + 3, "three rounds more", SLOW_S)
        assert_same_states(trainers)
        for peer in (us, eu):
            assert {entry["path"] for entry in peer.logged("session.opened", "session.moved")} == {"direct"}

        # and when the third dies, directly again
        asia.kill()
        for peer in (us, eu):
            wait_for(lambda peer=peer: {path(peer, *way)[0] for way in WAYS} == {"direct"}, f"{peer.name} goes directly")
            assert {entry["path"] for entry in peer.logged("session.opened", "session.moved")} == {"direct"}


def assert_same_states(trainers: list[TrainerProcess]) -> None:
    """At every epoch that all of them were told of; on a bad link one may be excused and miss some."""
    told = [{step.epoch: step.state_hash for step in trainer.steps} for trainer in trainers]
    common = set.intersection(*(set(each) for each in told))
    assert common
    assert all(len({each[epoch] for each in told}) == 1 for epoch in common)
