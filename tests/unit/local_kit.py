"""A daemon's side of the socket that averages its own trainers, and hears all that happens; one thread, no peers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from blake3 import blake3
from numpy.typing import NDArray

from ciuic_p2p.config import child_environment
from ciuic_p2p.data.leases import Ledger, grant, use
from ciuic_p2p.data.positions import Positions, slots_from_plain, slots_to_plain
from ciuic_p2p.data.slots import Slots
from ciuic_p2p.errors import LocalError, SwarmError
from ciuic_p2p.local.protocol import (
    Advanced,
    AskLease,
    Attach,
    Attached,
    Leased,
    Position,
    Progress,
    Ready,
    StrategySettings,
)
from ciuic_p2p.local.trainer import Trainer
from ciuic_p2p.tensors.layout import Entry, Layout
from ciuic_p2p.terms import PeerId

BYTES_A_ROUND = 100
COUNT = 6
KIT = Path(__file__).parent
ROOT = KIT.parents[1]
LAYOUT = Layout((Entry(name="weight", shape=(2, 3), dtype="float32", role="parameter"),))
SETTINGS = StrategySettings(name="DiLoCo", inner_steps=2, codec="int4", outer_learning_rate=1.0, outer_momentum=0.0)
ATTACH = Attach(run="mnist", layout=LAYOUT.to_wire(), strategy=SETTINGS, pid=os.getpid())


class AveragingHost:
    """Once `members` trainers are ready, all get the mean of their values by samples."""

    def __init__(self, members: int = 1) -> None:
        self.members = members
        self.refusal: Exception | None = None
        """Raised at every attach and view."""
        self.epoch = 0
        self.anchor: NDArray[np.float32] | None = None
        self.trainers: list[Trainer] = []
        self.left_pids: list[int] = []
        self.heard: list[Progress | Ready] = []
        self.stopped = False
        self.ledger: Ledger | None = None
        """Of the one dataset that all trainers read."""
        self._wanted: dict[Trainer, int] = {}
        self._used: dict[Trainer, Any] = {}
        self._ready: dict[Trainer, int] = {}
        self._bytes = 0
        self._changed = asyncio.Condition()

    @property
    def state_hash(self) -> str:
        return "" if self.anchor is None else blake3(self.anchor.tobytes()).hexdigest()

    async def until(self, holds: Callable[[], object]) -> None:
        async with self._changed:
            await self._changed.wait_for(holds)

    async def attach(self, trainer: Trainer, attach: Attach) -> None:
        if self.refusal is not None:
            raise self.refusal
        fresh = self.anchor is None
        if self.anchor is None:
            self.anchor = trainer.exchange.copy()
        np.copyto(trainer.exchange, self.anchor)
        self.trainers.append(trainer)
        trainer.say_waiting("a moment")
        trainer.say_attached(
            Attached(
                epoch=self.epoch,
                state_hash=self.state_hash,
                fresh=fresh,
                bytes_sent=self._bytes,
                bytes_received=self._bytes,
            )
        )
        await self._tell()

    async def progress(self, trainer: Trainer, progress: Progress) -> None:
        self.heard.append(progress)
        await self._tell()

    async def ready(self, trainer: Trainer, ready: Ready) -> None:
        self.heard.append(ready)
        self._ready[trainer] = ready.samples
        self._used[trainer] = ready.used
        if len(self._ready) == self.members:
            self._advance()
        await self._tell()

    async def left(self, trainer: Trainer) -> None:
        self.left_pids.append(trainer.pid)
        if trainer in self.trainers:
            self.trainers.remove(trainer)
        self._ready.pop(trainer, None)
        self._wanted.pop(trainer, None)
        await self._tell()

    async def position(self, trainer: Trainer) -> Position:
        return Position(index=self.trainers.index(trainer), count=len(self.trainers), epoch=self.epoch)

    async def lease(self, trainer: Trainer, ask: AskLease) -> Leased:
        self._wanted[trainer] = ask.samples
        self.ledger = self.ledger or Ledger(positions=Positions(count=ask.count))
        if ask.count != self.ledger.positions.count:
            raise LocalError("another dataset", "use the same one")
        self.ledger = grant(self.ledger, {_name_of(each): wanted for each, wanted in self._wanted.items()})
        lease = self.ledger.lease_of(_name_of(trainer))
        held = Slots.of(stretch for _, lease in self.ledger.held for stretch in lease.stretches())
        [(open_pass, _)] = self.ledger.positions.next_unused(1, held).passes
        return Leased(slots=slots_to_plain(lease), open_pass=open_pass)

    async def view(self, what: str, options: dict[str, Any]) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return b"x" * options["size"] if "size" in options else {what: options}

    async def stop(self) -> None:
        self.stopped = True
        await self._tell()

    def _advance(self) -> None:
        counted = {trainer: samples for trainer, samples in self._ready.items() if samples}
        if counted:
            total = sum(samples * trainer.exchange.astype(np.float64) for trainer, samples in counted.items())
            self.anchor = (total / sum(counted.values())).astype(np.float32)
        assert self.anchor is not None
        self.epoch += 1
        if self.ledger is not None:
            used = {_name_of(each): slots_from_plain(*found.values()) for each, found in self._used.items() if found}
            self.ledger = use(self.ledger, used)
        self._used = {}
        self._bytes += BYTES_A_ROUND
        ready, self._ready = self._ready, {}
        for trainer in ready:
            np.copyto(trainer.exchange, self.anchor)
            trainer.say_advanced(self._advanced(len(counted), trainer in counted))

    def _advanced(self, contributors: int, counted: bool) -> Advanced:
        return Advanced(
            epoch=self.epoch,
            state_hash=self.state_hash,
            peers=tuple(f"peer {index}" for index in range(contributors)),
            bytes_sent=self._bytes,
            bytes_received=self._bytes,
            seconds=0.25,
            counted=counted,
        )

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _name_of(trainer: Trainer) -> PeerId:
    return PeerId(f"trainer {id(trainer)}")


def within_half_a_minute(test: Coroutine[Any, Any, None], run: Callable[..., None] = uvloop.run) -> None:
    """A test that hangs fails: pytest's own alarm does not reach a loop of uvloop that sleeps."""
    run(asyncio.wait_for(test, 30))


def start_script(code: str, home: Path) -> subprocess.Popen[str]:
    """A user's script, or what plays one; `home` is its only argument."""
    environment = child_environment(CIUIC_HOME=str(home), PYTHONPATH=os.pathsep.join(map(str, (ROOT, KIT))))
    argv = [sys.executable, "-c", code, str(home)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def socket_of(home: Path) -> Path:
    return home / "daemon.sock"


class Refusing(SwarmError):
    """A kind of error that the trainer's side does not know."""
