"""Random faults in two stores that hold the same objects and snapshots: kill -9, torn and cut files, flipped bits, a full disk.

A child puts objects and snapshots into both stores and says of each when it is complete; the parent does harm, opens the stores
anew, reads both copies of all that was complete, and makes up for what one store lost from the other. Compares nothing.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import blake3
import numpy as np

from benchmarks.children import module_argv, say
from ciuic_p2p.errors import ShardMissing, SnapshotDamaged, StoreFull
from ciuic_p2p.store.blobs import BlobManifest, read_blob, write_blob
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.snapshots import Snapshot, Snapshots
from ciuic_p2p.tensors.outer import OuterState
from ciuic_p2p.tensors.state import StateManifest
from ciuic_p2p.terms import BlobHash, PeerId, ShardId

KINDS = ("kill -9", "flipped bit", "torn file", "full disk")
NAMES = ("a", "b")
SHARD_BYTES = 1 << 16
MOST_OBJECT_BYTES = 1 << 20
VALUES = 50_000
QUOTA_BYTES = 3 << 20
"""Of a store whose disk is to be full soon."""
LONGEST_LIFE_S = 0.6
STARTING_S = 30.0
_NO_BLOB = BlobManifest(blob=BlobHash("0" * 64), size_bytes=0, shards=())


@dataclass(slots=True)
class Outcome:
    """Of all injections up to now."""

    injected: int = 0
    complete: int = 0
    """Objects and snapshots that were read back, at each injection anew."""
    wrong: int = 0
    lost: int = 0
    refused: int = 0
    """Puts that a full disk refused."""


class Pair:
    """Two stores on this disk, each with its snapshots."""

    def __init__(self, folder: Path, quota_bytes: int | None = None) -> None:
        self.folder = folder
        self.stores = [DiskStore(folder / name / "store", quota_bytes, reserve_bytes=0, grace_s=0.0) for name in NAMES]
        pairs = zip(NAMES, self.stores, strict=True)
        self.snapshots = [Snapshots(folder / name / "snapshots", store) for name, store in pairs]

    def get(self, shard: ShardId) -> bytes:
        """Both copies are read; where one is gone or damaged it is made anew from the other. Raises ShardMissing."""
        found: bytes | None = None
        wanting = []
        for store in self.stores:
            try:
                found = store.get(shard)
            except ShardMissing:
                wanting.append(store)
        if found is None:
            raise ShardMissing(shard)
        for store in wanting:
            store.put(found)
        return found

    def close(self) -> None:
        for store in self.stores:
            store.close()


def content_of(seed: int) -> bytes:
    draw = random.Random(seed)
    return draw.randbytes(draw.randrange(1, MOST_OBJECT_BYTES))


def state_of(seed: int) -> OuterState:
    draw = np.random.default_rng(seed)
    return OuterState(anchor=draw.standard_normal(VALUES, np.float32), momentum=draw.standard_normal(VALUES, np.float32))


def snapshot_of(seed: int, state: OuterState) -> Snapshot:
    return Snapshot(
        run="run",
        epoch=seed,
        state_hash=StateManifest.describe(state, seed, seed).state_hash,
        samples=seed,
        count=VALUES,
        parameter_count=VALUES,
        layout="",
        tensors=b"",
        ancestors=(),
        saved_at_s=seed,
        witnesses=(PeerId("me"),),
        is_complete=True,
        blob=_NO_BLOB,
    )


def put_without_end(folder: Path, seed: int, quota_bytes: int | None) -> None:
    """The child: says of each thing that it is in both stores."""
    pair = Pair(folder, quota_bytes)
    say({"ready": True})
    while True:
        seed += 1
        try:
            if seed % 3:
                content = content_of(seed)
                for store in pair.stores:
                    write_blob(store, iter([content]), shard_bytes=SHARD_BYTES)
            else:
                state = state_of(seed)
                for snapshots in pair.snapshots:
                    snapshots.save(snapshot_of(seed, state), state)
        except StoreFull:
            say({"refused": seed})
            time.sleep(0.01)
        else:
            say({"complete": seed})


def inject(folder: Path, times: int, seed: int) -> Iterator[Outcome]:
    """Yields after each injection."""
    draw, outcome, complete, next_seed = random.Random(seed), Outcome(), list[int](), 0
    for number in range(times):
        kind = KINDS[number % len(KINDS)]
        told, refused = live(folder, next_seed, draw, QUOTA_BYTES if kind == "full disk" else None)
        complete += told
        next_seed = max([next_seed, *told, *refused]) + 1000
        if kind in ("flipped bit", "torn file"):
            harm(folder / draw.choice(NAMES), kind, draw)
        outcome.injected += 1
        outcome.refused += len(refused)
        read_all(folder, complete, outcome)
        complete = complete[-20:]  # older ones were read often enough, and each time takes longer
        yield outcome


def live(folder: Path, seed: int, draw: random.Random, quota_bytes: int | None) -> tuple[list[int], list[int]]:
    """A child's life, which a kill -9 ends at a random instant: what was complete by then, and what was refused."""
    argv = module_argv("benchmarks.injections", folder=folder, seed=seed, quota=quota_bytes or 0)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], STARTING_S)[0]:
        raise TimeoutError("the child that puts does not start")
    time.sleep(draw.uniform(0.0, LONGEST_LIFE_S))
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    facts = [json.loads(line) for line in said.split(b"\n")[:-1]]
    return [f["complete"] for f in facts if "complete" in f], [f["refused"] for f in facts if "refused" in f]


def harm(folder: Path, kind: str, draw: random.Random) -> None:
    """To one random file of a store."""
    files = sorted(path for path in (folder / "store" / "shards").rglob("*") if path.is_file() and path.stat().st_size)
    if not files:
        return
    path = draw.choice(files)
    if kind == "torn file":
        os.truncate(path, draw.randrange(path.stat().st_size))
        return
    with path.open("r+b") as stream:
        at = draw.randrange(path.stat().st_size)
        stream.seek(at)
        byte = stream.read(1)[0] ^ (1 << draw.randrange(8))
        stream.seek(at)
        stream.write(bytes([byte]))


def read_all(folder: Path, complete: list[int], outcome: Outcome) -> None:
    """As after a restart: every complete object and snapshot, by its own bytes."""
    pair = Pair(folder)
    try:
        for seed in complete:
            outcome.complete += 1
            try:
                right = is_object_right(pair, seed) if seed % 3 else is_snapshot_right(pair, seed)
            except (ShardMissing, SnapshotDamaged, StopIteration):
                outcome.lost += 1
            else:
                outcome.wrong += not right
    finally:
        pair.close()


def is_object_right(pair: Pair, seed: int) -> bool:
    content = content_of(seed)
    parts = [content[start : start + SHARD_BYTES] for start in range(0, len(content), SHARD_BYTES)]
    shards = [ShardId(blake3.blake3(part).hexdigest()) for part in parts]
    return b"".join(pair.get(shard) for shard in shards) == content


def is_snapshot_right(pair: Pair, seed: int) -> bool:
    """In each of the two."""
    state = state_of(seed)
    for snapshots in pair.snapshots:
        snapshot = next(one for one in snapshots.of_run("run") if one.epoch == seed)
        b"".join(read_blob(pair.get, snapshot.blob))  # brings back what this store lost
        loaded = snapshots.load(snapshot)
        if loaded.anchor.tobytes() != state.anchor.tobytes() or loaded.momentum.tobytes() != state.momentum.tobytes():
            return False
    return True


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--quota", type=int)
    options = parser.parse_args(sys.argv[1:])
    put_without_end(options.folder, options.seed, options.quota or None)
