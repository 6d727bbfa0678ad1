"""A plain PyTorch loop with gradient accumulation, clipping and bfloat16 autocast. Start a daemon first: ciuic-peer start

python examples/plain_loop.py --epochs 20
"""

import argparse
import json
import os

import torch
from torch import nn

import ciuic_p2p as ciuic


def draw(count: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in the plane and the spiral arm that each lies on."""
    arm, distance = torch.randint(3, (count,), generator=rng), torch.rand(count, generator=rng)
    angle = 2.1 * arm + 4 * distance + 0.2 * torch.randn(count, generator=rng)
    return torch.stack([distance * angle.cos(), distance * angle.sin()], 1), arm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="spiral", help="the run's name")
    parser.add_argument("--epochs", type=int, default=20, help="until the run has taken so many outer steps")
    parser.add_argument("--inner-steps", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=2, help="batches for each step of the optimizer")
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = torch.Generator().manual_seed(int.from_bytes(os.urandom(4)))  # each peer draws samples of its own
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with ciuic.join(options.run, model, optimizer, sync=ciuic.DiLoCo(inner_steps=options.inner_steps)) as run:
        while run.epoch < options.epochs:
            total = 0.0
            for _ in range(options.accumulate):
                points, arms = (part.to(device) for part in draw(options.batch_size, rng))
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(points), arms) / options.accumulate
                loss.backward()
                total += loss.detach()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if run.step(samples=options.batch_size * options.accumulate, loss=total):
                print(json.dumps(run.metrics()), flush=True)


if __name__ == "__main__":
    main()
