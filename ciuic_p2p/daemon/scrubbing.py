"""Reads this peer's shards again, slowly and never while a round runs: what a disk changed is found while others have it.

A damaged shard is set aside by the store; from then on this peer does not hold it, and repair brings it back. Decides nothing
itself: when which shard is read says core/scrubbing.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgpack
import structlog

from ciuic_p2p.core import wire
from ciuic_p2p.core.scrubbing import Pass, Rest, Scrubbing, Verify
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.errors import LocalError, MalformedMessage, ShardMissing
from ciuic_p2p.store import files
from ciuic_p2p.store.disk import INCOMING, DiskStore

log = structlog.get_logger(__name__)

STANDING_FILE = "scrubbed"
LARGEST_STANDING_BYTES = 4096
NOTE_EVERY_S = 60.0
"""So much of a pass is done again after kill -9."""
LONGEST_SLEEP_S = 60.0
"""A machine may be suspended meanwhile, and its clock set."""
LOOK_AGAIN_S = 0.25
"""While a round runs."""


@dataclass(slots=True)
class Scrubbed:
    """Since this daemon began."""

    shards: int = 0
    size_bytes: int = 0


class Scrubber:
    """Lives in the event loop's thread; the disk is read in others."""

    def __init__(self, store: DiskStore, holdings: Holdings, period_s: float, is_busy: Callable[[], bool]) -> None:
        """is_busy: a round's bytes are under way."""
        self._store = store
        self._holdings = holdings
        self._is_busy = is_busy
        self._file = store.folder / STANDING_FILE
        self._machine = Scrubbing(period_s, read_standing(self._file))
        self._noted: tuple[float, Pass] = (time.monotonic(), self._machine.standing)
        self.done = Scrubbed()

    @property
    def standing(self) -> Pass:
        return self._machine.standing

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self._step()
                await self._note()
            except LocalError as error:  # the disk cannot be used now; it may be later
                log.warning("store.scrub_failed", error=str(error))
                await asyncio.sleep(LONGEST_SLEEP_S)

    async def _step(self) -> None:
        """Raises StoreUnusable."""
        if self._is_busy():
            await asyncio.sleep(LOOK_AGAIN_S)
            return
        match self._machine.next(self._holdings.mine, time.time()):
            case Rest(seconds=seconds):
                await asyncio.sleep(min(seconds, LONGEST_SLEEP_S))
            case Verify(shard=shard):
                size_bytes = self._holdings.mine[shard]
                try:
                    await asyncio.to_thread(self._store.verify, shard)
                except ShardMissing as error:
                    log.warning("shard.damaged", shard=shard[:12], error=str(error))
                    self._holdings.note_damaged(shard)
                except LocalError:  # one file with wrong rights keeps nobody from looking at the others
                    self._machine.verified(shard, size_bytes, time.time())
                    raise
                self._machine.verified(shard, size_bytes, time.time())
                self.done.shards += 1
                self.done.size_bytes += size_bytes

    async def _note(self) -> None:
        """Raises StoreFull, StoreUnusable."""
        noted_s, noted = self._noted
        standing, now_s = self._machine.standing, time.monotonic()
        if standing != noted and (now_s - noted_s >= NOTE_EVERY_S or standing.is_over != noted.is_over):
            self._noted = (now_s, standing)
            await asyncio.to_thread(write_standing, self._file, standing)


def read_standing(file: Path) -> Pass | None:
    """None where there is none that reads: then all is read anew, which harms nothing."""
    try:
        data = files.read_whole(file, LARGEST_STANDING_BYTES)
        if data is None:
            return None
        found: Pass = wire.from_wire(Pass, wire.unpack(data, LARGEST_STANDING_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, MalformedMessage) as error:
        log.warning("store.scrub_begins_anew", file=str(file), error=str(error))
        return None
    return found


def write_standing(file: Path, standing: Pass) -> None:
    """Raises StoreFull, StoreUnusable."""
    with files.translated(file.parent):
        temporary = files.write_temporary(file.parent / INCOMING, memoryview(msgpack.packb(wire.to_wire(standing))))
        os.replace(temporary, file)
        files.sync_folder(file.parent)
