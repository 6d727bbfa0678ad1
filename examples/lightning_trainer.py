"""A module that Lightning trains together with others. Start a daemon first: ciuic-peer start

python examples/lightning_trainer.py --epochs 20
"""

import argparse
import json
import os

import pytorch_lightning as lightning
import torch
from pytorch_lightning.loggers import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ciuic_p2p as ciuic
from ciuic_p2p.integrations.lightning import CiuicCallback


class Largest(lightning.LightningModule):
    """Which of eight numbers is the largest?"""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 8))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Print(Logger):
    name = version = log_hyperparams = None

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        print(json.dumps(metrics), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="lightning", help="the run's name")
    parser.add_argument("--epochs", type=int, default=20, help="until the run has taken so many outer steps")
    parser.add_argument("--inner-steps", type=int, default=25)
    options = parser.parse_args()

    numbers = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(int.from_bytes(os.urandom(4)))  # each peer shuffles otherwise
    loader = DataLoader(TensorDataset(numbers, numbers.argmax(1)), batch_size=32, shuffle=True)
    part = CiuicCallback(options.run, ciuic.DiLoCo(inner_steps=options.inner_steps), until_epoch=options.epochs)
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    steps = {"accumulate_grad_batches": 2, "gradient_clip_val": 1.0, "precision": "bf16-mixed"}
    lightning.Trainer(max_epochs=-1, callbacks=[part], logger=Print(), **steps, **quiet).fit(Largest(), loader)


if __name__ == "__main__":
    main()
