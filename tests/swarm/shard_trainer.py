"""A trainer that writes down which samples went into which of its contributions, and what became of them.

    python tests/swarm/shard_trainer.py --home DIR --samples 400 --batch 4 --inner-steps 5 --step-s 0.01 < orders

It says one JSON object a line: `sent` with the samples of a contribution before it is handed over, `settled` afterwards. It
leaves, after its next contribution, once its standard input ends.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ciuic_p2p as ciuic
from ciuic_p2p.data import Pipeline, Source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=0, help="of a dataset in memory")
    parser.add_argument("--url", default="", help="of files of records instead, which say their `number`")
    parser.add_argument("--stream", action="store_true", help="by a pipeline without end, of files whose `text` is a number")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--inner-steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    enough = threading.Event()
    threading.Thread(target=wait_for_end_of_orders, args=(enough,), daemon=True).start()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sync = ciuic.DiLoCo(inner_steps=options.inner_steps)
    with ciuic.join("shard", model, optimizer, sync=sync, home=options.home) as run:
        say(event="joined", epoch=run.epoch)
        train(run, options, enough)


def wait_for_end_of_orders(enough: threading.Event) -> None:
    while os.read(0, 1024):  # not by sys.stdin, whose lock a forked process of the DataLoader would find taken
        pass
    enough.set()


def train(run: ciuic.Run, options: argparse.Namespace, enough: threading.Event) -> None:
    loader = loader_of(run, options)
    window: list[int] = []
    steps, epoch = 0, run.epoch
    while True:
        for found in loader:
            batch = numbers_in(found)
            if run.epoch != epoch:  # what was held was used up, and handed over between two batches
                say(event="sent", samples=window)
                settle(run)
                window, steps, epoch = [], 0, run.epoch
            window += batch.tolist()
            time.sleep(options.step_s)
            steps += 1
            if steps == options.inner_steps:
                say(event="sent", samples=window)
            state_hash = run.state_hash
            if run.step(samples=len(batch)):
                settle(run)
                window, steps = [], 0
                if enough.is_set():
                    return
            elif run.state_hash != state_hash:
                say(event="given_up")
                window, steps = [], 0
            epoch = run.epoch


def loader_of(run: ciuic.Run, options: argparse.Namespace) -> Iterable[Any]:
    if options.stream:
        return run.shard(Pipeline([Source(url=options.url)], passes=None), options.batch)
    dataset = options.url or TensorDataset(torch.arange(options.samples))
    return run.shard(dataset, options.batch, num_workers=options.workers)


def numbers_in(found: Any) -> torch.Tensor:
    """Of a batch in memory, of records, or of texts."""
    if isinstance(found, dict):
        return found["number"]
    return found[0] if isinstance(found[0], torch.Tensor) else torch.tensor([int(text) for text in found])


def settle(run: ciuic.Run) -> None:
    say(event="settled", epoch=run.epoch, counted=run.metrics()["counted"])


def say(**fact: object) -> None:
    print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    main()
