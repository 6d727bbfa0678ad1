"""Averaging on one machine: ours, encrypted, beside gloo's all-reduce and hivemind's averager, which run in turn with it.

Real daemons, each with a trainer that contributes a tensor without a model. A round of ours is timed from the moment when the
last contribution is in its daemon's memory until the last daemon has the whole mean; what trainers see, with the outer step,
the state's hash and copies to and fro, is `…_trainer_s`. gloo and hivemind begin with their tensors in memory, and end alike.
"""

from __future__ import annotations

import sys

from benchmarks.arenas import loopback
from benchmarks.contests import Contest, flags_parser, read_flags
from benchmarks.report import Measurement, run_benchmark
from ciuic_p2p.tensors.codecs.registry import all_codecs

MEGABYTES = 100.0
OTHER_MEGABYTES = (4.0, 400.0)
LIMIT_S = 300.0
WARM_UP_S = 10.0


def measurements(two: Contest, four: Contest) -> dict[str, Measurement]:
    """Figure's name → what takes it. two, four: contests of so many peers."""
    judged = {
        "loopback2_gloo": two.times_faster("float32", "gloo", MEGABYTES, 1.0),
        "loopback4_gloo": four.times_faster("float32", "gloo", MEGABYTES, 1.0),
        "loopback2_hivemind": two.times_faster("float32", "hivemind", MEGABYTES, 10.0),
        "loopback2_int8_gloo": two.times_faster("int8", "gloo", MEGABYTES, 1.5),
    }
    codecs = {f"loopback2_{codec.name}_s": two.seconds(codec.name, MEGABYTES) for codec in all_codecs()}
    sizes = {f"loopback2_{size:g}mb_s": two.seconds("float32", size) for size in OTHER_MEGABYTES}
    return judged | codecs | sizes


def main() -> int:
    parser = flags_parser(LIMIT_S, WARM_UP_S)
    flags, _ = read_flags(parser)
    with loopback(2) as two, loopback(4) as four:
        return run_benchmark("allreduce", measurements(Contest(two, flags), Contest(four, flags)), own_flags=parser)


if __name__ == "__main__":
    sys.exit(main())
