"""What a run's trainer holds of its datasets, and who waits to be given something. Decides nothing; knows no peers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from ciuic_p2p.core.ledgers import MOST_DATASETS, Ledgers, Wanted
from ciuic_p2p.core.runs import RunMachine
from ciuic_p2p.data.leases import Ledger
from ciuic_p2p.data.naming import name_of
from ciuic_p2p.data.positions import UNBOUNDED
from ciuic_p2p.data.slots import Slots
from ciuic_p2p.errors import LocalError

_REMEDY = "use the same dataset and shuffle_seed on every peer, or give another one its own name: run.shard(…, name=…)"


@dataclass(frozen=True, slots=True)
class Held:
    """What a trainer may use of a dataset now."""

    slots: Slots
    open_pass: int
    """The first pass of which something is neither used nor anybody's."""


@dataclass(frozen=True, slots=True)
class _Ask:
    wanted: Wanted
    answer: asyncio.Future[Held]


class LeaseDesk:
    """Used under its run's lock, from any thread; answers are given in the loop's."""

    def __init__(self, run: str, machine: RunMachine, loop: asyncio.AbstractEventLoop) -> None:
        self._run = run
        self._machine = machine
        self._loop = loop
        self._asks: list[_Ask] = []

    def ask(self, wanted: Wanted, *, waits: bool) -> asyncio.Future[Held]:
        """In the loop's thread. waits: the answer comes once something is held. Raises LocalError."""
        refusal = self._refusal(wanted)
        if refusal is not None:
            raise refusal
        answer: asyncio.Future[Held] = self._loop.create_future()
        if waits:
            self._asks.append(_Ask(wanted, answer))
        else:
            answer.set_result(self._held(wanted.dataset))
        return answer

    def look(self) -> None:
        """Something changed: who waits may have got something."""
        for ask in list(self._asks):
            refusal, held = self._refusal(ask.wanted), self._held(ask.wanted.dataset)
            if refusal is None and not held.slots.count:
                continue
            self._asks.remove(ask)
            self._loop.call_soon_threadsafe(_settle, ask.answer, refusal or held)

    def close(self) -> None:
        """The trainer left: nobody waits any more."""
        asks, self._asks = self._asks, []
        for ask in asks:
            self._loop.call_soon_threadsafe(ask.answer.cancel)

    def _held(self, dataset: str) -> Held:
        ledger = self._machine.granted().find(dataset)
        open_pass = 0 if ledger is None else first_open_pass(ledger)
        return Held(self._machine.lease_of(dataset), open_pass)

    def _refusal(self, wanted: Wanted) -> LocalError | None:
        ledgers = self._machine.granted()
        ledger = ledgers.find(wanted.dataset)
        name = name_of(wanted.dataset)
        if ledger is None and ledgers.called(name) is not None:
            what = f"dataset {name!r} of run {self._run!r} has other contents than this one, or another order"
            return LocalError(what, _REMEDY)
        if ledger is None and len(ledgers.of) >= MOST_DATASETS:
            what = f"run {self._run!r} has {MOST_DATASETS} datasets already"
            return LocalError(what, "use one of their names, or a new run name")
        if ledger is not None and ledger.positions.count != wanted.count:
            theirs, ours = _size(ledger.positions.count), _size(wanted.count)
            return LocalError(f"dataset {name!r} of run {self._run!r} has {theirs}, this one has {ours}", _REMEDY)
        return None


def _settle(answer: asyncio.Future[Held], found: Held | LocalError) -> None:
    if answer.done():
        return
    if isinstance(found, LocalError):
        answer.set_exception(found)
    else:
        answer.set_result(found)


def first_open_pass(ledger: Ledger) -> int:
    held = Slots.of(stretch for _, lease in ledger.held for stretch in lease.stretches())
    [(number, _)] = ledger.positions.next_unused(1, held).passes
    return number


def describe_ledgers(ledgers: Ledgers) -> list[dict[str, Any]]:
    """As `ciuic-peer status --json` prints them: how far all peers together are."""
    return [
        {
            "dataset": name_of(name),
            "samples": None if ledger.positions.count == UNBOUNDED else ledger.positions.count,
            "passes": ledger.positions.finished,
            "used": [list(stretch) for stretch in ledger.positions.beyond.stretches()],
            "held": {peer: lease.count for peer, lease in ledger.held},
        }
        for name, ledger in ledgers.of
    ]


def _size(count: int) -> str:
    return "no known length" if count == UNBOUNDED else f"{count} samples"
