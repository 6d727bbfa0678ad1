"""Snapshots of which every peer has lost something: together they have all, and what they lack they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemon_kit import PeerProcess, daemons, wait_for
from object_kit import client, shard_files
from test_daemons_reborn import command, snapshots
from trainer_kit import ENDLESS, PARTS, RUN, TrainerProcess, begin_together

from ciuic_p2p.store.snapshots import Snapshots

VALUES = 1_500_000
"""Two shards: the values and some of the momentum; the rest of it."""


def shards_of(peer: PeerProcess, epoch: int) -> list[str]:
    manifests = Snapshots(peer.home / "snapshots", None)  # type: ignore[arg-type]  # only manifests are read
    return [ref.shard for one in manifests.of_run(RUN) if one.epoch == epoch for ref in one.blob.shards]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def row(peer: PeerProcess, epoch: int) -> dict[str, Any]:
    return next(one for one in snapshots(peer) if one["epoch"] == epoch)


def test_a_newer_snapshot_is_put_together_from_what_the_peers_have_left(tmp_path: Path) -> None:
    with daemons(tmp_path, CIUIC_STORE_RESERVE_BYTES="0", CIUIC_PROBE_PERIOD_S="0.5", CIUIC_GONE_AFTER_S="90") as made:
        # given an older and a newer snapshot of two peers
        peers = us, eu = made.swarm("us", "eu")
        trainers = [TrainerProcess(peer, part, VALUES) for peer, part in zip(peers, PARTS, strict=False)]
        begin_together(trainers)
        saved = []
        for trainer in trainers:
            trainer.train_until(ENDLESS)
        for _ in range(2):
            saved.append(client(us).save_checkpoint(RUN))
            for peer in peers:
                wait_for(lambda peer=peer: has_complete(peer, saved[-1]["epoch"]), f"{peer.name} has it, complete")
        older, newer = saved
        assert older["epoch"] < newer["epoch"]
        for trainer in trainers:
            trainer.kill()
        eu_id = eu.peer_id
        for peer in peers:
            peer.kill()

        # when neither has the newer one whole any more, and one stays away
        first, second = shards_of(us, newer["epoch"])[:2]
        assert first not in shards_of(us, older["epoch"])
        flip(shard_files(us)[first])
        shard_files(eu)[second].unlink()
        us.start()
        _ = us.ready

        # then the other one waits, and says for what and for whom
        wait_for(lambda: us.view("status")["recovering"], "it waits")
        assert [(one["epoch"], one["lost_shards"]) for one in us.view("status")["recovering"]] == [(newer["epoch"], [first])]
        assert us.run(RUN) == {}
        shown = row(us, newer["epoch"])
        assert (shown["missing_shards"], shown["lost_shards"]) == (1, [first])
        assert [one["here"] for one in shown["saved_by"] if one["peer_id"] == eu_id] == [False]
        assert shown["must_return"] == [eu_id[-8:]]
        assert f"{eu_id[-8:]} must return" in command(us, "snapshot", "ls").replace("\n", " ")

        # and both go on from the newer one when it is back: each gives the other what that lacks
        eu.start("--join", us.join)
        _ = eu.ready
        for peer in peers:
            wait_for(lambda peer=peer: peer.run(RUN).get("state_hash") == newer["state_hash"], f"{peer.name} goes on")
            assert row(peer, newer["epoch"])["missing_shards"] == 0
            assert peer.view("status")["recovering"] == []


def has_complete(peer: PeerProcess, epoch: int) -> bool:
    return any(one["epoch"] == epoch and one["complete"] for one in snapshots(peer))
