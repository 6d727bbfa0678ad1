"""The three lines in a training script of 30. Start a daemon first (ciuic-peer start), then: python examples/minimal.py"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ciuic_p2p as ciuic

torch.manual_seed(0)
points = torch.rand(4096, 2) * 2 - 1
dataset = TensorDataset(points, (points.norm(dim=1) < 0.8).float())  # inside a circle or outside?

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with ciuic.join("circle", model, optimizer, sync=ciuic.DiLoCo(inner_steps=25)) as run:
    while run.epoch < 20:
        for positions, inside in run.shard(dataset, batch_size=32):
            loss = nn.functional.binary_cross_entropy_with_logits(model(positions), inside)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step(samples=len(positions), loss=loss.detach()):
                print(f"epoch {run.epoch}: loss {run.metrics()['loss']:.3f}, with {', '.join(run.peers)}")

with torch.no_grad():
    right = ((model(points) > 0) == (dataset.tensors[1] > 0.5)).float().mean()
print(f"{right:.1%} of the points are on the right side")
