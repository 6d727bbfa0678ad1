"""A trainer that keeps its optimizer's state, and says at each boundary of an epoch what that state is.

python tests/swarm/optimizer_trainer.py HOME
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import nn

import ciuic_p2p as ciuic

RUN = "kept"
STEP_S = 0.03
"""What a step takes elsewhere: without it a peer alone is hundreds of epochs on before anybody has looked."""


def main(home: Path) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with ciuic.join(RUN, model, optimizer, sync=ciuic.DiLoCo(inner_steps=3), home=home, keep_optimizer=True) as run:
        say(what="joined", epoch=run.epoch, state=bits_of(optimizer))
        while True:
            time.sleep(STEP_S)
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.step(samples=16):
                say(what="advanced", epoch=run.epoch, state=bits_of(optimizer))


def bits_of(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Of each tensor in its state."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{key}": blake3(value.numpy().tobytes()).hexdigest() for i, of in state.items() for key, value in of.items()}


def say(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
