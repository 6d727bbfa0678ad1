"""One rank of PyTorch's gloo: all-reduces a float32 tensor at each line on standard input, says when it began and ended.

    python -m benchmarks.contestants.gloo --number 0 --peers 2 --count 25000000 --address 127.0.0.1 --first 127.0.0.1 --port 0

The first rank listens for the others on a port of its own choosing, which it says first. Plaintext, as gloo is.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from benchmarks.children import say
from benchmarks.contestants.tensors import is_mean_of_all, values_of

PATIENCE = timedelta(minutes=30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--peers", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--address", required=True, help="of this rank")
    parser.add_argument("--first", required=True, help="address of the first rank")
    parser.add_argument("--port", type=int, required=True, help="of the first rank; 0 on itself")
    options = parser.parse_args()

    os.environ["GLOO_SOCKET_IFNAME"] = interface_of(options.address)
    is_first = options.number == 0
    store = dist.TCPStore(options.first, options.port, options.peers, is_first, PATIENCE, wait_for_workers=False)
    if is_first:
        say({"event": "listening", "port": store.port})
    dist.init_process_group("gloo", store=store, rank=options.number, world_size=options.peers, timeout=PATIENCE)
    own = torch.from_numpy(values_of(options.number, options.count))
    tensor = own.clone()
    say({"event": "joined"})
    for _ in sys.stdin:
        tensor.copy_(own)
        dist.barrier()
        began_s = time.time()
        dist.all_reduce(tensor)
        ended_s = time.time()
        whole = is_mean_of_all(tensor[:4096].numpy() / options.peers, options.peers)
        say({"event": "lap", "began_s": began_s, "ended_s": ended_s, "whole": whole})
    dist.destroy_process_group()


def interface_of(address: str) -> str:
    """Gloo's transport is told a device, not an address."""
    return next(name for name, bound in psutil.net_if_addrs().items() if address in [one.address for one in bound])


if __name__ == "__main__":
    main()
