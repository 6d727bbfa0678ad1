"""Records in any order: of every format, from any file system, fetched and indexed once."""

from __future__ import annotations

import gzip
import json
import logging
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from test_sources import CASES, ROWS, TEXTS, jsonl, npy, parquet, tar, value_of, write, zst
from torch.utils.data import DataLoader

from ciuic_p2p.data import Records, Source
from ciuic_p2p.errors import LocalError


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "corpus")
        (tmp_path / "corpus").mkdir(exist_ok=True)
        return
    memory = fsspec.filesystem("memory")
    yield "memory://corpus"
    memory.store.clear()


@pytest.mark.parametrize("name", CASES)
def test_records_of_every_format_come_in_any_order(name: str, folder: str, tmp_path: Path) -> None:
    # given two files of a format
    ending, content, options, expected = CASES[name]
    os.makedirs(tmp_path / "corpus", exist_ok=True)
    for file in ("a", "b"):
        write(f"{folder}/{file}{ending}", content())
    source = Source(url=folder, **options)
    # when they are indexed, then and when that is found on the disk
    for records in (Records(source, tmp_path / "home"), Records(source, tmp_path / "home")):
        # then all are there, whatever is asked for first
        assert len(records) == 2 * len(expected)
        order = list(range(len(records)))
        random.Random(0).shuffle(order)
        found = {number: value_of(records[number]) for number in order}
        assert [found[number] for number in range(len(records))] == expected * 2
        assert value_of(records[-1]) == expected[-1]
        with pytest.raises(IndexError):
            records[len(records)]


def test_forked_workers_of_a_dataloader_read_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    records = Records(tmp_path / "a.jsonl", tmp_path / "home")
    assert records[7] == {"text": TEXTS[7]}  # the file is open here already
    loader = DataLoader(records, batch_size=4, num_workers=2, multiprocessing_context="fork")
    assert [text for batch in loader for text in batch["text"]] == TEXTS


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.npy", npy(ROWS)), ("a.jsonl", jsonl(TEXTS)), ("a.parquet", parquet(TEXTS))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_process_that_is_given_it_pickled_reads_on(name: str, content: bytes, tmp_path: Path) -> None:
    """As a worker of a DataLoader that is spawned does; without torch, which takes long to load."""
    (tmp_path / name).write_bytes(content)
    records = Records(tmp_path / name, tmp_path / "home")
    expected = value_of(records[3])  # its file is open here
    script = "import pickle, sys; records = pickle.load(sys.stdin.buffer); print(repr(records[3]), 'torch' in sys.modules)"
    argv = [sys.executable, "-c", script]
    said = subprocess.run(argv, input=pickle.dumps(records), capture_output=True, check=True, timeout=60)
    assert said.stdout.decode() == f"{records[3]!r} False\n"
    assert value_of(records[3]) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.jsonl", b""),
        ("empty.jsonl", b"\n\n"),
        ("empty.txt", b""),
        ("empty.jsonl.gz", gzip.compress(b"", mtime=0)),
        ("empty.jsonl.zst", zst(b"")),
        ("empty.parquet", parquet([])),
        ("empty.npy", npy(ROWS[:0])),
        ("empty.tar", tar([])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_without_records_has_none(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(jsonl(TEXTS[:2]))
    for at in ("a-", "c-"):
        (tmp_path / f"{at}{name}").write_bytes(content)
    records = Records(tmp_path, tmp_path / "home")
    assert len(records) == 2
    assert [records[number]["text"] for number in range(2)] == TEXTS[:2]


def test_an_empty_raw_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    assert len(Records(Source(url=str(tmp_path / "a.bin"), dtype="uint16", row=3), tmp_path / "home")) == 0


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text"\n', r"a\.jsonl, after record 1: no JSON.*; repair or remove the file"),
        ("a.jsonl.gz", gzip.compress(jsonl(TEXTS), mtime=0)[:-40], r"a\.jsonl\.gz: Compressed file ended"),
        ("a.jsonl.zst", b"not zstd at all", "no zstd"),
        ("a.txt", b"good\n\xff\xfe\n", "after record 1: no UTF-8"),
        ("a.parquet", b"PAR1 not really", "no parquet"),
        ("a.parquet", parquet(TEXTS)[:-60], "no parquet"),
        ("a.tar", b"x" * 2000, "no tar"),
        ("a.tar", tar([("a.txt", b"1"), ("b.txt", b"2" * 900)])[:2000], "after record 1: no tar"),
        ("a.npy", npy(ROWS)[:-600], "the file ends 1 rows too early"),
        ("a.npy", b"", r"no \.npy"),
        ("a.bin", b"abcd", "does not say of what"),
        ("a.npy.gz", b"abcd", "compressed as a whole"),
        ("a.doc", b"abcd", "says no format"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_broken_is_named_before_training_begins(name: str, content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LocalError, match=complaint):
        Records(tmp_path / name, tmp_path / "home")
    kept = sorted(path.suffix for path in (tmp_path / "home" / "datasets").glob("*.json"))
    assert kept == [], "nothing says that it was indexed"


@pytest.mark.parametrize("ending", [".jsonl", ".npy"])
def test_a_file_that_changed_is_named_and_then_indexed_anew(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    old, new = (jsonl(TEXTS[:4]), jsonl(TEXTS[4:7])) if ending == ".jsonl" else (npy(ROWS[:4]), npy(ROWS[4:7]))
    path.write_bytes(old)
    records = Records(path, tmp_path / "home")
    first = records[0]
    # when it is written again
    path.write_bytes(new)
    # then what was indexed is refused, and the next one reads what is there
    with pytest.raises(LocalError, match=rf"a\{ending} was changed since it was indexed; make the dataset again"):
        records[0]
    again = Records(path, tmp_path / "home")
    assert len(again) == 3
    assert value_of(again[0]) != value_of(first)
    assert again.fingerprint != records.fingerprint
    # and what was removed is named too
    path.unlink()
    with pytest.raises(LocalError, match="was changed since it was indexed"):
        again[0]


def test_a_remote_file_is_fetched_once_and_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    memory = fsspec.filesystem("memory")
    write("memory://once/a.jsonl", jsonl(TEXTS))
    try:
        Records("memory://once", tmp_path)
        Records("memory://once", tmp_path)
        assert [record.message.split(" ")[0] for record in caplog.records] == ["dataset.fetching"]
        # when it changes, then it is fetched again
        write("memory://once/a.jsonl", jsonl(TEXTS[:3]))
        assert len(Records("memory://once", tmp_path)) == 3
    finally:
        memory.store.clear()


@pytest.mark.parametrize("left", ["fetched", "part", "data", "npy"])
def test_what_a_killed_process_left_is_made_anew(left: str, tmp_path: Path) -> None:
    """Up to what says that all is there, which is written last."""
    memory = fsspec.filesystem("memory")
    write("memory://left/a.jsonl.gz", gzip.compress(jsonl(TEXTS)))
    try:
        Records("memory://left", tmp_path)
        [facts] = (tmp_path / "datasets").glob("*.json")
        facts.unlink()
        facts.with_suffix(f".{left}").write_bytes(b"half of someth")
        assert [record["text"] for record in map(Records("memory://left", tmp_path).__getitem__, range(len(TEXTS)))] == TEXTS
    finally:
        memory.store.clear()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"nonsense", json.dumps({"version": 0}).encode()])
def test_what_is_kept_and_makes_no_sense_is_made_anew(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    Records(tmp_path / "a.jsonl", tmp_path / "home")
    [facts] = (tmp_path / "home" / "datasets").glob("*.json")
    facts.write_bytes(content)
    assert len(Records(tmp_path / "a.jsonl", tmp_path / "home")) == len(TEXTS)


def test_the_same_contents_have_one_fingerprint_wherever_they_lie(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    try:
        for url in (f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl", "memory://print/other.jsonl"):
            write(url, jsonl(TEXTS if "b." not in url else TEXTS[::-1]))
        here, reversed_, there = (
            Records(url, tmp_path / "home").fingerprint
            for url in (f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl", "memory://print")
        )
        assert here == there != reversed_
    finally:
        memory.store.clear()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    (tmp_path / "home").write_bytes(b"a file")
    with pytest.raises(LocalError, match=r"cannot keep files of records in .*/home/datasets: Not a directory"):
        Records(tmp_path / "a.jsonl", tmp_path / "home")


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    for number in range(80):
        (tmp_path / f"{number:02}.txt").write_text(f"{number}\n")
    records = Records(tmp_path, tmp_path / "home")
    found: list[Any] = [records[number]["text"] for number in (*range(80), 0)]
    assert found == [str(number) for number in (*range(80), 0)]
