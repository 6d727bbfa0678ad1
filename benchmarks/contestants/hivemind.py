"""One peer of hivemind's DecentralizedAverager, uncompressed: averages a float32 tensor at each time on standard input.

    python -m benchmarks.contestants.hivemind --number 0 --peers 2 --count 25000000 --address 127.0.0.1

Two lines make a round: the first lets it look for its group, which it says when it has it; the second is the Unix time at which
all start. So the search through the DHT, seconds long, is not counted, and the tensor is averaged by the whole group.
"""

from __future__ import annotations

import argparse
import sys
import time

import hivemind
import torch
from hivemind.averaging.control import AveragingStage, StepControl

from benchmarks.children import say
from benchmarks.contestants.tensors import is_mean_of_all, values_of

POLL_S = 0.05
REQUEST_TIMEOUT_S = 3.0
MATCHMAKING_S = 5.0
"""hivemind's own defaults; a group that is full does not wait for them to pass."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--peers", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--address", required=True, help="of this peer")
    parser.add_argument("--join", action="append", default=[], help="multiaddr of another")
    options = parser.parse_args()

    own = torch.from_numpy(values_of(options.number, options.count))
    dht = hivemind.DHT(
        initial_peers=options.join, host_maddrs=[f"/ip4/{options.address}/tcp/0"], start=True, startup_timeout=60
    )
    averager = hivemind.DecentralizedAverager(
        [own.clone()],
        dht,
        start=True,
        prefix="benchmark",
        target_group_size=options.peers,
        min_group_size=options.peers,
        min_matchmaking_time=MATCHMAKING_S,
        request_timeout=REQUEST_TIMEOUT_S,
        allow_state_sharing=False,
    )
    say({"event": "joined", "addresses": [str(address) for address in dht.get_visible_maddrs()]})
    for _ in sys.stdin:
        with averager.get_tensors() as tensors:
            tensors[0].copy_(own)
        step = averager.step(wait=False, require_trigger=True)
        wait_for_group(step)
        say({"event": "grouped"})
        began_s = float(sys.stdin.readline())
        time.sleep(max(0.0, began_s - time.time()))
        step.allow_allreduce()
        step.result()
        ended_s = time.time()
        with averager.get_tensors() as tensors:
            whole = is_mean_of_all(tensors[0][:4096].numpy(), options.peers)
        say({"event": "lap", "began_s": began_s, "ended_s": ended_s, "whole": whole})
    averager.shutdown()
    dht.shutdown()


def wait_for_group(step: StepControl) -> None:
    while step.stage is not AveragingStage.AWAITING_TRIGGER:
        if step.done():
            step.result()  # raises what it failed with
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
