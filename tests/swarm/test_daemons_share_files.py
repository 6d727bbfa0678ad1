"""Files that all peers share are divided among their trainers: every record once in each pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_kit import Daemons, daemons, wait_for
from shard_kit import ShardTrainer, data_of, leave_all, used_by_ledger, used_by_trainers, wait_for_pass

import ciuic_p2p as ciuic

RECORDS = 300
FOLDER = "ciuic://data/corpus"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Daemons]:
    with daemons(tmp_path) as found:
        yield found


def test_every_record_of_shared_files_is_used_once_a_pass(made: Daemons, tmp_path: Path) -> None:
    # given files that one peer put, and trainers at two, of which one reads ahead in a process of its own
    peers = made.swarm("eu", "us")
    for number, records in enumerate((range(100), range(100, RECORDS))):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(json.dumps({"number": record}) + "\n" for record in records))
        ciuic.Client(peers[0].home).upload_file(path, f"{FOLDER}/{number}.jsonl")
    wait_for(lambda: len(list(ciuic.Client(peers[1].home).list(FOLDER))) == 2, "both know the files")
    trainers = [ShardTrainer(peer, 0.01, url=FOLDER, workers=int(peer is peers[0])) for peer in peers]
    # when they use two passes
    wait_for_pass(peers[0], 2)
    leave_all(trainers)
    # then the records in contributions that counted are those that the state says are used
    ledger = data_of(peers[0])
    assert ledger == data_of(peers[1])
    assert (ledger["dataset"], ledger["samples"]) == ("data", RECORDS)
    assert used_by_trainers(trainers) == used_by_ledger(ledger)
    assert all(any(w.counted for w in trainer.windows()) for trainer in trainers)
    # and who has other records of the same number is told so
    path.write_text("".join(json.dumps({"number": record}) + "\n" for record in range(RECORDS)))
    stranger = ShardTrainer(peers[1], 0.01, url=str(path))
    assert "dataset 'data' of run 'shard' has other contents than this one" in stranger.complaint()
