"""A small DeepSeek-V3 (latent attention, routed experts) that several peers train from nothing. One process for each peer:

    first$   ciuic-peer start --name node-us --region us      and   python examples/deepseek_lm.py --plot loss.png
    second$  ciuic-peer start --name node-eu --join ciuic1…   and   python examples/deepseek_lm.py
    third$   ciuic-peer start --name node-as --join ciuic1…   and   python examples/deepseek_lm.py

It reads Python's documentation, or --text: a file or ciuic://bucket/key, the same for all, who each make the tokenizer from it.
Prints a JSON line for each round, saves the state on all peers, and writes on from --prompt with what it reads back.
"""

import argparse
import json
import time
from pathlib import Path
from pydoc_data.topics import topics

import fsspec
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import TensorDataset
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

import ciuic_p2p as ciuic

BALANCING_SPEED = 1e-3
"""DeepSeek-V3, arXiv 2412.19437, section 4.2."""


def read_text(where: str | None) -> str:
    if where is None:
        return "\n".join(topics.values())
    with fsspec.open(where, "rt", encoding="utf-8") as file:
        return file.read()


def make_tokenizer(text: str, words: int) -> Tokenizer:
    """The same from the same text, on every peer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    lines = text.splitlines(keepends=True)
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=words, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def make_model(options: argparse.Namespace) -> DeepseekV3ForCausalLM:
    width = options.width
    config = DeepseekV3Config(
        vocab_size=options.words, max_position_embeddings=options.context, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=options.layers, first_k_dense_replace=1, num_attention_heads=4, num_key_value_heads=4,
        q_lora_rank=width // 2, kv_lora_rank=width // 4, qk_nope_head_dim=width // 4, qk_rope_head_dim=width // 8,
        v_head_dim=width // 4, n_routed_experts=options.experts, n_shared_experts=1, num_experts_per_tok=2, n_group=1,
        topk_group=1, moe_intermediate_size=width, num_mtp_layers=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return DeepseekV3ForCausalLM(config)


def balance_experts(model: torch.nn.Module) -> None:
    """After each batch a router makes experts that had much to do less likely. Its bias is a buffer, which peers average."""

    def adjust(router, inputs, output) -> None:
        if router.training:
            load = torch.bincount(output[2].flatten(), minlength=len(router.e_score_correction_bias)).float()
            router.e_score_correction_bias += BALANCING_SPEED * (load.mean() - load).sign()

    for module in model.modules():
        if isinstance(module, DeepseekV3TopkRouter):
            module.register_forward_hook(adjust)


def train(options: argparse.Namespace, model: DeepseekV3ForCausalLM, tokens: torch.Tensor, device: str) -> list[dict]:
    """Returns what was printed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    windows = TensorDataset(tokens[: len(tokens) // options.context * options.context].view(-1, options.context))
    rows, step, began_s = [], 0, time.monotonic()
    with ciuic.join(options.run, model, optimizer, sync=ciuic.DiLoCo(inner_steps=options.inner_steps)) as run:
        while run.epoch < options.epochs:
            for (window,) in run.shard(windows, options.batch_size):
                window = window.to(device)
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = model(input_ids=window, labels=window).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if run.step(samples=len(window), loss=loss):
                    rows.append({**run.metrics(), "step": step, "elapsed_s": round(time.monotonic() - began_s, 3)})
                    print(json.dumps(rows[-1]), flush=True)
                    if run.epoch >= options.epochs:
                        break
    return rows


def write_on(model: DeepseekV3ForCausalLM, tokenizer: Tokenizer, prompt: str, count: int) -> str:
    given = torch.tensor([tokenizer.encode(prompt).ids], device=model.device)
    model.eval()
    return tokenizer.decode(model.generate(given, max_new_tokens=count, do_sample=True, top_k=20, pad_token_id=0)[0].tolist())


def plot(rows: list[dict], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, key, label in zip(
        figure.subplots(1, 3, sharey=True), ("step", "elapsed_s", "bytes_sent"), ("steps", "seconds", "MB sent"), strict=True
    ):
        axes.plot([row[key] / (1e6 if key == "bytes_sent" else 1) for row in rows], [row["loss"] for row in rows])
        axes.set(xlabel=label, ylabel="loss")
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="deepseek", help="the run's name")
    parser.add_argument("--epochs", type=int, default=40, help="until the run has taken so many outer steps")
    parser.add_argument("--inner-steps", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--words", type=int, default=1024, help="in the tokenizer's vocabulary")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--text", help="a file or ciuic://bucket/key")
    parser.add_argument("--prompt", default="The statement ")
    parser.add_argument("--plot", type=Path, help="a PNG of loss against steps, seconds and bytes")
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = read_text(options.text)
    tokenizer = make_tokenizer(text, options.words)
    options.words = tokenizer.get_vocab_size()  # a short text gives fewer
    model = make_model(options).to(device)
    balance_experts(model)
    rows = train(options, model, torch.tensor(tokenizer.encode(text).ids), device)
    if options.plot and rows:
        plot(rows, options.plot)

    client = ciuic.Client()
    saved = client.save_checkpoint(options.run)
    again = make_model(options).to(device)
    client.load_checkpoint(options.run, again, epoch=saved["epoch"])
    said = write_on(again, tokenizer, options.prompt, options.context // 2)
    print(json.dumps({"saved_epoch": saved["epoch"], "state_hash": saved["state_hash"], "said": said}), flush=True)


if __name__ == "__main__":
    main()
