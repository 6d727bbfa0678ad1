"""`ciuic://` as a file system of fsspec, over a real daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from daemon_kit import PeerProcess, daemons
from object_kit import QUICK, addresses

from ciuic_p2p.fs import CiuicFileSystem


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    with daemons(tmp_path_factory.mktemp("fsspec"), **QUICK) as made:
        peer = made.started("us")
        _ = peer.ready
        yield peer


@pytest.fixture
def fs(peer: PeerProcess) -> CiuicFileSystem:
    """Empty."""
    fs = CiuicFileSystem(home=peer.home)
    for address in addresses(peer):
        fs.rm_file(address)
    return fs


def test_what_is_written_is_read_and_listed(fs: CiuicFileSystem) -> None:
    with fs.open("ciuic://data/a/one.txt", "w") as stream:
        stream.write("first line\nsecond line\n")
    fs.pipe("ciuic://data/two.bin", b"bytes")
    with fs.open("ciuic://data/a/one.txt", "r") as stream:
        assert list(stream) == ["first line\n", "second line\n"]
    assert fs.cat("ciuic://data/two.bin") == b"bytes"
    assert fs.cat_file("data/two.bin", start=1, end=3) == b"yt"
    assert fs.ls("ciuic://data", detail=False) == ["data/a", "data/two.bin"]
    assert fs.ls("", detail=False) == ["data"]
    assert fs.find("ciuic://data") == ["data/a/one.txt", "data/two.bin"]
    assert fs.glob("ciuic://data/**/*.txt") == ["data/a/one.txt"]
    assert fs.isdir("ciuic://data/a")
    assert fs.isfile("ciuic://data/two.bin")
    assert fs.info("ciuic://data/two.bin")["size"] == 5
    assert not fs.exists("ciuic://data/tw")
    with pytest.raises(FileNotFoundError):
        fs.open("ciuic://data/missing")
    with pytest.raises(FileNotFoundError):
        fs.ls("ciuic://data/missing")


def test_files_are_appended_to_copied_and_removed(fs: CiuicFileSystem, tmp_path: Path) -> None:
    fs.pipe("ciuic://data/a", b"one ")
    with fs.open("ciuic://data/a", "ab") as stream:
        stream.write(b"two")
    fs.cp("ciuic://data/a", "ciuic://data/b")
    fs.get("ciuic://data", str(tmp_path / "got"), recursive=True)
    assert (tmp_path / "got" / "b").read_bytes() == b"one two"
    fs.put(str(tmp_path / "got"), "ciuic://put", recursive=True)
    assert fs.find("put") == ["put/a", "put/b"]
    fs.rm("ciuic://data", recursive=True)
    assert fs.find("") == ["put/a", "put/b"]


def test_what_was_not_written_to_its_end_is_no_object(fs: CiuicFileSystem) -> None:
    def write_half() -> None:
        with fs.open("ciuic://data/a", "wb") as stream:
            stream.write(b"half of it")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert not fs.exists("ciuic://data/a")


def test_fsspec_knows_the_scheme(peer: PeerProcess) -> None:
    fsspec.register_implementation("ciuic", CiuicFileSystem, clobber=True)  # as the installed package's entry point does
    with fsspec.open("ciuic://data/x.txt", "w", home=peer.home) as stream:
        stream.write("x")
    with fsspec.open("ciuic://data/x.txt", "r", home=peer.home) as stream:
        assert stream.read() == "x"
