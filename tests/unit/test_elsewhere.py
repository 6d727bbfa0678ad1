"""What other file systems hold and raise, as `ciuic-peer export` and `import` see it."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from blake3 import blake3
from fsspec.registry import known_implementations

from ciuic_p2p.elsewhere import Elsewhere
from ciuic_p2p.errors import LocalError


def test_files_of_a_folder_by_their_names_below_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"123")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "file")
    (tmp_path / "links").symlink_to(tmp_path / "a")
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    files = Elsewhere(str(tmp_path)).files()
    assert {name: info["size"] for name, info in files.items()} == {"a/b/file": 3, "link": 3}
    assert list(Elsewhere(f"{tmp_path}/a/b/file").files()) == [""]
    assert Elsewhere(f"{tmp_path}/nothing").files() == {}
    assert Elsewhere(f"{tmp_path}/nothing").info() is None


def test_bytes_at_hand_are_compared_by_their_hash(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    fsspec.filesystem("memory").pipe("/elsewhere/file", b"bytes")
    for url in (f"{tmp_path}/file", "memory://elsewhere/file"):
        file = Elsewhere(url)
        info = file.info()
        assert info is not None
        assert file.etag(info) == blake3(b"bytes").hexdigest()
        assert file.modified_ms() is not None


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_implementations, "faraway", {"class": "farawayfs.FarAway", "err": "Install farawayfs to get far"})
    with pytest.raises(LocalError, match=r"faraway://x needs .*Install farawayfs to get far.*; `pip install farawayfs`"):
        Elsewhere("faraway://x")
    own = {"class": "fsspec.implementations.nothere.FileSystem", "err": "it requires something"}
    monkeypatch.setitem(known_implementations, "near", own)
    with pytest.raises(LocalError, match=r"`pip install 'fsspec\[near\]'`"):
        Elsewhere("near://x")


def test_what_a_file_system_raises_is_one_error_that_names_the_url(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalError, match=r"file/below failed \(FileExistsError.*check the URL"):
        Elsewhere(f"{tmp_path}/file/below").store(tmp_path / "file", lambda _: None)
    with pytest.raises(LocalError, match="Protocol not known"):
        Elsewhere("nosuch://x")
