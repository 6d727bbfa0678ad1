"""How many GB of float32 each codec takes in, or gives out, in a second on one core: 64 MB tensors, buffers at hand."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch

from benchmarks.report import Figure, Measurement, run_benchmark
from ciuic_p2p.tensors.average import Accumulator
from ciuic_p2p.tensors.codecs.base import Codec, Float32
from ciuic_p2p.tensors.codecs.registry import all_codecs, codec_by_name
from ciuic_p2p.tensors.feedback import Feedback
from ciuic_p2p.tensors.outer import OuterOptimizer, OuterState

COUNT = 16_000_000
SIZE_GB = 4 * COUNT / 1e9
SAMPLES = 7

GOALS_GBPS = {
    "int4_encode_gbps": 2.5,
    "int4_decode_gbps": 3.5,
    "int8_encode_gbps": 3.0,
    "float16_encode_gbps": 6.0,
    "onebit_feedback_gbps": 2.0,
    "topk_encode_gbps": 0.8,
}
"""What the round's time budget asks of one core; figures without a goal are reported beside them."""


@cache
def tensor() -> Float32:
    """[COUNT] float32, normal, the same in every run."""
    return np.random.default_rng(0).standard_normal(COUNT, dtype=np.float32)


def time_throughput(name: str, action: Callable[[], None]) -> Figure:
    """GB of float32 in a second; one run before the first sample touches every page."""
    action()
    seconds = [_time(action) for _ in range(SAMPLES)]
    return Figure(
        samples=[SIZE_GB / taken for taken in seconds],
        goal=GOALS_GBPS.get(name),
        parts={"seconds": statistics.median(seconds)},
    )


def encode(name: str, codec: Codec) -> Figure:
    out = np.zeros(codec.encoded_bytes(COUNT), np.uint8)
    return time_throughput(name, partial(codec.encode_into, tensor(), out))


def decode(name: str, codec: Codec) -> Figure:
    """With the check of what a hostile peer may have sent."""
    payload = np.frombuffer(codec.encode(tensor()), np.uint8)
    return time_throughput(name, partial(codec.decode_into, payload, np.zeros(COUNT, np.float32)))


def feedback(name: str, codec: Codec) -> Figure:
    """Encoding with the residual added before and kept after."""
    out = np.zeros(codec.encoded_bytes(COUNT), np.uint8)
    return time_throughput(name, partial(Feedback(COUNT).encode_into, codec, tensor(), 0, out))


def accumulate(name: str, codec: Codec) -> Figure:
    """Check, decoding and weighted addition of one contribution."""
    payload = np.frombuffer(codec.encode(tensor()), np.uint8)
    return time_throughput(name, partial(Accumulator(COUNT).add_encoded, codec, payload, 3))


def outer_step(name: str) -> Figure:
    state = OuterState(anchor=np.zeros(COUNT, np.float32), momentum=np.zeros(COUNT, np.float32))
    return time_throughput(name, partial(OuterOptimizer(learning_rate=0.7, momentum=0.9).step, state, tensor(), state))


def all_measurements() -> dict[str, Measurement]:
    """Figure's name → what takes it."""
    taken: dict[str, Measurement] = {}
    for codec in all_codecs():
        for verb, measure in (("encode", encode), ("decode", decode)):
            taken[f"{codec.name}_{verb}_gbps"] = partial(measure, f"{codec.name}_{verb}_gbps", codec)
    for codec in (codec_by_name("onebit"), codec_by_name("int4"), codec_by_name("topk")):
        taken[f"{codec.name}_feedback_gbps"] = partial(feedback, f"{codec.name}_feedback_gbps", codec)
    taken["int4_accumulate_gbps"] = partial(accumulate, "int4_accumulate_gbps", codec_by_name("int4"))
    taken["outer_step_gbps"] = partial(outer_step, "outer_step_gbps")
    return taken


def _time(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(run_benchmark("codecs", all_measurements()))
