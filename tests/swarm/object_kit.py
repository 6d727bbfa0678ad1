"""Objects of real daemons for tests: files with random bytes, commands, and what lies in the stores."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from daemon_kit import PeerProcess

from ciuic_p2p import Client
from ciuic_p2p.config import child_environment

MB = 1_000_000

QUICK = {
    "CIUIC_PROBE_PERIOD_S": "0.5",
    "CIUIC_REPAIR_PERIOD_S": "0.5",
    "CIUIC_GONE_AFTER_S": "1",
    "CIUIC_STORE_RESERVE_BYTES": "0",
}
"""Daemons that notice and repair soon, on whatever disk the tests run."""


def make_file(path: Path, size_bytes: int, seed: int = 0) -> Path:
    """No two seeds have a shard in common."""
    path.write_bytes(random.Random(seed).randbytes(size_bytes))
    return path


def client(peer: PeerProcess) -> Client:
    return Client(peer.home)


def addresses(peer: PeerProcess) -> list[str]:
    return [row["address"] for row in client(peer).list()]


def shard_files(peer: PeerProcess) -> dict[str, Path]:
    """What lies in its store, by name."""
    return {path.name: path for path in (peer.home / "store" / "shards").glob("*/*")}


def holds_all(peer: PeerProcess, shards: set[str]) -> bool:
    return shards <= shard_files(peer).keys()


def command(peer: PeerProcess, *words: str) -> subprocess.Popen[str]:
    """`ciuic-peer …` on the home of this peer."""
    return subprocess.Popen(
        [sys.executable, "-m", "ciuic_p2p", *words, "--home", str(peer.home)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, stdout, stderr; waits for its end."""
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err
