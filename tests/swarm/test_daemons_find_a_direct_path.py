"""Daemons that reach each other through libp2p only, until there is a route to the address of one: they train all the time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from daemon_kit import PeerProcess, daemons, wait_for, wait_until_met
from trainer_kit import ENDLESS, PARTS, TrainerProcess, assert_same_hashes, begin_together

from ciuic_p2p.lab.system import lab_available, run_ip

pytestmark = pytest.mark.skipif(lab_available() is not None, reason=f"needs network namespaces: {lab_available()}")

VALUES = 100_000
US, EU = "us", "eu"
NEAR = {US: "10.78.0.1", EU: "10.78.0.2"}
"""Addresses on the cable between the two, at which libp2p listens."""
FAR = {US: "192.0.2.1", EU: "192.0.2.2"}
"""Where sessions are listened for: each machine's own, to which the other has no route."""


class Machines:
    """Two network namespaces with a cable between them."""

    def __init__(self) -> None:
        self._spaces = {name: f"ciuic-path-{os.getpid()}-{name}" for name in (US, EU)}

    def __enter__(self) -> Machines:
        with ExitStack() as undo:
            for space in self._spaces.values():
                run_ip("netns", "add", space)
                undo.callback(run_ip, "netns", "delete", space)
            us, eu = self._spaces.values()
            run_ip("-n", us, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", eu)
            for name, space in self._spaces.items():
                run_ip("-n", space, "addr", "add", f"{NEAR[name]}/24", "dev", "cable")
                run_ip("-n", space, "addr", "add", f"{FAR[name]}/32", "dev", "lo")
                for device in ("lo", "cable"):
                    run_ip("-n", space, "link", "set", device, "up")
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def place(self, peer: PeerProcess) -> None:
        peer.within = ("ip", "netns", "exec", self._spaces[peer.name])

    def route(self, verb: str) -> None:
        """`add` or `del`: the way from eu to the address of us."""
        run_ip("-n", self._spaces[EU], "route", verb, f"{FAR[US]}/32", "via", NEAR[US])


@pytest.fixture
def machines() -> Iterator[Machines]:
    with Machines() as made:
        yield made


def paths(*peers: PeerProcess) -> set[str]:
    """As each of them shows them, in both directions."""
    return {link["path"] for peer in peers for link in peer.view("links")}


def test_a_route_that_appears_is_taken_and_one_that_goes_is_left(machines: Machines, tmp_path: Path) -> None:
    with daemons(tmp_path, CIUIC_PROBE_PERIOD_S="0.5") as made:
        # given two daemons that train over a libp2p stream
        us, _ = peers = [made.new(US), made.new(EU)]
        for peer in peers:
            machines.place(peer)
            join = () if peer is us else ("--join", us.join)
            peer.start("--session-listen", f"{FAR[peer.name]}:5001", *join, listen=f"/ip4/{NEAR[peer.name]}/tcp/4001")
        wait_until_met(peers)
        assert paths(*peers) == {"relay"}
        trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=False)]
        begin_together(trainers)
        for trainer in trainers:
            trainer.train_until(ENDLESS)

        # when there is a route to the address of one of them
        began = trainers[0].epoch
        machines.route("add")

        # then the session goes there, and no round notices
        wait_for(lambda: paths(*peers) == {"direct"}, "both show a direct path")
        epoch = trainers[0].epoch
        for trainer in trainers:
            trainer.wait_for_epoch(epoch + 3)
            assert all(len(trainer.step_to(each).peers) == len(peers) for each in range(began + 1, epoch + 4))
        assert_same_hashes(trainers, range(began + 1, epoch + 4))
        for peer in peers:
            assert (len(peer.logged("session.opened")), len(peer.logged("session.moved"))) == (1, 1)
            assert not peer.logged("session.closed")

        # and when the route is gone again, they meet over libp2p as before
        machines.route("del")
        wait_for(lambda: paths(*peers) == {"relay"}, "both show the relay")
        together = max(trainer.epoch for trainer in trainers)
        wait_for(lambda: trainers[0].epoch > together and len(trainers[0].steps[-1].peers) == len(peers), "rounds of both")
