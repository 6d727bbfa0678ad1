"""One rank of a sharded training that saves to the peers and loads from them.

    python tests/swarm/sharded_trainer.py --home DIR --rank 0 --ranks 2 --meeting FILE

Says what it holds as JSON lines. At the end rank 1 is killed while it saves.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from blake3 import blake3
from daemon_kit import wait_for
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

import ciuic_p2p as ciuic

PLAIN, SHARDED, BROKEN, LATER = (f"ciuic://models/{name}" for name in ("plain", "sharded", "broken", "later"))
PROGRESS = {"step": 7, "betas": (0.9, 0.999), "best": float("-inf"), "seen": [(0, True), None]}


class Model(nn.Module):
    """With tensors of fewer rows than there are ranks, of several dtypes, and of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.coarse = nn.Linear(4, 7, dtype=torch.bfloat16)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        coarse: torch.Tensor = self.coarse(samples[:, :4].to(torch.bfloat16))
        return self.fine(samples).square().mean() + coarse.float().mean()


def model_of(seed: int) -> Model:
    torch.manual_seed(seed)
    return Model()


def sharded(model: Model, mesh: DeviceMesh, *, by_columns: bool = False) -> Model:
    """by_columns: where they divide evenly, which FSDP wants of all dimensions but the first."""

    def placement(parameter: nn.Parameter) -> Shard:
        last = parameter.ndim - 1
        return Shard(last if by_columns and parameter.shape[last] % mesh.size() == 0 else 0)

    fully_shard(model.coarse, mesh=mesh, shard_placement_fn=placement)
    fully_shard(model, mesh=mesh, shard_placement_fn=placement)
    return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        model(torch.randn(8, 6)).backward()
        optimizer.step()
        optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "progress": progress}


def fingerprint(state: dict[str, Any]) -> dict[str, str]:
    """Of every value in it, whole, by its path."""
    found: dict[str, str] = {}

    def look(path: str, value: Any) -> None:
        if isinstance(value, dict) and path != ".progress":
            for key, each in value.items():
                look(f"{path}.{key}", each)
        elif isinstance(value, list):
            for index, each in enumerate(value):
                look(f"{path}.{index}", each)
        elif isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            bits = whole.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            found[path] = f"{whole.dtype} {list(whole.shape)} {blake3(bits).hexdigest()}"
        else:
            found[path] = repr(value)

    look("", state)
    return found


def load_from_afar(address: str, model: nn.Module, home: Path) -> dict[str, str]:
    """Waits until this daemon has heard of the checkpoint, which was saved at another one."""
    wait_for(lambda: list(ciuic.Client(home).list(f"{address}/checkpoint.json")), f"{address} is known at {home}")
    return load(address, model, home)


def load(address: str, model: nn.Module, home: Path) -> dict[str, str]:
    """What a state in this sharding is after loading."""
    optimizer = optimizer_of(model)
    state = state_of(model, optimizer, dict.fromkeys(PROGRESS))
    dcp.load(state, storage_reader=ciuic.CiuicReader(address, home))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return fingerprint(state_of(model, optimizer, state["progress"]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--meeting", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{options.meeting}", rank=options.rank, world_size=options.ranks)
    home, rank = options.home, options.rank

    def writer(address: str) -> ciuic.CiuicWriter:
        return ciuic.CiuicWriter(address, home)

    mesh = init_device_mesh("cpu", (options.ranks,))
    say(what="plain", state=load_from_afar(PLAIN, sharded(model_of(2), mesh), home))

    model = sharded(model_of(3), mesh)
    optimizer = optimizer_of(model)
    torch.manual_seed(8)  # on all ranks: buffers are not sharded, and of what is the same one rank saves its own
    train(model, optimizer)
    state = state_of(model, optimizer, PROGRESS)
    say(what="trained", state=fingerprint(state))
    dcp.save(state, storage_writer=writer(SHARDED))

    say(what="sharded", state=load_from_afar(SHARDED, sharded(model_of(4), mesh, by_columns=True), home))

    dcp.async_save(state, storage_writer=writer(LATER)).result()

    unsaveable = state | ({"mine": lambda: None} if rank == 1 else {})
    try:
        dcp.save(unsaveable, storage_writer=writer(BROKEN))
    except CheckpointException as error:
        say(what="refused", errors=[str(each) for each, _ in error.failures.values()])

    train(model, optimizer)
    if rank == 1:
        ciuic.CiuicWriter.write_data = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    try:
        dcp.save(state_of(model, optimizer, PROGRESS), storage_writer=writer(SHARDED))
    except RuntimeError as error:
        say(what="alone", error=str(error))


def say(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    main()
