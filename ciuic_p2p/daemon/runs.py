"""All runs of this peer: brings trainers, messages and frames to theirs, and news of peers to all. Knows no values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog

from ciuic_p2p.core.events import MessageReceived, PeerReturned
from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.core.ledgers import LARGEST_REPORT_BYTES, MOST_DATASETS, Used, UseReport, Wanted, encode_report
from ciuic_p2p.core.messages import (
    AskPieces,
    AskState,
    Briefing,
    Fence,
    Message,
    Plan,
    Ready,
    Repair,
    Report,
    SaveSnapshot,
    SnapshotSaved,
    Standing,
    StateOffer,
    Transcript,
)
from ciuic_p2p.core.planning.network import Network
from ciuic_p2p.daemon.recovering import Recovering
from ciuic_p2p.daemon.runhost import RunHost, Surroundings
from ciuic_p2p.daemon.seat import Seat
from ciuic_p2p.data.positions import slots_from_plain, slots_to_plain
from ciuic_p2p.errors import LocalError, MalformedMessage
from ciuic_p2p.local.protocol import AskLease, Attach, Leased, Position, Progress
from ciuic_p2p.local.protocol import Ready as TrainerReady
from ciuic_p2p.local.trainer import Trainer
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.store.snapshots import Snapshot
from ciuic_p2p.tensors.outer import OuterState
from ciuic_p2p.terms import PeerId

log = structlog.get_logger(__name__)

MOST_RUNS = 32
RECOVER_AGAIN_S = 5.0
"""Between two tries at a run of which no snapshot can be read."""
MOST_TOLD = 200
"""Stretches of a lease at once: what is used of them fits a report."""
STALLED_S = 0.5
"""A process that was not run for so long, or frozen, must not take the others' silence for theirs."""


class Runs:
    """Lives in the event loop's thread; `frame_received` alone is called from lane threads."""

    def __init__(self, around: Surroundings, seed_wait_s: Callable[[], float], changed: Callable[[], None]) -> None:
        """seed_wait_s: how long a run without a state looks for one among the peers. changed: the list of runs is another."""
        self._around = around
        self._seed_wait_s = seed_wait_s
        self._changed = changed
        self._hosts: dict[str, RunHost] = {}
        self._by_tag: dict[bytes, RunHost] = {}
        self._seats: dict[Trainer, tuple[RunHost, Seat]] = {}
        self._present: set[PeerId] = set()
        self._ticked_s = time.monotonic()
        self._tasks = TaskSet()
        self._tried: dict[str, asyncio.Event] = {}
        """Runs whose newest snapshot is not whole here → whether it was tried to complete it."""
        self._standings: dict[tuple[PeerId, str], Standing] = {}
        """Of runs that have no trainer here (yet) as well, so that one that starts sees all at once."""

    def hosts(self) -> tuple[RunHost, ...]:
        return tuple(self._hosts.values())

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._hosts))

    def standing_of(self, peer: PeerId, run: str) -> Standing | None:
        return self._standings.get((peer, run))

    def standings(self) -> tuple[tuple[PeerId, Standing], ...]:
        return tuple((peer, standing) for (peer, _), standing in self._standings.items())

    # -- peers ---------------------------------------------------------------------------------------------------------

    def peer_arrived(self, peer: PeerId) -> None:
        self._present.add(peer)
        for host in self._hosts.values():
            host.handle(PeerReturned(peer=peer))

    def peer_gone(self, peer: PeerId) -> None:
        self._present.discard(peer)
        for key in [key for key in self._standings if key[0] == peer]:
            del self._standings[key]
        for host in self._hosts.values():
            host.peer_gone(peer)

    def message_received(self, sender: PeerId, message: Message) -> None:
        match message:
            case Standing():
                self._standings[sender, message.run] = message
                self._to_host(message.run, sender, message)
            case Plan() | Ready() | Fence() | Report() | Repair() | Transcript() | AskState() | StateOffer() | AskPieces():
                self._to_host(message.run, sender, message)
            case SaveSnapshot() | SnapshotSaved():
                self._to_host(message.run, sender, message)
            case Briefing():
                self._to_host(message.plan.run, sender, message)

    def frame_received(self, sender: PeerId, header: FrameHeader, payload: memoryview) -> None:
        host = self._by_tag.get(header.run)
        if host is not None:
            host.frame_received(sender, header, payload)

    def _to_host(self, run: str, sender: PeerId, message: Message) -> None:
        host = self._hosts.get(run)
        if host is not None:
            host.message_received(sender, message)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    async def restore(self, recovering: Recovering) -> None:
        """Runs of which this peer has a snapshot go on from the newest complete one; what it lacks comes from other peers."""
        for run in await asyncio.to_thread(self._around.keeper.snapshots.runs):
            found = await recovering.newest(run)
            if found is not None:
                self.begin_from(*found)
            else:
                self._tried[run] = asyncio.Event()
                self._tasks.spawn(self._recover(run, recovering, self._tried[run]))

    async def _recover(self, run: str, recovering: Recovering, tried: asyncio.Event) -> None:
        """Until the run has a state here: from a snapshot, or from a trainer that was let in because none can be had now."""
        try:
            while run not in self._hosts:
                found = await recovering.recover(run)
                if found is not None and run not in self._hosts:
                    self.begin_from(*found)
                tried.set()
                await asyncio.sleep(RECOVER_AGAIN_S)
        finally:
            tried.set()

    async def recovered(self, trainer: Trainer) -> None:
        """Returns when its run is not being recovered, or was tried to: until then a trainer would begin it anew."""
        tried = self._tried.get(trainer.run)
        if tried is not None and not tried.is_set():
            trainer.say_waiting("the run's newest snapshot is not whole here; other peers are asked for the rest")
            await tried.wait()

    def begin_from(self, snapshot: Snapshot, state: OuterState) -> None:
        """Raises LocalError when the run has a state here already."""
        if snapshot.run in self._hosts:
            raise LocalError(f"run {snapshot.run!r} has a state here already", "restore it under another name")
        self._make(snapshot.run).restore(snapshot, state)
        log.info("run.restored", run=snapshot.run, epoch=snapshot.epoch, complete=snapshot.is_complete)

    def host_of(self, run: str) -> RunHost:
        """Raises LocalError when there is no such run here."""
        if run not in self._hosts:
            known = ", ".join(self.names()) or "none"
            raise LocalError(f"there is no run {run!r} on this peer", f"choose one of those that it knows: {known}")
        return self._hosts[run]

    # -- trainers ------------------------------------------------------------------------------------------------------

    def attach(self, trainer: Trainer, attach: Attach) -> None:
        """Raises what RunHost.attach and Seat raise; nothing is left of a refused trainer."""
        seat = Seat(trainer, attach)
        host = self._hosts.get(attach.run) or self._make(attach.run)
        host.attach(seat)
        self._seats[trainer] = (host, seat)
        log.info("trainer.attached", run=attach.run, pid=attach.pid, values=seat.shape.count)

    def ready(self, trainer: Trainer, ready: TrainerReady) -> None:
        host, seat = self._seats[trainer]
        host.trainer_ready(seat, ready.samples, _report_of(ready))

    def progress(self, trainer: Trainer, progress: Progress) -> None:
        _, seat = self._seats[trainer]
        seat.note_speed(progress.samples)

    def left(self, trainer: Trainer) -> None:
        placed = self._seats.pop(trainer, None)
        if placed is not None:
            host, seat = placed
            host.trainer_left(seat)
            log.info("trainer.left", run=trainer.run, pid=trainer.pid)

    def position(self, trainer: Trainer) -> Position:
        """Among the peers that train this run, in the order of their ids: the same division on every peer."""
        host, _ = self._seats[trainer]
        others = (p for (p, run), s in self._standings.items() if run == host.run and s.training)
        training = sorted({self._around.me, *others})
        return Position(index=training.index(self._around.me), count=len(training), epoch=host.machine.epoch or 0)

    async def lease(self, trainer: Trainer, ask: AskLease) -> Leased:
        """Raises LocalError for a dataset that is not the one that the run knows by this name."""
        host, _ = self._seats[trainer]
        wanted = Wanted(dataset=ask.dataset, count=ask.count, samples=ask.samples)
        held = await host.lease(wanted, waits=ask.waits)
        return Leased(slots=slots_to_plain(held.slots)[:MOST_TOLD], open_pass=held.open_pass)

    def _make(self, run: str) -> RunHost:
        host = RunHost(run, self._around, self._seed_wait_s())
        self._hosts[run] = host
        self._by_tag[host.tag] = host
        for peer in self._present:
            host.handle(PeerReturned(peer=peer))
        for (peer, name), standing in self._standings.items():
            if name == run:
                host.handle(MessageReceived(sender=peer, message=standing))
        self._changed()
        return host

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Several times a second. After a stall nothing is done once: what others sent meanwhile is heard first."""
        now = time.monotonic()
        was_kept, self._ticked_s = now - self._ticked_s > STALLED_S, now
        if was_kept:
            return
        for host in self._hosts.values():
            host.tick()

    def update_network(self, network: Network) -> None:
        for host in self._hosts.values():
            host.update_network(network)

    async def close(self) -> None:
        await self._tasks.cancel()
        for host in self._hosts.values():
            host.close()

    def describe(self) -> list[dict[str, Any]]:
        """As `ciuic-peer status --json` prints them."""
        return [host.describe() for host in self._hosts.values()]


def _report_of(ready: TrainerReady) -> UseReport:
    """Raises MalformedMessage."""
    if len(ready.used) > MOST_DATASETS:
        raise MalformedMessage(None, f"a report of {len(ready.used)} datasets")
    report = []
    for dataset, used in sorted(ready.used.items()):
        if not isinstance(dataset, str):
            raise MalformedMessage(None, "a report names datasets")
        report.append(Used(dataset=dataset, slots=slots_from_plain(used)))
    if len(encode_report(tuple(report))) > LARGEST_REPORT_BYTES:
        raise MalformedMessage(None, f"a report of over {LARGEST_REPORT_BYTES} bytes")
    return tuple(report)
