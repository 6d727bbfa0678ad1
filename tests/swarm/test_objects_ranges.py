"""Parts of objects among real daemons: only their shards travel, and what is open stays at its version."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from daemon_kit import PeerProcess, daemons, wait_for, wait_until_met
from object_kit import MB, QUICK, addresses, client, make_file, shard_files

from ciuic_p2p import ObjectMissing, VersionGone
from ciuic_p2p.fs import CiuicFileSystem
from ciuic_p2p.store.blobs import SHARD_BYTES

FILE = "ciuic://data/file.bin"
TABLE = "ciuic://data/table.parquet"
COLUMNS = ("first", "second", "third", "fourth")


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PeerProcess, PeerProcess]]:
    """One that holds all objects, and one that holds nothing and knows them."""
    with daemons(tmp_path_factory.mktemp("ranges"), **QUICK, CIUIC_REPLICAS="1") as made:
        holder = made.started("us")
        reader = made.started("eu", "--join", holder.join, CIUIC_STORE_QUOTA_BYTES="1")
        wait_until_met([holder, reader])
        yield holder, reader


def put(peers: tuple[PeerProcess, PeerProcess], file: Path, address: str) -> str:
    """Its etag, once both know it."""
    etag = str(client(peers[0]).upload_file(file, address)["etag"])
    wait_for(lambda: address in addresses(peers[1]) and client(peers[1]).stat(address)["etag"] == etag, "the reader knows it")
    return etag


def kept_bytes(peer: PeerProcess) -> int:
    """Of the shards that it fetched to read ranges."""
    return int(peer.view("status")["store"]["kept_bytes"])


def make_table(path: Path, rows: int) -> None:
    """Each column is longer than a shard, and no two bytes of it can be packed."""
    random = np.random.default_rng(0)
    columns = {name: random.integers(0, 1 << 62, rows) for name in COLUMNS}
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False, row_group_size=rows)


def test_a_column_of_a_table_fetches_its_own_shards_alone(peers: tuple[PeerProcess, PeerProcess], tmp_path: Path) -> None:
    # given a table of seven shards, of which the reader has none
    make_table(tmp_path / "table.parquet", 1_700_000)
    size_bytes = (tmp_path / "table.parquet").stat().st_size
    put(peers, tmp_path / "table.parquet", TABLE)
    assert size_bytes > 6 * SHARD_BYTES
    reader = peers[1]
    assert shard_files(reader) == {}
    before = kept_bytes(reader)

    # when one of its four columns is read
    fsspec.register_implementation("ciuic", CiuicFileSystem, clobber=True)  # as the installed package's entry point does
    table = pd.read_parquet(TABLE, columns=["second"], storage_options={"home": reader.home})

    # then it is right, and what was fetched is the shards that this column and the footer lie in
    expected = pq.read_table(tmp_path / "table.parquet", columns=["second"])["second"].to_numpy()
    assert np.array_equal(table["second"].to_numpy(), expected)
    chunk = pq.read_metadata(tmp_path / "table.parquet").row_group(0).column(1)
    first, last = chunk.data_page_offset // SHARD_BYTES, (chunk.data_page_offset + chunk.total_compressed_size) // SHARD_BYTES
    footer_bytes = size_bytes - size_bytes // SHARD_BYTES * SHARD_BYTES
    assert kept_bytes(reader) - before == (last - first + 1) * SHARD_BYTES + footer_bytes

    # and nothing of it was stored
    assert shard_files(reader) == {}


def test_any_range_is_read(peers: tuple[PeerProcess, PeerProcess], tmp_path: Path) -> None:
    # given an object of three shards
    content = make_file(tmp_path / "file", 20 * MB, seed=1).read_bytes()
    put(peers, tmp_path / "file", FILE)
    reader = peers[1]
    fs = CiuicFileSystem(home=reader.home)

    # then its bytes are read by ranges in every way there is
    for offset, length in ((0, 10), (SHARD_BYTES - 5, 10), (5, 18 * MB), (20 * MB - 3, 100), (21 * MB, 1)):
        assert client(reader).read_range(FILE, offset, length) == content[offset : offset + length]
    for start, end in ((None, None), (100, 200), (-100, None), (-100, -10), (None, 5), (19 * MB, None), (7, 5)):
        assert fs.cat_file(FILE, start, end) == content[start:end]
    assert fs.cat_ranges([FILE, FILE], [0, 9 * MB], [4, 9 * MB + 4]) == [content[:4], content[9 * MB : 9 * MB + 4]]

    # and an open one is a file like any other
    with fs.open(FILE) as opened:
        plain = io.BytesIO(content)
        for offset, length in ((0, 100), (15 * MB, 3 * MB), (MB - 1, 2), (0, -1), (20 * MB, 5), (21 * MB, 5)):
            assert opened.seek(offset) == plain.seek(offset)
            assert opened.read(length) == plain.read(length)
        for file in (opened, plain):
            file.seek(0)
        assert [opened.readline() for _ in range(50)] == [plain.readline() for _ in range(50)]
        assert opened.readline(3) == plain.readline(3)
        assert opened.tell() == plain.tell()


def test_what_is_open_stays_at_its_version(peers: tuple[PeerProcess, PeerProcess], tmp_path: Path) -> None:
    # given a file that is open, and one that another process is about to open
    first, second = (make_file(tmp_path / f"{seed}", 9 * MB, seed=seed).read_bytes() for seed in (2, 3))
    put(peers, tmp_path / "2", FILE)
    reader = peers[1]
    fs = CiuicFileSystem(home=reader.home)
    opened = fs.open(FILE)
    assert opened.read(10) == first[:10]
    pickled = pickle.dumps(opened)

    # when the object is replaced
    put(peers, tmp_path / "3", FILE)

    # then both read what they began with, and a new one the new bytes
    assert opened.read() == first[10:]
    assert pickle.loads(pickled).read(20) == first[10:30]
    assert fs.cat_file(FILE) == second

    # and an older version can be opened by its etag
    with fs.open(FILE, etag=opened.info()["etag"]) as older:
        assert older.read(10) == first[:10]


def test_a_version_that_is_gone_is_said(peers: tuple[PeerProcess, PeerProcess], tmp_path: Path) -> None:
    # given a file that is open
    reader = peers[1]
    fs = CiuicFileSystem(home=reader.home)
    before = shard_files(peers[0]).keys()
    put(peers, make_file(tmp_path / "5", 1000, seed=5), FILE)
    opened = fs.open(FILE)

    # when the object is replaced, and its bytes are collected
    (shard,) = shard_files(peers[0]).keys() - before
    put(peers, make_file(tmp_path / "6", 1000, seed=6), FILE)
    shard_files(peers[0])[shard].unlink()

    # then it is said, and what was never there too
    with pytest.raises(VersionGone, match="open it again"):
        opened.read()
    with pytest.raises(VersionGone, match="open it again"):
        client(reader).read_range(FILE, 0, 1, etag="ab" * 32)
    with pytest.raises(VersionGone, match="open it again"):
        fs.open(FILE, etag="ab" * 32)

    # and of an object that was removed there is nothing to open
    client(reader).remove(FILE)
    with pytest.raises(FileNotFoundError):
        fs.open(FILE)
    with pytest.raises(FileNotFoundError):
        fs.cat_file(FILE, 0, 1)
    with pytest.raises(ObjectMissing):
        client(reader).read_range(FILE, 0, 1)


def test_a_transaction_puts_all_at_its_end_or_nothing(peers: tuple[PeerProcess, PeerProcess]) -> None:
    fs = CiuicFileSystem(home=peers[0].home)
    with fs.transaction:
        fs.pipe("ciuic://deal/a", b"a")
        fs.pipe("ciuic://deal/b", b"b")
        assert fs.find("deal") == []
    assert fs.find("deal") == ["deal/a", "deal/b"]

    def fail() -> None:
        with fs.transaction:
            fs.pipe("ciuic://deal/c", b"c")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        fail()
    assert fs.find("deal") == ["deal/a", "deal/b"]
