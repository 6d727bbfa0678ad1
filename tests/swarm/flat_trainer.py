"""A trainer whose part in every mean can be told by its value: it moves all parameters by one constant in each round.

    python tests/swarm/flat_trainer.py --home DIR --run NAME --count 1000 --move 60 --samples 2 < orders

An order is a line: an epoch to train until, or `poison`, after which the next contribution is not a number. It says what it
is told as one JSON object a line, and leaves at the end of the orders.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ciuic_p2p.errors import SwarmError
from ciuic_p2p.local.protocol import Advanced, Ready, StrategySettings
from ciuic_p2p.tensors.layout import Entry, Layout
from ciuic_p2p.train.attachment import Attachment

PLAIN_MEAN = StrategySettings(name="DiLoCo", inner_steps=1, codec="float32", outer_learning_rate=1.0, outer_momentum=0.0)
"""The anchor moves by exactly the mean of what the trainers moved."""

INNER_STEPS_S = 0.1
"""What training takes: without it, a peer alone would be hundreds of epochs on before another has joined it."""


class Orders:
    """What standard input said last."""

    def __init__(self) -> None:
        self._until = 0
        self._poison = self._ended = False
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_to_train(self, epoch: int) -> bool:
        """True when there is more to train at this epoch, False when the orders have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or epoch < self._until)
            return not self._ended

    def take_poison(self) -> bool:
        with self._changed:
            poison, self._poison = self._poison, False
            return poison

    def _read(self) -> None:
        for line in sys.stdin:
            with self._changed:
                if line.strip() == "poison":
                    self._poison = True
                else:
                    self._until = int(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--move", type=float, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--noise", action="store_true", help="move by random values beside: nothing packs them")
    parser.add_argument("--codec", default=PLAIN_MEAN.codec, help="with @TOPOLOGY where that is not to be chosen")
    options = parser.parse_args()
    layout = Layout((Entry(name="flat", shape=(options.count,), dtype="float32", role="parameter"),))
    try:
        codec, _, topology = options.codec.partition("@")
        settings = replace(PLAIN_MEAN, codec=codec, topology=topology or PLAIN_MEAN.topology)
        train(Attachment(options.home, options.run, layout, settings), options.move, options.samples, noise=options.noise)
    except SwarmError as error:
        say(event="ended", kind=type(error).__name__, error=str(error))


def train(attachment: Attachment, move: float, samples: int, *, noise: bool) -> None:
    attached = attachment.attach()
    say(event="attached", epoch=attached.epoch, fresh=attached.fresh, state_hash=attached.state_hash)
    orders, epoch = Orders(), attached.epoch
    while orders.wait_to_train(epoch):
        before = attachment.exchange.values.copy()
        time.sleep(INNER_STEPS_S)
        attachment.exchange.values -= np.float32(move)
        if noise:
            attachment.exchange.values -= np.random.default_rng().standard_normal(len(before), np.float32)
        if orders.take_poison():
            attachment.exchange.values[len(before) // 2] = np.nan
        told = attachment.advance(Ready(samples=samples, steps=1, loss=None))
        say_step(told, [] if noise else distinct(before - attachment.exchange.values))
        epoch = told.epoch
    attachment.leave()


def distinct(values: np.ndarray[Any, Any]) -> list[float]:
    """Quick for values that come in runs, as those of a part do."""
    return sorted({*values[np.flatnonzero(np.diff(values)) + 1].tolist(), float(values[0])})


def say_step(told: Advanced, moves: list[float]) -> None:
    """moves: the distinct changes of the anchor's values since the last one that was loaded."""
    say(event="advanced", epoch=told.epoch, state_hash=told.state_hash, counted=told.counted, peers=told.peers, moves=moves)


def say(**fact: object) -> None:
    print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    main()
