"""torch.distributed.checkpoint over real daemons: two ranks, each at its own, save sharded; others load in any sharding."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from daemon_kit import PeerProcess, daemons
from object_kit import QUICK, addresses, client
from safetensors.torch import load_file
from sharded_trainer import (
    BROKEN,
    LATER,
    PLAIN,
    PROGRESS,
    SHARDED,
    fingerprint,
    load,
    model_of,
    optimizer_of,
    sharded,
    state_of,
    train,
)
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh

import ciuic_p2p as ciuic
from ciuic_p2p.config import child_environment

SCRIPT = Path(__file__).with_name("sharded_trainer.py")


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    with daemons(tmp_path_factory.mktemp("sharded"), **QUICK) as made:
        yield made.swarm("us", "eu")


@pytest.fixture(scope="module")
def peer(peers: list[PeerProcess]) -> PeerProcess:
    return peers[0]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """This process is a group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def plain_state(peer: PeerProcess) -> dict[str, str]:
    """What was saved from a model that is not sharded."""
    model = model_of(1)
    optimizer = optimizer_of(model)
    train(model, optimizer)
    state = state_of(model, optimizer, PROGRESS)
    dcp.save(state, storage_writer=ciuic.CiuicWriter(f"{PLAIN}/", peer.home))
    return fingerprint(state)


@pytest.fixture(scope="module")
def ranks(
    peers: list[PeerProcess], plain_state: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each rank said of each step of its life, which has ended."""
    meeting = tmp_path_factory.mktemp("meeting") / "file"
    command = [sys.executable, str(SCRIPT), f"--ranks={len(peers)}", f"--meeting={meeting}"]
    environment = child_environment(PYTHONPATH=str(SCRIPT.parents[2]), GLOO_SOCKET_IFNAME="lo")
    started = [
        subprocess.Popen(
            [*command, f"--rank={rank}", f"--home={peer.home}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank, peer in enumerate(peers)
    ]
    said = []
    for process in started:
        out, complained = process.communicate(timeout=100)
        facts = [json.loads(line) for line in out.splitlines()]
        said.append({fact.pop("what"): fact for fact in facts} | {"complained": complained, "status": process.returncode})
    return said


def complaint(raised: pytest.ExceptionInfo[CheckpointException]) -> str:
    return "\n".join(str(error) for error, _ in raised.value.failures.values())


def names_of(contents: bytes) -> list[str]:
    return [row[0] for row in json.loads(contents)["files"]]


def got(peer: PeerProcess, address: str, folder: Path) -> Path:
    client(peer).download_file(address, folder / "got")
    return folder / "got"


def test_what_a_plain_model_saved_is_loaded_sharded(ranks: list[dict[str, Any]], plain_state: dict[str, str]) -> None:
    for rank in ranks:
        assert rank.get("plain") == {"state": plain_state}, rank["complained"]


def test_what_was_saved_sharded_is_loaded_in_any_sharding(peer: PeerProcess, ranks: list[dict[str, Any]]) -> None:
    trained = ranks[0]["trained"]["state"]
    assert len(trained) > 40
    for rank in ranks:
        assert rank["sharded"]["state"] == trained  # by columns, two ranks
    for address in (SHARDED, LATER):
        assert load(address, model_of(5), peer.home) == trained
    assert load(SHARDED, sharded(model_of(6), init_device_mesh("cpu", (1,))), peer.home) == trained


def test_a_save_that_a_rank_does_not_survive_changes_nothing(peer: PeerProcess, ranks: list[dict[str, Any]]) -> None:
    assert ranks[1]["status"] == -9
    assert "alone" in ranks[0], ranks[0]["complained"]
    left = [address for address in addresses(peer) if address.startswith(f"{SHARDED}/")]
    assert len(left) > 1 + len(ranks), "the survivor's file of the save that failed is there, and named by nothing"
    assert load(SHARDED, model_of(5), peer.home) == ranks[0]["trained"]["state"]


def test_a_value_that_is_no_plain_data_is_refused_on_all_ranks(peer: PeerProcess, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        (error,) = rank["refused"]["errors"]
        assert error.startswith("'mine' cannot be saved: a builtins.function is no plain data; leave it out of the state")
    with pytest.raises(CheckpointException, match="there is no checkpoint at ciuic://models/broken, or none that was saved"):
        load(BROKEN, model_of(5), peer.home)


def test_rank_files_are_read_by_others_too(peer: PeerProcess, plain_state: dict[str, str], tmp_path: Path) -> None:
    contents = got(peer, f"{PLAIN}/checkpoint.json", tmp_path).read_bytes()
    (name,) = names_of(contents)
    tensors = load_file(got(peer, f"{PLAIN}/{name}", tmp_path))
    found = {path.removeprefix("."): value for path, value in fingerprint(tensors).items()}
    saved = {path.removeprefix("."): value for path, value in plain_state.items() if path.removeprefix(".") in found}
    assert found == saved
    assert "model.coarse.weight" in found


def test_a_save_replaces_what_was_there(peer: PeerProcess, tmp_path: Path) -> None:
    place = "ciuic://models/again"
    for value in (1.0, 2.0):
        dcp.save({"x": torch.full((3,), value)}, storage_writer=ciuic.CiuicWriter(place, peer.home))
    state = {"x": torch.zeros(3)}
    dcp.load(state, storage_reader=ciuic.CiuicReader(place, peer.home))
    assert state["x"].tolist() == [2.0] * 3
    assert len([address for address in addresses(peer) if address.startswith(place)]) == 2


def test_damage_is_named(peer: PeerProcess, tmp_path: Path) -> None:
    place = "ciuic://models/damaged"
    state = {"x": torch.arange(5)}
    dcp.save(state, storage_writer=ciuic.CiuicWriter(place, peer.home))
    contents = got(peer, f"{place}/checkpoint.json", tmp_path).read_bytes()
    (name,) = names_of(contents)

    altered = bytearray(got(peer, f"{place}/{name}", tmp_path).read_bytes())
    altered[-1] ^= 1
    (tmp_path / "altered").write_bytes(altered)
    client(peer).upload_file(tmp_path / "altered", f"{place}/{name}")
    with pytest.raises(CheckpointException) as raised:
        dcp.load(state, storage_reader=ciuic.CiuicReader(place, peer.home))
    assert complaint(raised) == f"{place}/{name} is not what was saved; load another checkpoint"

    client(peer).remove(f"{place}/{name}")
    with pytest.raises(CheckpointException) as raised:
        dcp.load(state, storage_reader=ciuic.CiuicReader(place, peer.home))
    assert complaint(raised).startswith(f"{place}/{name}, a part of the checkpoint, is not there; load another checkpoint")

    (tmp_path / "junk").write_bytes(b"\x80\x04junk")
    client(peer).upload_file(tmp_path / "junk", f"{place}/checkpoint.json")
    with pytest.raises(CheckpointException, match=f"{place}/checkpoint.json does not describe a checkpoint: it is no UTF-8"):
        dcp.load(state, storage_reader=ciuic.CiuicReader(place, peer.home))
    assert state["x"].tolist() == list(range(5))


def test_what_cannot_be_saved_is_refused_before_anything_is_put(peer: PeerProcess) -> None:
    place = "ciuic://models/refused"
    for state, why in (
        ({"x": torch.eye(3).to_sparse()}, "in torch.sparse_coo, which has no place in a checkpoint"),
        ({"x": torch.zeros(2, dtype=torch.complex128)}, "is torch.complex128 in torch.strided, which has no place"),
        ({"x": torch.zeros(2), "y": {1, 2}}, "'y' cannot be saved: a builtins.set is no plain data"),
    ):
        with pytest.raises(CheckpointException) as raised:
            dcp.save(state, storage_writer=ciuic.CiuicWriter(place, peer.home))
        assert why in complaint(raised)
    assert not [address for address in addresses(peer) if address.startswith(place)]
    for address in ("models/x", "ciuic://models", "ciuic://models/", "ciuic:///x"):
        with pytest.raises(ciuic.LocalError, match="is no place for a checkpoint; write it as ciuic://BUCKET/PREFIX"):
            ciuic.CiuicWriter(address, peer.home)
