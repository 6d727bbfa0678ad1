"""A daemon that cannot start says why in one line, with the remedy, and exits 1. Real command lines, no daemon is imported."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_kit import LOOPBACK, PATIENCE_S, PeerProcess, daemons

from ciuic_p2p.config import child_environment

FEW_WORDS = 12
"""A remedy takes more characters than this."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    """A daemon of a swarm of its own."""
    with daemons(tmp_path_factory.mktemp("running")) as made:
        yield made.swarm("us")[0]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    """One of another swarm."""
    with daemons(tmp_path_factory.mktemp("stranger")) as made:
        yield made.swarm("eu")[0]


def refusal(home: Path, *flags: str) -> str:
    """The line that a daemon ends with that must not start."""
    argv = [sys.executable, "-m", "ciuic_p2p", "start", "--json", "--home", str(home), "--listen", LOOPBACK, *flags]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, env=child_environment(), check=False)
    assert ended.returncode == 1, ended
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    what, separator, remedy = lines[0].partition("; ")
    assert what.startswith("ciuic-peer: ")
    assert separator, lines[0]
    assert len(remedy) > FEW_WORDS, lines[0]
    return lines[0]


def test_a_damaged_join_string(tmp_path: Path, running: PeerProcess) -> None:
    damaged = running.join[:-8]

    line = refusal(tmp_path / "home", "--join", damaged)

    assert "join string" in line
    assert running.join[:40] not in line, "a join string holds a token, which must not be shown"


def test_a_join_string_that_is_none(tmp_path: Path) -> None:
    line = refusal(tmp_path / "home", "--join", "hello")

    assert "--join" in line


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        line = refusal(tmp_path / "home", "--listen", f"/ip4/127.0.0.1/tcp/{port}")

    assert str(port) in line


def test_a_status_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        line = refusal(tmp_path / "home", "--http", f"127.0.0.1:{port}")

    assert str(port) in line


def test_a_session_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        line = refusal(tmp_path / "home", "--session-listen", f"127.0.0.1:{port}")

    assert str(port) in line


def test_a_file_for_a_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("not a folder")

    assert str(home) in refusal(home)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_home_that_cannot_be_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o000)

    assert str(home) in refusal(home)


def test_a_second_daemon_on_one_home(running: PeerProcess) -> None:
    line = refusal(running.home)

    assert str(running.home) in line
    assert running.view("status")["peer_id"] == running.peer_id, "the first one goes on"


def test_a_join_string_of_another_swarm_for_a_used_home(tmp_path: Path, running: PeerProcess, stranger: PeerProcess) -> None:
    # given a home that has been in one swarm
    with daemons(tmp_path) as made:
        used = made.new("used")
        used.start("--join", running.join)
        assert used.ready
        assert used.terminate() == 0

    # when it is started with the join string of another
    line = refusal(used.home, "--join", stranger.join)

    # then it says so
    assert "swarm" in line
    assert "--home" in line


def test_a_plain_address_without_a_token(tmp_path: Path, running: PeerProcess) -> None:
    address = next(address for address in running.ready["addresses"] if "/p2p/" in address)

    line = refusal(tmp_path / "home", "--join", address)

    assert "--token-file" in line
