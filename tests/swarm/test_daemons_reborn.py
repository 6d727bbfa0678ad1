"""All peers of a run are killed at once. Whoever starts again, in any order, goes on from the newest complete snapshot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon_kit import PeerProcess, daemons, wait_for, wait_until_met
from trainer_kit import ENDLESS, PARTS, RUN, TrainerProcess, assert_same_hashes, begin_together

from ciuic_p2p.config import child_environment
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import SnapshotOrder, View

VALUES = 50_000
NAMES = ("us", "eu", "as")


def snapshots(peer: PeerProcess) -> list[dict[str, Any]]:
    with open_channel(peer.home) as channel:
        return list(channel.ask(SnapshotOrder(what="ls"), View).value)


def command(peer: PeerProcess, *words: str) -> str:
    """What the command line prints."""
    argv = [sys.executable, "-m", "ciuic_p2p", *words, "--home", str(peer.home)]
    done = subprocess.run(argv, capture_output=True, text=True, env=child_environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["in-order", "last-first"])
def test_a_killed_swarm_goes_on_from_its_newest_complete_snapshot(tmp_path: Path, order: tuple[int, ...]) -> None:
    with daemons(tmp_path) as made:
        # given three peers that train, and a snapshot that all of them saved
        peers = made.swarm(*NAMES)
        trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=True)]
        begin_together(trainers)
        for trainer in trainers:
            trainer.train_until(ENDLESS)
        saved = json.loads(command(peers[1], "snapshot", "save", RUN, "--json"))
        for peer in peers:
            wait_for(lambda peer=peer: [s["complete"] for s in snapshots(peer)] == [True], f"{peer.name} has it, complete")
        hashes = {s["state_hash"] for peer in peers for s in snapshots(peer)}
        assert hashes == {saved["state_hash"]}

        # when all processes are killed at once, and started again in some order
        for trainer in trainers:
            trainer.kill()
        for peer in peers:
            peer.kill()
        first, *others = (peers[place] for place in order)
        first.start()
        for peer in others:
            peer.start("--join", first.join)
        wait_until_met(peers)
        wait_for(lambda: {p.run(RUN)["state_hash"] for p in peers} == hashes, "all hold the saved state")

        # then their trainers go on from it, together and alike
        again = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=True)]
        for trainer in again:
            assert (trainer.attached["fresh"], trainer.attached["state_hash"]) == (False, saved["state_hash"])
        last = saved["epoch"] + 3
        for trainer in again:
            trainer.train_until(last)
        for trainer in again:
            trainer.wait_for_epoch(last)
        told = [{step.epoch for step in trainer.steps} for trainer in again]
        assert_same_hashes(again, sorted(set.intersection(*told)))

        # and what was saved is a plain file of tensors
        out = tmp_path / "out"
        command(peers[0], "snapshot", "export", RUN, "--epoch", str(saved["epoch"]), "--to", str(out))
        header_bytes = int.from_bytes((out / "model.safetensors").read_bytes()[:8], "little")
        values = np.frombuffer((out / "model.safetensors").read_bytes()[8 + header_bytes :], "<f4")
        assert values.shape == (VALUES,)
