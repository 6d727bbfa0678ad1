"""What this machine has, for the peer record. Loads no torch: a GPU is found by the driver's files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil

from ciuic_p2p.core.records import MOST_GPUS, Capacity

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


def read_capacity(home: Path) -> Capacity:
    return Capacity(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        free_disk_bytes=shutil.disk_usage(home).free,
        gpus=_read_gpus(),
    )


def _read_gpus() -> tuple[str, ...]:
    names = []
    for information in sorted(NVIDIA_GPUS.glob("*/information")):
        model = [line.partition(":")[2].strip() for line in information.read_text().splitlines() if line.startswith("Model")]
        names += [name[:64] for name in model]
    return tuple(names[:MOST_GPUS])
