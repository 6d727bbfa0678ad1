"""A daemon that nobody can dial takes full part in rounds over the connections that it makes itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from daemon_kit import LOOPBACK, PeerProcess, daemons, wait_until_met
from trainer_kit import PARTS, TrainerProcess, assert_same_hashes, begin_together, mean_of

VALUES = 300_000
NOWHERE = "192.0.2.1"
"""Of TEST-NET-1 (RFC 5737): no machine has it."""


def direct_lanes(peer: PeerProcess) -> Iterator[bool]:
    """Whether it dialled them: all that were opened while their session was direct. It may have been relayed for a moment."""
    path: dict[str, str] = {}
    for entry in peer.logged("session.opened", "session.moved", "lane.opened"):
        if entry["event"] == "lane.opened":
            if path[entry["peer"]] == "direct":
                yield entry["dialled"]
        else:
            path[entry["peer"]] = entry["path"]


def test_a_peer_with_outbound_connections_only_takes_full_part(tmp_path: Path) -> None:
    with daemons(tmp_path, CIUIC_LOG_LEVEL="debug") as made:
        # given a peer whose record, for sessions and for libp2p, has no address but one that is no machine's
        us = made.started("us")
        eu = made.started("eu", "--join", us.join)
        hidden = made.new("hidden")
        hidden.start(
            "--join", us.join, "--announce", f"/ip4/{NOWHERE}/tcp/4001", "--session-listen", "0.0.0.0:0", listen=LOOPBACK
        )
        peers = [us, eu, hidden]
        wait_until_met(peers)
        assert all(NOWHERE in address or "/p2p-circuit" in address for address in hidden.ready["addresses"])

        # when all three train
        trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=True)]
        epoch = begin_together(trainers)
        for trainer in trainers:
            trainer.train_until(epoch + 3)
        for trainer in trainers:
            trainer.wait_for_epoch(epoch + 3)

        # then it is in every mean, at its full weight, and holds the state that they hold
        for trainer in trainers:
            assert {trainer.step_to(epoch + n).moves for n in (1, 2, 3)} == {frozenset({mean_of(PARTS)})}
            assert all(trainer.step_to(epoch + n).counted for n in (1, 2, 3))
        assert_same_hashes(trainers, range(epoch + 1, epoch + 4))

        # and all of it over direct sessions and lanes that it dialled
        assert {link["path"] for peer in peers for link in peer.view("links")} == {"direct"}
        assert any(entry["dialled"] for entry in hidden.logged("lane.opened"))
        assert all(direct_lanes(hidden))
