"""A small GPT-2 that `transformers.Trainer` trains together with others. Start a daemon first: ciuic-peer start

python examples/huggingface_trainer.py --epochs 20
"""

import argparse
import json
import os
import tempfile
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import ciuic_p2p as ciuic
from ciuic_p2p.integrations.huggingface import CiuicCallback

CONTEXT = 64


def make_dataset() -> list[dict[str, torch.Tensor]]:
    """Python's own documentation, byte by byte."""
    text = torch.frombuffer(bytearray("".join(topics.values()).encode()), dtype=torch.uint8).long()
    return [{"input_ids": row, "labels": row} for row in text.split(CONTEXT)[:-1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="huggingface", help="the run's name")
    parser.add_argument("--epochs", type=int, default=20, help="until the run has taken so many outer steps")
    parser.add_argument("--inner-steps", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()

    config = GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=options.batch_size, gradient_accumulation_steps=2, learning_rate=2e-3,
            max_steps=1_000_000, lr_scheduler_type="constant", save_strategy="no", report_to="none",
            disable_tqdm=True,  # then it prints its logs, the run's metrics among them
            data_seed=int.from_bytes(os.urandom(4)),  # each peer has an order of its own
        )  # fmt: skip
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=make_dataset())
        sync = ciuic.DiLoCo(inner_steps=options.inner_steps)
        with CiuicCallback(options.run, sync, until_epoch=options.epochs).add_to(trainer) as callback:
            trainer.train()
        print(json.dumps(callback.run.metrics()), flush=True)


if __name__ == "__main__":
    main()
