"""A script has its run saved, and reads the saved state into a model that never trained."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from daemon_kit import daemons
from torch import nn

import ciuic_p2p as ciuic
from ciuic_p2p.errors import LayoutMismatch, LocalError

INNER_STEPS = 2


def model_of(seed: int, width: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2).to(torch.float32))


def train(home: Path, model: nn.Module, epochs: int) -> int:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(5)
    with ciuic.join("toy", model, optimizer, sync=ciuic.DiLoCo(inner_steps=INNER_STEPS), home=home) as run:
        while run.epoch < epochs:
            optimizer.zero_grad()
            loss = model(torch.randn(16, 4)).square().mean()
            loss.backward()
            optimizer.step()
            run.step(samples=16, loss=loss.item())
        return run.epoch


def test_a_saved_state_is_read_into_a_fresh_model(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        peer = made.started("us")
        _ = peer.ready
        trained = model_of(1)
        epoch = train(peer.home, trained, epochs=3)

        client = ciuic.Client(peer.home)
        row = client.save_checkpoint("toy")
        assert (row["run"], row["epoch"], row["complete"]) == ("toy", epoch, True)

        for fresh in (model_of(2), torch.compile(model_of(3)), model_of(4).to(torch.bfloat16)):
            assert client.load_checkpoint("toy", fresh) == epoch
            pairs = zip(fresh.state_dict().values(), trained.state_dict().values(), strict=True)
            assert all(torch.equal(one, other.to(one.dtype)) for one, other in pairs if one.is_floating_point())

        wrong = model_of(2, width=9)
        before = {name: tensor.clone() for name, tensor in wrong.state_dict().items()}
        with pytest.raises(LayoutMismatch, match=r"tensor 0\.weight of the snapshot is"):
            client.load_checkpoint("toy", wrong)
        assert all(torch.equal(before[name], tensor) for name, tensor in wrong.state_dict().items())
        with pytest.raises(LocalError, match="there is no snapshot of 'toy' of epoch 99"):
            client.load_checkpoint("toy", model_of(2), epoch=99)
        with pytest.raises(LocalError, match="there is no run 'other'"):
            asyncio.run(client.save_checkpoint_async("other"))
