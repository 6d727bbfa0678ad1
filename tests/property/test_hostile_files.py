"""Files from strangers: whatever is in them, reading gives records or an error that says which file, and nothing else."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.data.sources import Source
from ciuic_p2p.errors import LocalError

ENDINGS = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt", ".parquet", ".tar", ".tar.gz", ".npy"]


def sound(ending: str) -> bytes:
    """A valid file."""
    lines = "".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(50)).encode()
    written = io.BytesIO()
    if ending == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": ["a", "b"] * 20}), written, row_group_size=9)
    elif ending.startswith(".tar"):
        with tarfile.open(fileobj=written, mode="w:gz" if ending.endswith("gz") else "w") as archive:
            for number in range(5):
                info = tarfile.TarInfo("x" * 120 + f"{number}.txt")
                info.size = 5
                archive.addfile(info, io.BytesIO(b"hello"))
    elif ending == ".npy":
        np.save(written, np.arange(600).reshape(20, 30))
    elif ending.endswith(".zst"):
        written.write(zstandard.ZstdCompressor().compress(lines))
    else:
        written.write(gzip.compress(lines) if ending.endswith(".gz") else lines)
    return written.getvalue()


def read_or_refuse(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    try:
        for _ in Source(url=str(folder / name), format=None).read():
            pass
    except LocalError as error:
        assert name in str(error)  # noqa: PT017  # it need not be raised


@pytest.mark.parametrize("ending", ENDINGS)
@given(content=st.binary(max_size=2000))
@settings(max_examples=30, deadline=None)
def test_any_bytes(ending: str, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    read_or_refuse(tmp_path_factory.getbasetemp(), f"any{ending}", content)


@pytest.mark.parametrize("ending", ENDINGS)
def test_valid_files_with_bytes_changed(ending: str, tmp_path: Path) -> None:
    content = sound(ending)
    for seed in range(300):
        rng = random.Random(seed)
        broken = bytearray(content)
        for _ in range(rng.choice([1, 1, 3, 20])):
            broken[rng.randrange(min(len(broken), 700) if rng.random() < 0.5 else len(broken))] = rng.randrange(256)
        read_or_refuse(
            tmp_path, f"changed{ending}", bytes(broken[: rng.randrange(len(broken))] if rng.random() < 0.2 else broken)
        )


@pytest.mark.parametrize("kind", ["line.gz", "line.zst", "header"])
def test_a_small_file_does_not_become_a_large_memory(kind: str, tmp_path: Path) -> None:
    # given few bytes that decompress to 400 MB: a line that does not end, or a tar header as large
    if kind == "header":
        info = tarfile.TarInfo("pax")
        info.type, info.size = tarfile.XHDTYPE, 400 << 20
        content, name = info.tobuf() + bytes(400 << 20), "a.tar.gz"
    else:
        content, name = bytes(400 << 20), "a.txt" + kind[4:]
    packed = zstandard.ZstdCompressor().compress(content) if name.endswith("zst") else gzip.compress(content, 1)
    (tmp_path / name).write_bytes(packed)
    del content
    # when it is read, then it is refused before it is in memory
    tracemalloc.start()
    with pytest.raises(LocalError, match=r"64 MiB|a header of"):
        list(Source(url=str(tmp_path)).read())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 300 << 20
