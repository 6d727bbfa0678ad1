"""The home folder: made privately, checked, locked; its files replaced whole."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from ciuic_p2p.errors import HomeUnusable
from ciuic_p2p.net.home import Home


def mode_of(path):
    return path.stat().st_mode & 0o777


def test_a_new_home_is_private(tmp_path):
    with Home.open(tmp_path / "some" / "home") as home:
        assert mode_of(home.folder) == 0o700
        assert mode_of(home.file("lock")) == 0o600
        assert sorted(os.listdir(home.folder)) == ["lock"]


def test_the_mode_of_an_existing_folder_is_left_alone(tmp_path):
    tmp_path.chmod(0o755)
    Home.open(tmp_path).close()
    assert mode_of(tmp_path) == 0o755


def test_a_second_daemon_is_refused_and_told_which_process_has_the_home(tmp_path):
    with Home.open(tmp_path):
        with pytest.raises(HomeUnusable, match=rf"another daemon \(process {os.getpid()}\).*`ciuic-peer stop`.*--home"):
            Home.open(tmp_path)
        assert Home.holder_of(tmp_path) == os.getpid()
    assert Home.holder_of(tmp_path) is None
    Home.open(tmp_path).close()


def test_the_lock_ends_with_the_process_that_held_it(tmp_path):
    script = f"import os; from ciuic_p2p.net.home import Home; Home.open({str(tmp_path)!r}); os._exit(0)"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": "."})
    assert Home.holder_of(tmp_path) is None
    Home.open(tmp_path).close()


def test_a_home_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(HomeUnusable, match="is not a folder; choose another one with --home"):
            Home.open(path)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "the disk of the home .* is full; free some space"),
        (errno.EDQUOT, "the disk of the home .* is full"),
        (errno.EACCES, "cannot be written; choose another folder with --home"),
        (errno.EROFS, "cannot be written"),
        (errno.EIO, "cannot be used: Input/output error"),
    ],
)
def test_a_home_that_cannot_be_written_says_why_and_is_not_left_locked(tmp_path, monkeypatch, number, says):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(HomeUnusable, match=says):
            Home.open(tmp_path)
    Home.open(tmp_path).close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_others_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(HomeUnusable, match="cannot be written"):
        Home.open(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    with Home.open(tmp_path) as home:
        home.write("file", b"old")

        def fail(descriptor):
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(HomeUnusable):
                home.write("file", b"new")
        assert home.file("file").read_bytes() == b"old"
        assert sorted(os.listdir(tmp_path)) == ["file", "lock"]
        home.write("file", b"new", mode=0o640)
        assert home.file("file").read_bytes() == b"new"
        assert mode_of(home.file("file")) == 0o640


def test_closing_twice_is_harmless(tmp_path):
    home = Home.open(tmp_path)
    home.close()
    home.close()
