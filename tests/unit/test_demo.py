"""The demonstration's judgement and its hold on processes; its course is shown by running it (`make demo`)."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from ciuic_p2p.lab.demo.peer import Tally
from ciuic_p2p.lab.demo.processes import Child
from ciuic_p2p.lab.demo.scenario import Scenario, plain_data_parallel_bytes, shipped_scenario
from ciuic_p2p.lab.demo.show import run_demo
from ciuic_p2p.lab.demo.stage import LoopbackStage
from ciuic_p2p.lab.demo.verdict import PeerResult, Recovery, differing_epochs, draw_results, shortfalls, tell_recovery

GOOD = PeerResult(
    name="node-us", epoch=20, samples=16_000, accuracy=0.97, bytes_sent=16_000_000, plain_bytes=3.2e9, state_hash="ab" * 32
)

BACK = Recovery(killed="node-as", epoch=6, others_s=2.04, state_s=5, back_s=9)


def test_equal_replicas_above_the_accuracy_fall_short_of_nothing() -> None:
    assert shortfalls([GOOD, replace(GOOD, name="node-eu", samples=9)], BACK, 0.95) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"state_hash": "cd" * 32}, "replicas differ: node-us abababababab at epoch 20, node-eu cdcdcdcdcdcd"),
        ({"state_hash": None}, "replicas differ"),
        ({"epoch": 19}, "replicas differ"),
        ({"accuracy": 0.949}, "node-eu's accuracy is 94.9%, under 95.0%"),
        ({"accuracy": None}, "node-eu's accuracy"),
        ({"accuracy": float("nan")}, "node-eu's accuracy"),
    ],
)
def test_each_way_to_fall_short_is_named(change: dict[str, object], says: str) -> None:
    found = shortfalls([GOOD, replace(GOOD, name="node-eu", **change)], BACK, 0.95)
    assert len(found) == 1
    assert says in found[0]


def test_peers_that_agree_on_having_no_state_are_not_equal_replicas() -> None:
    assert shortfalls([replace(GOOD, state_hash=None)] * 2, BACK, 0.95)


def test_a_peer_that_never_took_part_again_is_named() -> None:
    recovery = replace(BACK, back_s=None)
    assert shortfalls([GOOD], recovery, 0.95) == ["node-as did not take part again before the end"]
    assert "never took part" in tell_recovery(recovery)


def test_epochs_with_two_states_are_found() -> None:
    assert differing_epochs([{1: "a", 2: "b"}, {2: "b", 3: "c"}, {3: "d"}]) == [3]


def test_the_table_fits_a_terminal_and_shows_what_was_saved() -> None:
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  closed with the test's process
    console.print(draw_results([GOOD]))
    console.print(tell_recovery(BACK), soft_wrap=True)
    text = console.export_text()
    in_table = ("node-us", "16,000", "97.0%", "16.0 MB", "3.2 GB", "200×", "abababababab")
    for part in (*in_table, "2.0 s later", "after 5.0 s", "after 9.0 s"):
        assert part in text


def test_plain_data_parallel_sends_twice_the_others_share_of_the_gradients() -> None:
    assert plain_data_parallel_bytes(parameters=300, steps=10, peers=3) == 4 * 300 * 10 * 4 / 3


def test_the_shipped_scenario_is_sound_and_kills_one_that_joined() -> None:
    scenario = shipped_scenario()
    assert scenario.peers == ("node-us", "node-eu", "node-as")
    assert scenario.survivors == ("node-us", "node-eu")
    with pytest.raises(ValueError, match="one that joined"):
        Scenario(topology=scenario.topology, killed="node-us")
    with pytest.raises(ValueError, match="before the end"):
        Scenario(topology=scenario.topology, killed_at_epoch=38)


def test_a_tally_adds_up_over_a_peers_lives() -> None:
    tally = Tally()
    tally.begin_daemon()
    tally.begin_trainer()
    tally.take_status({"bytes_sent": 100})
    tally.take_round({**round_of(6), "samples": 50, "accuracy": 0.9, "parameters": 7})
    tally.begin_daemon()
    tally.begin_trainer()
    tally.take_status({"bytes_sent": 30})
    tally.take_round({**round_of(9), "samples": 20, "counted": False})
    assert (tally.bytes_sent, tally.samples, tally.epoch, tally.accuracy, tally.parameters) == (130, 70, 9, 0.9, 7)
    assert (tally.counted_epoch, tally.hashes) == (6, {6: "hash 6", 9: "hash 9"})


def round_of(epoch: int) -> dict[str, object]:
    return {"epoch": epoch, "counted": True, "state_hash": f"hash {epoch}"}


def test_on_loopback_every_peer_keeps_a_port_of_its_own_and_a_share_of_its_up_link() -> None:
    stage = LoopbackStage("as asked for", shipped_scenario().topology)
    ports = [int(stage.listen(name).rpartition("/")[2]) for name in ("node-us", "node-eu", "node-as")]
    assert len({*ports, *(port + 1 for port in ports)}) == 6
    assert stage.settings() == {"CIUIC_LANE_MBPS": "25.0"}
    assert "Only rates are emulated: each lane sends at most 25 Mbit/s" in stage.sentence


def start(tmp_path: Path, script: str) -> Child:
    return Child("a child", [sys.executable, "-u", "-c", script], tmp_path / "child.log", dict(os.environ))


def read_all(child: Child) -> list[dict[str, object]]:
    found = []
    while child.exit_code is None:
        found += child.read_objects()
    return found + child.read_objects()


def test_only_whole_objects_are_read_and_each_once(tmp_path: Path) -> None:
    child = start(tmp_path, 'print(\'{"epoch": 1}\\nhello\\n[3]\\n{"epoch": 2}\\n{"epoch"\', end=\'\')')
    assert read_all(child) == [{"epoch": 1}, {"epoch": 2}]


def test_the_last_words_are_what_a_failure_shows(tmp_path: Path) -> None:
    child = start(tmp_path, "import sys; sys.stderr.write('first\\nport 80 is taken\\n\\n'); sys.exit(3)")
    read_all(child)
    assert (child.exit_code, child.last_words()) == (3, "port 80 is taken")


def test_a_kill_takes_the_childs_children_too(tmp_path: Path) -> None:
    script = """
import json, subprocess, sys
grandchild = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(json.dumps({"pid": grandchild.pid}))
grandchild.wait()
"""
    child = start(tmp_path, script)
    found: list[dict[str, int]] = []
    while not found:
        found = child.read_objects()
    grandchild = psutil.Process(found[0]["pid"])
    child.kill()
    assert child.exit_code == -signal.SIGKILL
    grandchild.wait(10)
    assert not grandchild.is_running()


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = start(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}'); signal.pause()")
    while not child.read_objects():
        pass
    assert child.end(patience_s=0.2) == -signal.SIGKILL


def test_a_folder_in_use_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ciuic_p2p.errors import ConfigError

    monkeypatch.setattr("ciuic_p2p.lab.demo.show.training_script", lambda: tmp_path)
    (tmp_path / "something").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        run_demo(tmp_path, keep=False, loopback=True)
