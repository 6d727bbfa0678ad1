"""`ciuic-peer export` and `import` over a real daemon: to and from folders, and file systems that are none of this machine."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from daemon_kit import PeerProcess, daemons
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from object_kit import MB, QUICK, addresses, client, command, make_file, said

from ciuic_p2p import LocalError, ObjectMissing
from ciuic_p2p.trade import FOLDER, export_objects, import_files

NAMES = ("one.bin", "folder/two.bin", "folder/deeper/empty.bin")


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    with daemons(tmp_path_factory.mktemp("trade"), **QUICK) as made:
        peer = made.started("us")
        _ = peer.ready
        yield peer


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three files, one of more than a shard, one without bytes; and what is no file."""
    folder = tmp_path / "source"
    for seed, (name, size_bytes) in enumerate(zip(NAMES, (9 * MB, 1000, 0), strict=True)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make_file(folder / name, size_bytes, seed)
    os.mkfifo(folder / "pipe")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def done(peer: PeerProcess, *words: str) -> dict[str, Any]:
    status, out, err = said(command(peer, *words, "--json"))
    assert (status, err) == (0, "")
    told: dict[str, Any] = json.loads(out)
    return told


def copied(traded: list[Any]) -> list[str]:
    return [each.address for each in traded if each.copied]


def test_a_folder_becomes_objects_and_a_folder_again(peer: PeerProcess, source: Path, tmp_path: Path) -> None:
    # given a folder that is imported
    told = done(peer, "import", str(source), "ciuic://there/and")
    assert sorted(addresses(peer)) == sorted(f"ciuic://there/and/{name}" for name in NAMES)
    assert (told["copied"], told["copied_bytes"], told["there"]) == (3, 9 * MB + 1000, 0)
    client(peer).upload_file(source / "one.bin", "ciuic://there/and.bin")  # whose name only begins alike

    # when it is exported
    target = tmp_path / "target"
    exported = done(peer, "export", "ciuic://there/and", str(target))

    # then it is the same, and nothing is left on the way
    assert contents(target) == contents(source)
    assert exported["files"][0] == {
        "address": "ciuic://there/and/folder/deeper/empty.bin",
        "url": f"{target}/folder/deeper/empty.bin",
        "size_bytes": 0,
        "copied": True,
    }
    assert list((peer.home / FOLDER).iterdir()) == []

    # and the second time all is there already, both ways
    home, there = peer.home, "ciuic://there/and"
    assert copied(export_objects(f"{there}/", f"file://{target}", home)) == []
    assert copied(import_files(f"{source}/", f"{there}/", home)) == []

    # and what has other bytes is copied, even with the same size and an older time
    other = make_file(target / "folder" / "two.bin", 1000, seed=99)
    os.utime(other, (0, 0))
    assert copied(import_files(str(target), there, home)) == [f"{there}/folder/two.bin"]
    assert copied(export_objects(there, str(source), home)) == [f"{there}/folder/two.bin"]
    assert contents(source) == contents(target)

    # and everything, when that is asked for
    assert len(copied(export_objects(there, str(target), home, force=True))) == 3
    status, out, _ = said(command(peer, "import", str(target), there, "--force"))
    assert (status, out) == (0, "ciuic://there/and: 3 copied (9.0 MB), 0 there already\n")


def test_one_object_goes_into_a_folder_or_under_a_name(peer: PeerProcess, source: Path, tmp_path: Path) -> None:
    import_files(str(source / "one.bin"), "ciuic://single/", peer.home)
    import_files(str(source / "one.bin"), "ciuic://single", peer.home)
    import_files(str(source / "one.bin"), "ciuic://single/other.bin", peer.home)
    assert [row["address"] for row in client(peer).list("ciuic://single")] == [
        "ciuic://single/one.bin",
        "ciuic://single/other.bin",
    ]
    export_objects("ciuic://single/one.bin", str(tmp_path), peer.home)
    export_objects("ciuic://single/one.bin", f"{tmp_path}/new/", peer.home)
    export_objects("ciuic://single/one.bin", f"{tmp_path}/new/name", peer.home)
    for name in ("one.bin", "new/one.bin", "new/name"):
        assert (tmp_path / name).read_bytes() == (source / "one.bin").read_bytes()


def test_a_file_system_that_is_no_folder(peer: PeerProcess, source: Path) -> None:
    # given a file system in memory
    fsspec.filesystem("memory").put(str(source / "folder"), "/from", recursive=True)
    fsspec.filesystem("memory").pipe("/from/one.bin", (source / "one.bin").read_bytes())
    moved: list[tuple[int, int]] = []

    # when its files become objects, and go back
    imported = import_files("memory://from", "ciuic://memory", peer.home, moved=lambda *told: moved.append(told))
    exported = export_objects("ciuic://memory", "memory://to", peer.home, moved=lambda *told: moved.append(told))

    # then they are the same
    assert (
        copied(imported)
        == copied(exported)
        == [f"ciuic://memory/{name}" for name in ("deeper/empty.bin", "one.bin", "two.bin")]
    )
    memory = fsspec.filesystem("memory")
    assert {name.removeprefix("/to/"): memory.cat_file(name) for name in memory.find("/to")} == {
        name.removeprefix("/from/"): memory.cat_file(name) for name in memory.find("/from")
    }
    assert max(moved) == (9 * MB + 1000, 9 * MB + 1000)

    # and only what is other is copied again
    memory.pipe("/to/two.bin", bytes(1000))
    assert copied(export_objects("ciuic://memory", "memory://to", peer.home)) == ["ciuic://memory/two.bin"]
    assert copied(import_files("memory://to", "ciuic://memory", peer.home)) == []


def test_where_bytes_are_not_at_hand_the_later_one_counts(peer: PeerProcess, source: Path, tmp_path: Path) -> None:
    # given a file system whose files would have to be fetched to be compared
    class FarAway(DirFileSystem):
        protocol = "far"

        def __init__(self, **_: Any) -> None:
            super().__init__(path=str(tmp_path), fs=LocalFileSystem())

    fsspec.register_implementation("far", FarAway, clobber=True)
    url = "far:/"
    name = "ciuic://later/two.bin"
    client(peer).upload_file(source / "folder" / "two.bin", name)
    created_s = client(peer).stat(name)["created_at_ms"] / 1000

    # when it has a file of the same size, then it depends on which is the later one
    there = make_file(tmp_path / "two.bin", 1000, seed=50)
    os.utime(there, (created_s - 5, created_s - 5))
    assert copied(import_files(f"{url}/two.bin", name, peer.home)) == []
    assert copied(export_objects(name, f"{url}/two.bin", peer.home)) == [name]
    assert copied(export_objects(name, f"{url}/two.bin", peer.home)) == []
    os.utime(there, (created_s + 5, created_s + 5))
    assert copied(import_files(f"{url}/two.bin", name, peer.home)) == [name]


def test_what_cannot_be_traded_is_one_line(peer: PeerProcess, source: Path, tmp_path: Path) -> None:
    status, out, err = said(command(peer, "import", "nosuch://bucket/file", "ciuic://data"))
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert "nosuch://bucket/file failed (ValueError: Protocol not known: nosuch); check the URL" in err
    for trade, source_at, target_at, reason in (
        (export_objects, "ciuic://nothing/here", str(tmp_path), "there is no object ciuic://nothing/here, and none below it; "),
        (export_objects, "data/x", str(tmp_path), "'data/x' names no bucket; "),
        (export_objects, "ciuic://", str(tmp_path), "'ciuic://' names no bucket; "),
        (import_files, str(tmp_path / "nothing"), "ciuic://data", "there is no file at .*nothing; "),
        (import_files, str(source), "ciuic://Not a bucket/x", "bucket 'Not a bucket' is not .*; "),
    ):
        with pytest.raises(LocalError, match=reason):
            trade(source_at, target_at, peer.home)

    # and a name that cannot be an object's is found before anything is copied
    (source / "z\n").write_bytes(b"")
    with pytest.raises(LocalError, match=r"control character.*rename it"):
        import_files(str(source), "ciuic://never", peer.home)
    assert list(client(peer).list("ciuic://never")) == []

    # and an object is no file where a folder is
    client(peer).upload_file(source / "one.bin", "ciuic://both/a")
    client(peer).upload_file(source / "one.bin", "ciuic://both/a/b")
    (tmp_path / "both" / "a").mkdir(parents=True)
    with pytest.raises(LocalError, match="is a folder"):
        export_objects("ciuic://both", str(tmp_path / "both"), peer.home)
    assert list((tmp_path / "both" / "a").iterdir()) == []
    with pytest.raises(ObjectMissing):
        export_objects("ciuic://both/a/b/c", str(tmp_path), peer.home)


def test_what_a_killed_command_left_is_removed(peer: PeerProcess, source: Path) -> None:
    # given a folder that a command left when it was killed, and one of another that still runs
    left, used = peer.home / FOLDER / "left", peer.home / FOLDER / "used"
    for folder in (left, used):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"half of it")
    descriptor = os.open(used, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    # when the next one begins
    import_files(str(source), "ciuic://again", peer.home)

    # then only that of the first is gone
    assert [path.name for path in (peer.home / FOLDER).iterdir()] == ["used"]
    os.close(descriptor)
