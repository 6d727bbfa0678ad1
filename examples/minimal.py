"""The smallest script that trains together with others. Start a daemon first, with `ciuic-peer start`."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ciuic_p2p as ciuic

EPOCHS = 20

inputs = torch.randn(6000, 4, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(inputs, (inputs.prod(1) > 0).long())  # is the product of the four numbers positive?
model = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

with ciuic.join("minimal", model, optimizer, sync=ciuic.DiLoCo(inner_steps=25)) as run:
    while run.epoch < EPOCHS:
        for points, labels in run.shard(dataset, batch_size=64):
            loss = nn.functional.cross_entropy(model(points), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step(samples=len(points), loss=loss.item()):
                print(f"epoch {run.epoch}: loss {run.metrics()['loss']:.3f}, with {', '.join(run.peers)}", flush=True)
                if run.epoch >= EPOCHS:
                    break
