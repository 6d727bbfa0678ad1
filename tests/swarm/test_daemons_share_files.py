"""Files that all peers share are divided among their trainers: every record once in each pass."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from daemon_kit import Daemons, PeerProcess, daemons, wait_for
from shard_kit import ShardTrainer, data_of, leave_all, used_by_ledger, used_by_trainers, wait_for_pass

import ciuic_p2p as ciuic
from ciuic_p2p.data.slots import Slots

RECORDS = 300
FOLDER = "ciuic://data/corpus"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Daemons]:
    with daemons(tmp_path) as found:
        yield found


def put_records(peers: Sequence[PeerProcess], folder: Path) -> None:
    """In two files, which all peers know when this returns."""
    for name, numbers in (("0.jsonl", range(100)), ("1.jsonl", range(100, RECORDS))):
        ciuic.Client(peers[0].home).upload_file(write_records(folder / name, numbers), f"{FOLDER}/{name}")
    for peer in peers:
        wait_for(lambda peer=peer: len(list(ciuic.Client(peer.home).list(FOLDER))) == 2, f"{peer.name} knows the files")


def write_records(path: Path, numbers: range) -> Path:
    path.write_text("".join(json.dumps({"number": number, "text": str(number)}) + "\n" for number in numbers))
    return path


def test_every_record_of_shared_files_is_used_once_a_pass(made: Daemons, tmp_path: Path) -> None:
    # given files that one peer put, and trainers at two, of which one reads ahead in a process of its own
    peers = made.swarm("eu", "us")
    put_records(peers, tmp_path)
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
    path = write_records(tmp_path / "others.jsonl", range(RECORDS))
    stranger = ShardTrainer(peers[1], 0.01, url=str(path))
    assert "dataset 'data' of run 'shard' has other contents than this one" in stranger.complaint()


def test_every_document_of_a_pipeline_is_used_once_before_it_comes_again(made: Daemons, tmp_path: Path) -> None:
    # given trainers at two peers that read one pipeline without end over shared files, and one of them is killed
    peers = made.swarm("eu", "us")
    put_records(peers, tmp_path)
    trainers = [ShardTrainer(peer, 0.01, url=FOLDER, stream=True) for peer in peers]
    for trainer in trainers:
        wait_for(lambda trainer=trainer: any(w.counted for w in trainer.windows()), f"{trainer.peer.name} contributed")
    trainers[1].kill()
    trainers.append(ShardTrainer(peers[1], 0.01, url=FOLDER, stream=True))
    # when all documents were used, and half of them once more
    wait_for(lambda: used_slots(peers[0]).total() > RECORDS * 3 // 2, "it comes again")
    leave_all([trainers[0], trainers[2]])
    # then each is in contributions that counted as often as the state says
    assert data_of(peers[0]) == data_of(peers[1])
    rest = used_slots(peers[0])
    rest.subtract(used_by_trainers(trainers))
    unsettled = [w for w in trainers[1].windows() if w.epoch is None]
    assert +rest in [Counter(), *(Counter(w.samples) for w in unsettled)], "what it sent last may count or not"
    assert not -rest
    # and what is used are all documents from the first on, but for what is held and what was given back
    stretches = data_of(peers[0])["used"]
    assert stretches[0][:2] == [0, 0]


def used_slots(peer: PeerProcess) -> Counter[int]:
    """How often each document is used, by the positions that are a part of the run's state."""
    return Counter(slot % RECORDS for _, slot in Slots.of(map(tuple, data_of(peer).get("used", []))))
