"""A loop with Accelerate: `ciuic.join` takes what `accelerator.prepare` gives. Start a daemon first: ciuic-peer start

python examples/accelerate_loop.py --epochs 20
"""

import argparse
import json
import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ciuic_p2p as ciuic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="accelerate", help="the run's name")
    parser.add_argument("--epochs", type=int, default=20, help="until the run has taken so many outer steps")
    parser.add_argument("--inner-steps", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    numbers = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))  # which of eight is the largest?
    torch.manual_seed(int.from_bytes(os.urandom(4)))  # each peer shuffles otherwise
    loader = DataLoader(TensorDataset(numbers, numbers.argmax(1)), options.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    sync = ciuic.DiLoCo(inner_steps=options.inner_steps)
    with ciuic.join(options.run, accelerator.unwrap_model(model), optimizer, sync=sync) as run:
        samples = 0
        while run.epoch < options.epochs:
            for numbers, largest in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(numbers), largest)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                samples += len(numbers)
                if not accelerator.sync_gradients:
                    continue
                if run.step(samples=samples, loss=loss):  # the optimizer has stepped
                    print(json.dumps(run.metrics()), flush=True)
                samples = 0
                if run.epoch >= options.epochs:
                    break


if __name__ == "__main__":
    main()
