"""The command as a user meets it: exit codes, one line for what went wrong, the daemon's JSON unchanged, tables."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ciuic_p2p.cli import tables
from ciuic_p2p.cli.quantities import bytes_from, seconds_from
from ciuic_p2p.config import child_environment, socket_path
from ciuic_p2p.errors import ConfigError, LocalError
from ciuic_p2p.local.protocol import Attach, Position, Progress, Ready
from ciuic_p2p.local.server import LocalServer
from ciuic_p2p.local.trainer import Trainer

VIEWS: dict[str, Any] = {
    "status": {
        "peer_id": "12D3KooWus",
        "name": "node-us",
        "region": "us",
        "swarm": "5f3a",
        "bytes_sent": 1_234_567,
        "bytes_received": 5,
        "forwarding": {"is_on": True, "splices": 3, "carried_bytes": 2_000_000, "refused": 1},
        "store": {},
        "runs": [
            {
                "run": "mnist",
                "epoch": 7,
                "training": True,
                "participating": False,
                "samples_per_s": 81.25,
                "state_hash": "ab" * 32,
                "last_round": {"seconds": 0.5},
            }
        ],
    },
    "peers": [
        {
            "peer_id": "12D3KooWeu",
            "name": "[red]eu",
            "region": "eu",
            "alive": True,
            "training": True,
            "participating": False,
            "rtt_ms": None,
            "version": "0.1.0",
        }
    ],
    "links": [
        {"from": "node-us", "to": "node-eu", "rtt_ms": 90.44, "goodput_mbps": 93.1, "path": "via [b]as", "why": "as forwards"}
    ],
    "rounds": [
        {
            "run": "mnist",
            "epoch": 7,
            "members": ["node-us", "node-eu"],
            "plan": "butterfly",
            "codec": "int4",
            "reason": "auto: [b]int4",
            "seconds": 1.2,
            "predicted_s": None,
            "model_error": 1.07,
            "topology": "butterfly",
            "bytes_sent": 10,
            "bytes_received": 10,
            "lost": [],
            "repaired": [],
            "state_hash": "ab" * 32,
        }
    ],
    "plan": {
        "size_bytes": 500_000_000,
        "codec": "int4",
        "encoded_bytes": 64_453_160,
        "topology": "hierarchical",
        "predicted_s": 4.25,
        "transfer_s": 4.0,
        "patience_s": 10.6,
        "reason": "auto: [b]int4; hierarchical is 2.52 times as quick as butterfly",
        "stages": ["within [us] 2 send to 2 carriers", "averages come back the same way"],
        "regions": [{"region": "us", "share": 0.5, "peers": [{"name": "node-us", "owns": 0.25, "carries": 0.5}]}],
        "alternatives": [
            {"topology": "hierarchical", "predicted_s": 4.25, "bound_by": "the cable", "chosen": True, "barred": ""},
            {"topology": "ring", "predicted_s": 9.0, "bound_by": "it", "chosen": False, "barred": "int4 anew"},
        ],
        "inner_steps": {"steps": 34, "step_s": 0.5, "round_share": 0.25, "advice": "DiLoCo(inner_steps=34)"},
    },
}


class FixedAnswers:
    """The daemon's side of the socket, with fixed answers."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()

    async def attach(self, trainer: Trainer, attach: Attach) -> None:
        raise LocalError("there is no run here")

    async def progress(self, trainer: Trainer, progress: Progress) -> None: ...

    async def ready(self, trainer: Trainer, ready: Ready) -> None: ...

    async def left(self, trainer: Trainer) -> None: ...

    async def position(self, trainer: Trainer) -> Position:
        raise LocalError("there is no run here")

    async def view(self, what: str, options: dict[str, Any]) -> Any:
        if what == "plan" and options != {"size_bytes": 500_000_000, "step_s": 0.08}:
            raise LocalError(f"no plan for {options}", "ask for another")
        return {"join": "ciuic1abc"} if what == "invite" else VIEWS[what]

    async def stop(self) -> None:
        self.stopping.set()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    listening = threading.Event()
    ending: list[Any] = []

    async def serve() -> None:
        answers = FixedAnswers()
        async with LocalServer(socket_path(tmp_path), answers):
            loop = asyncio.get_running_loop()
            ending.append(lambda: loop.call_soon_threadsafe(answers.stopping.set))
            listening.set()
            await answers.stopping.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert listening.wait(10)
    yield tmp_path
    if thread.is_alive():
        ending[0]()
    thread.join(10)
    assert not thread.is_alive()


def peer(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ciuic_p2p", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=child_environment(**environment))


@pytest.mark.parametrize("what", ["status", "peers", "links", "rounds"])
def test_json_is_the_daemons_answer_and_nothing_else(home: Path, what: str) -> None:
    result = peer(what, "--json", "--home", str(home))
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == VIEWS[what]


def test_the_home_is_found_by_the_environment_and_people_get_a_table(home: Path) -> None:
    result = peer("links", CIUIC_HOME=str(home))
    assert result.returncode == 0
    assert "90.4" in result.stdout


def test_plan_asks_for_bytes_and_seconds(home: Path) -> None:
    question = ("plan", "--size", "0.5GB", "--step-time", "80ms", "--home", str(home))
    assert json.loads(peer(*question, "--json").stdout) == VIEWS["plan"]
    assert "node-us" in peer(*question).stdout
    refused = peer("plan", "--size", "1kB", "--home", str(home))
    assert (refused.returncode, refused.stderr) == (1, "ciuic-peer: no plan for {'size_bytes': 1000}; ask for another\n")


@pytest.mark.parametrize(("text", "count"), [("500MB", 500_000_000), ("1.5 GB", 1_500_000_000), ("1KiB", 1024), ("7", 7)])
def test_sizes_are_read_with_their_units(text: str, count: int) -> None:
    assert bytes_from(text) == count


@pytest.mark.parametrize(("text", "seconds"), [("0.5s", 0.5), ("80ms", 0.08), ("2min", 120.0), ("3", 3.0)])
def test_times_are_read_with_their_units(text: str, seconds: float) -> None:
    assert seconds_from(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "MB", "5XB", "-5MB", "1e9", "nan", "9" * 400, "5 0MB"])
def test_what_is_no_quantity_is_refused_with_an_example(text: str) -> None:
    for read in (bytes_from, seconds_from):
        with pytest.raises(ConfigError, match="such as"):
            read(text)


def test_invite_prints_the_join_string_alone(home: Path) -> None:
    assert peer("invite", "--home", str(home)).stdout == "ciuic1abc\n"


def test_stop_returns_when_the_daemon_is_gone(home: Path) -> None:
    result = peer("stop", "--home", str(home))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert peer("status", "--home", str(home)).returncode == 1


def test_without_a_daemon_one_line_names_the_remedy(tmp_path: Path) -> None:
    result = peer("status", "--home", str(tmp_path))
    assert result.returncode == 1
    assert result.stdout == ""
    assert (
        result.stderr == f"ciuic-peer: no daemon answers at {tmp_path}; start one with `ciuic-peer start --home {tmp_path}`\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("start", "--http", "nowhere"),
        ("start", "--profile", "/nonexistent"),
        ("lab", "up", "/nonexistent"),
        ("lab", "stats", "--name", "none"),
        ("plan", "--size", "much"),
        ("plan", "--size", "5MB", "--step-time", "soon"),
    ],
)
def test_what_cannot_be_done_is_exit_1_and_one_line(arguments: tuple[str, ...]) -> None:
    result = peer(*arguments)
    assert result.returncode == 1
    assert result.stderr.startswith("ciuic-peer: ")
    assert result.stderr.count("\n") == 1
    assert "; " in result.stderr


def test_a_traceback_is_shown_only_when_asked_for(tmp_path: Path) -> None:
    assert "Traceback" in peer("status", "--home", str(tmp_path), CIUIC_DEBUG="1").stderr
    assert "Traceback" not in peer("status", "--home", str(tmp_path), CIUIC_DEBUG="0").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("plan",),
        ("status", "--bogus"),
        ("start", "--name"),
        ("lab", "run", "node-us"),
        ("put", "a", "b", "--erasure", "3"),
    ],
)
def test_wrong_usage_is_exit_2(arguments: tuple[str, ...]) -> None:
    assert peer(*arguments).returncode == 2


def test_help_imports_nothing_heavy() -> None:
    script = "import sys, ciuic_p2p.cli; print([m for m in ('torch', 'hivemind', 'numpy', 'starlette') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
    assert peer("--help").returncode == 0


@pytest.mark.parametrize("what", ["status", "peers", "links", "rounds", "plan"])
def test_tables_show_every_answer_and_take_no_markup_from_peers(what: str) -> None:
    console = Console(width=200, record=True, quiet=False, file=sys.stderr)
    console.print(getattr(tables, f"draw_{what}")(VIEWS[what]))
    shows = {
        "status": ["1.2 MB", "2.0 MB, 3 connections now, 1 refused", "mnist", "0.50 s"],
        "peers": ["[red]eu", "–"],
        "links": ["via [b]as", "as forwards"],
        "rounds": ["node-us, node-eu", "auto: [b]int4", "1.07"],
        "plan": ["auto: [b]int4", "within [us] 2 send", "50.0%", "DiLoCo(inner_steps=34)", "chosen", "int4 anew"],
    }
    text = console.export_text()
    assert all(part in text for part in shows[what])
