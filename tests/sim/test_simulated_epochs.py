"""The simulator end to end, small: the planner's plan, real round machines, a network that their frames share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ciuic_p2p.cli.app import app
from ciuic_p2p.core.messages import Plan
from ciuic_p2p.errors import RoundFailed
from ciuic_p2p.lab.topology import find_topology
from ciuic_p2p.simulator.epochs import Epochs
from ciuic_p2p.simulator.planning import Leader, Model
from ciuic_p2p.simulator.simulation import simulate
from ciuic_p2p.simulator.world import Lines, even_world, world_of
from ciuic_p2p.testing.invariants import require_invariants
from ciuic_p2p.testing.sim import SimSwarm
from ciuic_p2p.testing.ways import in_a_ring, in_groups

MODEL = Model.of_size(8e6, "float32")


def in_pairs(plan: Plan) -> Plan:
    return in_groups(plan, 2)


def as_planned(plan: Plan) -> Plan:
    return plan


@pytest.mark.parametrize("ways", [as_planned, in_pairs, in_a_ring], ids=["planned", "pairs", "ring"])
def test_every_part_holds_everyones_contribution_and_no_line_carries_more_than_it_can(ways) -> None:
    # given six peers with lines of 100 Mbit/s
    world = even_world(6, 3, Lines(up_mbps=100, down_mbps=100, rtt_ms=40))
    leader = Leader(world, MODEL)
    epochs = Epochs(world, MODEL, lambda epoch: ways(leader.plan(epoch)))

    # when three epochs are over
    reports = [epochs.run_epoch(epoch) for epoch in range(3)]

    # then each part of each has all contributions; up its tree and down again it crossed five edges each way
    for report in reports:
        assert report.contributions == 6
        parts = report.frames // 10
        assert report.frames == 10 * parts
        payload_bytes = 10 * 8e6
        assert payload_bytes <= report.ocean_bytes.sum() <= payload_bytes * 1.02
        # someone sends at least five sixths of the tensor twice, which takes 1.07 s
        assert report.round_s >= 2 * (5 / 6) * 8e6 / 12.5e6
        assert report.epoch_s >= report.round_s


def test_a_butterfly_takes_what_its_lines_allow_and_the_delays() -> None:
    found = simulate(even_world(6, 3, Lines(rtt_ms=40)), MODEL, 2)
    assert found.epochs[0].topology == "butterfly"
    least_s = 2 * (5 / 6) * 8e6 / 12.5e6
    assert least_s <= found.round_s <= least_s + 0.2
    assert found.predicted_s == pytest.approx(found.round_s, rel=0.15)


def test_over_narrow_cables_the_planner_goes_by_regions_and_each_ocean_carries_its_share_once() -> None:
    # given the lab's three regions with cables of 50 and 100 Mbit/s
    world, model = world_of(find_topology("ocean-limited")), Model.of_size(50e6, "float32")
    found = simulate(world, model, 1)

    # then sums of a region cross, not contributions: over each pair of regions less than a butterfly's
    assert found.epochs[0].topology == "hierarchical"
    assert found.epochs[0].contributions == 6
    oceans = found.ocean_bytes
    for a in range(3):
        for b in range(3):
            if a != b:
                seconds = oceans[a, b] / (world.cable_mbps[a, b] * 125_000)
                assert seconds <= found.round_s
    assert oceans[0, 1] + oceans[0, 2] < 2 * 50e6
    assert np.allclose(oceans, oceans.T, rtol=0.02)


def test_with_ticks_and_larger_parts_many_peers_take_about_what_few_exact_ones_do() -> None:
    few, many = (simulate(even_world(peers, 4, Lines()), Model.of_size(40e6, "int4"), 1) for peers in (32, 33))
    assert many.epochs[0].contributions == 33
    assert many.round_s == pytest.approx(few.round_s, rel=0.05)


def test_a_plan_without_patience_for_its_lines_is_a_round_that_fails_and_says_so() -> None:
    world = even_world(4, 2, Lines(up_mbps=1, down_mbps=1))
    leader = Leader(world, MODEL)

    def impatient(epoch: int) -> Plan:
        import dataclasses

        return dataclasses.replace(leader.plan(epoch), patience_s=0.01)

    with pytest.raises(RoundFailed, match="epoch 0"):
        Epochs(world, MODEL, impatient).run_epoch(0)


def test_the_run_machines_go_on_over_lines_that_they_share() -> None:
    # given four whole run machines on lines so slow that a round takes a while
    world = even_world(4, 2, Lines(up_mbps=1, down_mbps=1, rtt_ms=40))
    swarm = SimSwarm(1, count=60_000, world=world)
    for peer in world.peers:
        swarm.add(peer)
    swarm.run_until(60)

    # then rounds follow each other no faster than 1.5 tensors of 240 kB pass a line of 1 Mbit/s
    peers = require_invariants(swarm)
    epochs = [peer.state.epoch for peer in peers if peer.state is not None]
    assert len(epochs) == 4
    assert 8 <= min(epochs) <= max(epochs) <= 60 / (1.5 * 240e3 / 125e3) + 1


# -- the command -------------------------------------------------------------------------------------------------------


def run(*words: str):
    return CliRunner().invoke(app, ["simulate", *words])


def test_the_command_prints_json_with_what_was_asked_for() -> None:
    result = run("--peers", "4,8", "--regions", "2", "--model-size", "4MB", "--epochs", "2", "--cable-mbps", "50", "--json")
    assert result.exit_code == 0, result.output
    few, many = json.loads(result.stdout)["simulations"]
    assert (few["peers"], many["peers"], many["regions"]) == (4, 8, 2)
    assert many["rounds_to_mix"] == 1
    assert many["gossip_rounds_to_mix"] >= 2
    assert [epoch["contributions"] for epoch in many["epochs"]] == [8, 8]
    assert {(ocean["from"], ocean["to"]) for ocean in many["ocean_bytes"]} == {("r0", "r1"), ("r1", "r0")}
    # at least the sums of each region for what the other one owns, and its results
    assert sum(ocean["bytes"] for ocean in many["ocean_bytes"]) >= 2 * many["encoded_bytes"]
    assert {one["topology"] for one in many["alternatives"]} >= {"butterfly", "star", "hierarchical"}


def test_the_same_seed_prints_the_same() -> None:
    words = ("--peers", "5", "--model-size", "2MB", "--epochs", "1", "--json", "--seed")
    assert run(*words, "7").stdout == run(*words, "7").stdout != run(*words, "8").stdout


def test_people_get_tables_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "growth.png"
    result = run("--peers", "12", "--model-size", "1MB", "--epochs", "1", "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert "butterfly" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [line.split()[0] for line in result.stdout.splitlines()[2:4]] == ["10", "12"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--peers", "0"), "name 1 to 4096"),
        (("--peers", "many"), "write it as 1000, or 10,100,1000"),
        (("--peers", "5", "--topology", "home-links"), "leave out --peers"),
        (("--topology", "nowhere"), "check the path"),
        (("--regions", "0"), "name 1 or more"),
        (("--model-size", "2XB"), "such as 500MB, 2GB"),
        (("--model-size", "0"), "such as 500MB, 2GB"),
        (("--model-size", "9999TB"), "name a smaller model"),
        (("--codec", "mp3"), "choose one of"),
        (("--up-mbps", "-1"), "0 for unlimited"),
        (("--up-mbps", "nan"), "0 for unlimited"),
        (("--cpu-mbps", "-1"), "0 for unlimited"),
        (("--rtt-ms", "-5"), "0 to 60000 milliseconds"),
        (("--epochs", "0"), "give 1 or more"),
        (("--plot", "growth.jpg"), "ends in .png"),
        (("--plot", "/nowhere/growth.png"), "name another file with --plot"),
    ],
)
def test_what_cannot_be_simulated_is_one_line_with_the_remedy(words: tuple[str, ...], says: str) -> None:
    result = run(*words)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("ciuic-peer: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_without_matplotlib_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name, *rest))
    result = run("--plot", str(tmp_path / "growth.png"))
    assert result.exit_code == 1
    assert "pip install 'ciuic-p2p[plot]'" in result.stderr
