"""Every format gives its records, goes on from any place, and refuses what is broken or hostile."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]
from typing import Any

import fsspec
import numpy as np
import pytest
import zstandard

from ciuic_p2p.data import sources
from ciuic_p2p.data.formats import streams
from ciuic_p2p.data.formats.arrays import map_rows
from ciuic_p2p.data.records import START, Broken, Place
from ciuic_p2p.data.sources import Source
from ciuic_p2p.errors import LocalError, Transient

TEXTS = [topics[name] for name in sorted(topics)][:40]
"""English prose with code in it, by the standard library."""


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path)
        return
    memory = fsspec.filesystem("memory")
    yield "memory://corpus"
    memory.store.clear()


def write(url: str, content: bytes) -> None:
    with fsspec.open(url, "wb") as file:
        file.write(content)


def jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def zst(content: bytes) -> bytes:
    """In several frames, as parallel compressors write it."""
    middle = len(content) // 2
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (content[:middle], content[middle:]))


def parquet(texts: list[str]) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    written = io.BytesIO()
    table = pyarrow.table({"text": texts, "length": list(map(len, texts))})
    pytest.importorskip("pyarrow.parquet").write_table(table, written, row_group_size=7)
    return written.getvalue()


def tar(members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return written.getvalue()


def samples(texts: list[str]) -> list[tuple[str, bytes]]:
    each = (
        [(f"deep/{'long' * 40}/{i:04}.txt", text.encode()), (f"deep/{'long' * 40}/{i:04}.meta.json", b"{}")]
        for i, text in enumerate(texts)
    )
    return list(itertools.chain.from_iterable(each))


def npy(array: Any) -> bytes:
    written = io.BytesIO()
    np.save(written, array, allow_pickle=True)
    return written.getvalue()


LINES = [line for text in TEXTS for line in text.splitlines() if line.strip()]
PARAGRAPHS = ["one\ntwo\n", "three\n", "four, é\n"]
ROWS = np.arange(60_000, dtype=np.uint16).reshape(200, 300)
CASES: dict[str, tuple[str, Callable[[], bytes], dict[str, Any], list[Any]]] = {
    "jsonl": (".jsonl", lambda: jsonl(TEXTS), {}, TEXTS),
    "jsonl.gz": (".jsonl.gz", lambda: gzip.compress(jsonl(TEXTS)), {}, TEXTS),
    "jsonl.zst": (".jsonl.zst", lambda: zst(jsonl(TEXTS)), {}, TEXTS),
    "lines": (".txt", lambda: "\n".join(TEXTS).encode(), {}, LINES),
    "lines.zst": (".txt.zst", lambda: zst("\n".join(TEXTS).encode()), {}, LINES),
    "paragraphs": (".txt", lambda: b"\n\none\ntwo\n\n \nthree\n\n\nfour, \xc3\xa9\n", {"format": "paragraphs"}, PARAGRAPHS),
    "parquet": (".parquet", lambda: parquet(TEXTS), {"columns": ("text",)}, TEXTS),
    "webdataset": (".tar", lambda: tar(samples(TEXTS)), {}, TEXTS),
    "webdataset.gz": (".tar.gz", lambda: gzip.compress(tar(samples(TEXTS), tarfile.GNU_FORMAT)), {}, TEXTS),
    "npy": (".npy", lambda: npy(ROWS), {}, ROWS.tolist()),
    "raw": (".bin", lambda: ROWS.tobytes() + b"\0", {"dtype": "uint16", "row": 300}, ROWS.tolist()),
}


def value_of(record: Any) -> Any:
    if "row" in record:
        return record["row"].tolist()
    return record["text"] if "text" in record else record["txt"].decode()


@pytest.mark.parametrize("name", CASES)
def test_a_source_gives_every_record_and_goes_on_from_any_place(name: str, folder: str) -> None:
    # given two files of a format
    ending, content, options, expected = CASES[name]
    for file in ("a", "b"):
        write(f"{folder}/{file}{ending}", content())
    source = Source(url=folder, **options)
    # when it is read, then all records are there
    read = list(source.read())
    assert [value_of(found.record) for found in read] == expected * 2
    # and reading goes on from any of them
    for at in {0, 1, len(expected) // 2, len(expected) - 1, len(expected), len(read) - 2, len(read) - 1}:
        rest = Source(url=folder, **options).read(read[at].after)
        assert [value_of(found.record) for found in itertools.islice(rest, 3)] == (expected * 2)[at + 1 : at + 4]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_torn_file_is_no_short_one(ending: str, tmp_path: Path) -> None:
    content = jsonl(TEXTS)
    packed = gzip.compress(content) if ending == ".gz" else zst(content)
    (tmp_path / f"a.jsonl{ending}").write_bytes(packed[: len(packed) * 3 // 4])
    with pytest.raises(LocalError, match=r"a\.jsonl\.\w+, after record \d+"):
        list(Source(url=str(tmp_path)).read())


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text"\n', "after record 1: no JSON"),
        ("a.jsonl", b"[1]\n", "a JSON list where an object belongs"),
        ("a.jsonl", b"[" * 100_000, "no JSON"),
        ("a.jsonl.gz", b"not gzip at all", "after record 0"),
        ("a.jsonl.zst", b"not zstd at all", "no zstd"),
        ("a.txt", b"good\n\xff\xfe\n", "after record 1: no UTF-8"),
        ("a.parquet", b"PAR1 not really", "no parquet"),
        ("a.tar", b"x" * 2000, "no tar"),
        ("a.npy", npy(np.array([{"a": 1}], dtype=object)), "a pickle, which may run code"),
        ("a.npy", b"not numpy", r"no \.npy"),
        ("a.npy", npy(np.asfortranarray(ROWS)), "Fortran"),
        ("a.npy", npy(ROWS)[:-600], "the file ends 1 rows too early"),
        ("a.bin", b"abcd", "does not say of what"),
        ("a.parquet.gz", b"abcd", "compressed as a whole"),
    ],
)
def test_what_is_broken_is_named(name: str, content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LocalError, match=complaint):
        list(Source(url=str(tmp_path)).read())


@pytest.mark.parametrize("at", range(0, 6000, 512))
def test_an_archive_cut_or_broken_inside_does_not_just_end(at: int, tmp_path: Path) -> None:
    whole = tar([(f"{i}.txt", b"x" * 700) for i in range(4)])
    for content in (whole[: at + 100], whole[:at] + b"\xff" * 512 + whole[at + 512 :]):
        (tmp_path / "a.tar").write_bytes(content)
        try:
            found = list(Source(url=str(tmp_path)).read())
        except LocalError:
            continue
        assert len(found) == 4, "content that is changed, or zeros after the end that are missing, do not matter here"


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    names = ["../../etc/passwd.txt", "/etc/shadow.txt", "C:\\x.txt", "a\nb.txt", "\u202egnp.txt", "~/.ssh/id.txt"]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo("link.txt")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
    (tmp_path / "a.tar").write_bytes(content.getvalue())
    before = sorted(tmp_path.parent.rglob("*"))
    found = [read.record for read in Source(url=str(tmp_path)).read()]
    assert [record["__key__"] + ".txt" for record in found] == names
    assert all(record["txt"] == b"x" for record in found)
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar([("a.txt", b"1"), ("a.txt", b"2")]))
    with pytest.raises(LocalError, match="has two members 'txt'"):
        list(Source(url=str(tmp_path)).read())


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.tar"])
def test_a_record_that_would_fill_the_memory_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_RECORD_BYTES", 1 << 20)
    monkeypatch.setattr("ciuic_p2p.data.formats.webdataset.LARGEST_RECORD_BYTES", 1 << 20)
    content = b" " * (1 << 21)
    (tmp_path / name).write_bytes(tar([("a.txt", content)]) if name.endswith("tar") else content)
    with pytest.raises(LocalError, match="than 1 MiB"):
        list(Source(url=str(tmp_path)).read())


def test_reading_an_archive_holds_one_sample_at_a_time(tmp_path: Path) -> None:
    # given an archive far larger than what reading it may take
    import tracemalloc

    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(3000):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 8192
            archive.addfile(info, io.BytesIO(b"x" * 8192))
    tracemalloc.start()
    count = sum(1 for _ in Source(url=str(tmp_path)).read())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 3000
    assert most < 6 << 20


def test_a_folder_is_read_in_order_of_names_without_what_lies_beside(tmp_path: Path) -> None:
    for name, text in [
        ("b/2.txt", "b2"),
        ("b/1.txt", "b1"),
        ("a.txt", "a"),
        (".hidden.txt", "no"),
        ("_SUCCESS", ""),
        ("x.md", "no"),
    ]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [read.record["text"] for read in Source(url=str(tmp_path)).read()] == ["a", "b1", "b2"]
    assert [read.record["text"] for read in Source(url=f"{tmp_path}/b/*.txt").read()] == ["b1", "b2"]
    assert [read.record["text"] for read in Source(url=f"{tmp_path}/x.md", format="lines").read()] == ["no"]


def test_each_pass_takes_the_files_in_another_order(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}.txt").write_text(str(number))
    source = Source(url=str(tmp_path), shuffle_seed=1)
    passes = [[read.record["text"] for read in source.read(START, number)] for number in range(3)]
    assert all(sorted(found, key=int) == list(map(str, range(12))) for found in passes)
    assert len(set(map(tuple, passes))) == 3
    assert [read.record["text"] for read in source.read(Place(file=5), 2)] == passes[2][5:]


def test_a_fingerprint_changes_with_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    before = Source(url=str(tmp_path)).fingerprint
    assert before == Source(url=str(tmp_path)).fingerprint
    (tmp_path / "b.txt").write_text("b")
    assert Source(url=str(tmp_path)).fingerprint != before


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("/nowhere/at/all.jsonl", "it is not there"),
        ("nosuch://bucket/a.jsonl", "check the URL"),
        ("memory://empty/*.txt", "no file"),
    ],
)
def test_what_cannot_be_opened_is_said_with_its_remedy(url: str, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint):
        list(Source(url=url).read())


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(LocalError, match="'csv' is no format"):
        Source(url="a", format="csv")


def test_a_lost_connection_may_be_tried_again() -> None:
    with pytest.raises(Transient, match="cannot read x: ConnectionResetError"), sources.translated("read x"):
        raise ConnectionResetError("by peer")


def test_without_its_library_a_format_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(LocalError, match=r"pip install 'ciuic-p2p\[data\]'"):
        list(Source(url=str(tmp_path)).read())


def test_rows_can_be_mapped_for_access_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy(ROWS))
    (tmp_path / "a.bin").write_bytes(ROWS.tobytes())
    for mapped in (map_rows(tmp_path / "a.npy"), map_rows(tmp_path / "a.bin", "uint16", 300)):
        assert len(mapped) == 200
        assert mapped[150].tolist() == ROWS[150].tolist()
    (tmp_path / "b.npy").write_bytes(npy(np.array([{}], dtype=object)))
    with pytest.raises(Broken, match="no array"):
        map_rows(tmp_path / "b.npy")
