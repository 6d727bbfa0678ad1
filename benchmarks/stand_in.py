"""A trainer without a model: holds a flat float32 tensor, contributes at each line on standard input, says what a round took.

    python -m benchmarks.stand_in --home DIR --count 12500000 --codec float32 < commands

One JSON object a round: seconds from ready to the new anchor being there. What is measured is the averaging, not training.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.children import say
from benchmarks.contestants.tensors import values_of
from ciuic_p2p.local.protocol import Ready, StrategySettings
from ciuic_p2p.tensors.layout import Entry, Layout
from ciuic_p2p.train.attachment import Attachment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--run", default="benchmark")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--codec", default="float32")
    parser.add_argument("--number", type=int, default=0)
    options = parser.parse_args()

    layout = Layout((Entry(name="flat", shape=(options.count,), dtype="float32", role="parameter"),))
    codec, _, topology = options.codec.partition("@")
    settings = StrategySettings(
        name="DiLoCo",
        inner_steps=1,
        codec=codec,
        outer_learning_rate=1.0,
        outer_momentum=0.0,
        topology=topology or "auto",
    )
    attachment = Attachment(options.home, options.run, layout, settings)
    step = values_of(options.number, options.count)
    began_s = time.monotonic()
    attached = attachment.attach()
    seconds = time.monotonic() - began_s
    say({"event": "attached", "epoch": attached.epoch, "state_hash": attached.state_hash, "seconds": seconds})
    sent_before = attached.bytes_sent
    for _ in sys.stdin:
        attachment.exchange.values -= step
        began_s = time.monotonic()
        advanced = attachment.advance(Ready(samples=1, steps=1, loss=None))
        say(
            {
                "event": "round",
                "epoch": advanced.epoch,
                "seconds": time.monotonic() - began_s,
                "peers": len(advanced.peers),
                "counted": advanced.counted,
                "state_hash": advanced.state_hash,
                "bytes_sent": advanced.bytes_sent - sent_before,
            }
        )
        sent_before = advanced.bytes_sent
    attachment.leave()


if __name__ == "__main__":
    main()
