"""Every sample of a dataset is used once in each pass over all peers, whoever is slow, killed or restarted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_kit import Daemons, PeerProcess, daemons, wait_for, wait_until_met
from shard_kit import RUN, ShardTrainer, data_of, leave_all, used_by_ledger, used_by_trainers, wait_for_pass

from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import SnapshotOrder, View

SAMPLES = 400


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Daemons]:
    with daemons(tmp_path) as found:
        yield found


def test_every_sample_is_used_once_a_pass_though_some_are_slow_and_one_is_killed(made: Daemons) -> None:
    # given three trainers of which one is three times as fast, and reads ahead in a process of its own
    peers = made.swarm("slow", "fast", "victim")
    speeds = (0.03, 0.01, 0.03)
    trainers = [
        ShardTrainer(peer, step_s, samples=SAMPLES, workers=int(peer.name == "fast"))
        for peer, step_s in zip(peers, speeds, strict=True)
    ]
    *others, victim = trainers
    wait_for_pass(peers[0], 1)
    wait_for(lambda: any(w.counted for w in victim.windows()), "the victim contributed")
    wait_for(lambda: data_of(peers[0])["held"].get(peers[2].peer_id), "the victim holds samples")
    # when one is killed with its daemon, and the others use two more passes
    victim.peer.kill()
    victim.kill()
    wait_for_pass(peers[0], data_of(peers[0])["passes"] + 2)
    leave_all(others)
    # then the samples in contributions that counted are those that the state says are used: none twice, none left out
    ledger = data_of(peers[0])
    assert ledger == data_of(peers[1])
    assert peers[2].peer_id not in ledger["held"]
    rest = used_by_ledger(ledger)
    rest.subtract(used_by_trainers(trainers))
    unsettled = [w for w in victim.windows() if w.epoch is None]
    assert +rest in [Counter(), *(Counter(w.samples) for w in unsettled)], "what it sent last may count or not"
    assert not -rest
    slow, fast = (sum(len(w.samples) for w in trainer.windows() if w.counted) for trainer in others)
    assert min(slow, fast) > 0


def test_all_go_on_from_the_positions_of_a_snapshot(made: Daemons) -> None:
    # given a run whose peers are killed some rounds after a snapshot
    peers = made.swarm("eu", "us")
    before = [ShardTrainer(peer, 0.01, samples=SAMPLES) for peer in peers]
    wait_for(lambda: all(len(t.windows()) > 3 for t in before), "both train")
    wait_for(lambda: all(w.counted for t in before for w in t.windows()[-2:-1]), "both are in")
    saved = order_snapshot(peers[0])
    wait_for(lambda: all(saved in complete_snapshots(peer) for peer in peers), "both saved it")
    wait_for(lambda: all(t.windows()[-1].epoch and t.windows()[-1].epoch > saved + 1 for t in before), "they go on")
    for trainer in before:
        trainer.peer.kill()
        trainer.kill()
    # when they are started again
    peers[0].start()
    peers[1].start("--join", peers[0].join)
    wait_until_met(peers)
    assert {peer.run(RUN)["epoch"] for peer in peers} == {saved}
    restored = data_of(peers[0])
    assert used_by_ledger(restored) == used_by_trainers(before, up_to_epoch=saved)
    after = [ShardTrainer(peer, 0.01, samples=SAMPLES) for peer in peers]
    wait_for_pass(peers[0], restored["passes"] + 1)
    leave_all(after)
    # then they went on from its positions: no sample of the state is used twice, and none was left out
    together = used_by_trainers(before, up_to_epoch=saved) + used_by_trainers(after)
    assert together == used_by_ledger(data_of(peers[0]))


def order_snapshot(peer: PeerProcess) -> int:
    with open_channel(peer.home) as channel:
        answer = channel.ask(SnapshotOrder(what="save", options={"run": RUN}), View).value
    return int(answer["epoch"])


def complete_snapshots(peer: PeerProcess) -> list[int]:
    with open_channel(peer.home) as channel:
        rows = channel.ask(SnapshotOrder(what="ls"), View).value
    return [row["epoch"] for row in rows if row["complete"]]
