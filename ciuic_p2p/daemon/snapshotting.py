"""Saves the states of runs at the boundaries of epochs, in a thread of its own, while rounds go on. Decides nothing itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgpack
import structlog

from ciuic_p2p.core.messages import Message, SaveSnapshot, SnapshotSaved, encode
from ciuic_p2p.core.signing import verify
from ciuic_p2p.core.snapshotting import Snapshotting, quorum_of
from ciuic_p2p.daemon.versions import Loan
from ciuic_p2p.errors import LocalError, MalformedMessage
from ciuic_p2p.store.blobs import BlobManifest
from ciuic_p2p.store.snapshots import Snapshot, Snapshots
from ciuic_p2p.tensors.layout import Layout
from ciuic_p2p.terms import BlobHash, PeerId, StateHash

log = structlog.get_logger(__name__)

_DOMAIN = b"ciuic-p2p snapshot 1\0"
_NO_BLOB = BlobManifest(blob=BlobHash("0" * 64), size_bytes=0, shards=())


def sign_saved(run: str, epoch: int, state_hash: StateHash, sign: Callable[[bytes], bytes]) -> SnapshotSaved:
    unsigned = SnapshotSaved(run=run, epoch=epoch, state_hash=state_hash, signature=b"")
    return replace(unsigned, signature=sign(_DOMAIN + encode(unsigned)))


def is_signed_by(signer: PeerId, saved: SnapshotSaved) -> bool:
    return verify(signer, _DOMAIN + encode(replace(saved, signature=b"")), saved.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What there is to know of a state beside its values."""

    layout: str
    model: Layout | None
    ancestors: tuple[str, ...]
    members: Collection[PeerId]
    """Who was in the mean that led to it."""
    agreeing: Collection[PeerId] = ()
    """Others that said that they hold the same: at the end of this daemon nobody is left to say that it saved it."""


class Keeper:
    """Of all runs of this daemon."""

    def __init__(self, me: PeerId, snapshots: Snapshots, every_s: float, sign: Callable[[bytes], bytes]) -> None:
        self.me = me
        self.snapshots = snapshots
        self.every_s = every_s
        self.sign = sign
        self.stored: Callable[[BlobManifest], None] = lambda _: None
        """Told of what is on the disk now. Called in the worker."""
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        """One state is written at a time: two would only wait for each other's disk."""

    def of(self, run: str, tell: Callable[[Message], None]) -> RunSnapshots:
        """tell: says something to all peers that are here. Thread-safe."""
        return RunSnapshots(run, self, tell)

    def close(self) -> None:
        """What is being written, or waits to be, is finished."""
        self.worker.shutdown(wait=True)


class RunSnapshots:
    """Thread-safe."""

    def __init__(self, run: str, keeper: Keeper, tell: Callable[[Message], None]) -> None:
        self._run = run
        self._keeper = keeper
        self._tell = tell
        self._lock = threading.Lock()
        self._machine = Snapshotting(keeper.me, keeper.every_s, time.monotonic() + keeper.every_s)
        self._held: dict[int, Snapshot] = {}
        """Of this life of the daemon, by epoch."""
        self._begun: int | None = None
        """The last epoch that was given to the worker; it may be written by now."""

    def order(self, epoch: int) -> None:
        """This peer wants one of that epoch: so do all from now on."""
        self._want(epoch)
        self._tell(SaveSnapshot(run=self._run, epoch=epoch))

    def tick(self, now: float, next_epoch: int | None) -> None:
        """next_epoch: the one that the round under way leads to; None while none is held."""
        if next_epoch is not None and self._machine.is_due(now):
            self.order(next_epoch)

    def message_received(self, sender: PeerId, message: SaveSnapshot | SnapshotSaved) -> None:
        """Raises MalformedMessage."""
        if isinstance(message, SaveSnapshot):
            self._want(message.epoch)
            return
        if not is_signed_by(sender, message):
            raise MalformedMessage(sender, "its report of a snapshot is not signed by it")
        with self._lock:
            self._machine.reported(sender, message.epoch, message.state_hash)
        self._keeper.worker.submit(self._note_witnesses, message.epoch)

    def wants(self, epoch: int) -> bool:
        """Whether the state of this epoch, which is held now, is to be saved."""
        with self._lock:
            return self._machine.take_wanted(epoch)

    def is_saved(self, epoch: int) -> bool:
        """In this life of the daemon."""
        with self._lock:
            return epoch in self._held

    def is_begun(self, epoch: int) -> bool:
        """Whether the newest state that is being saved, or was, is that of this epoch."""
        with self._lock:
            return self._begun == epoch

    def begin_from(self, snapshot: Snapshot) -> None:
        """The run goes on from this one, which is on the disk."""
        with self._lock:
            self._held[snapshot.epoch] = snapshot

    def save_soon(self, loan: Loan, moment: Moment) -> None:
        """loan: keeps the values from being stepped in place meanwhile."""
        with self._lock:
            self._begun = loan.version.epoch
        self._keeper.worker.submit(self._save, loan, moment)

    def _want(self, epoch: int) -> None:
        with self._lock:
            self._machine.want(epoch, time.monotonic())

    def _save(self, loan: Loan, moment: Moment) -> None:
        version = loan.version
        wanted = Snapshot(
            run=self._run,
            epoch=version.epoch,
            state_hash=version.state_hash,
            samples=version.samples,
            count=version.state.count,
            parameter_count=version.state.parameter_count,
            layout=moment.layout,
            tensors=msgpack.packb(moment.model.to_wire()) if moment.model is not None else b"",
            ancestors=moment.ancestors,
            saved_at_s=round(time.time()),
            witnesses=(self._keeper.me,),
            is_complete=False,
            blob=_NO_BLOB,
            quorum=quorum_of(len({self._keeper.me, *moment.members})),
            ledgers=version.ledgers,
        )
        began_s = time.monotonic()
        try:
            saved = self._already(wanted) or self._keeper.snapshots.save(wanted, version.state)
        except LocalError as error:
            log.error("snapshot.not_saved", run=self._run, epoch=version.epoch, error=str(error))
            return
        except Exception:  # the pool would swallow it: say it
            log.exception("snapshot.failed", run=self._run, epoch=version.epoch)
            return
        with self._lock:
            self._held[saved.epoch] = saved
            self._machine.saved(saved.epoch, saved.state_hash, moment.members)
            for peer in moment.agreeing:
                self._machine.reported(peer, saved.epoch, saved.state_hash)
        self._keeper.stored(saved.blob)
        seconds = round(time.monotonic() - began_s, 3)
        log.info("snapshot.saved", run=self._run, epoch=saved.epoch, size_bytes=saved.size_bytes, seconds=seconds)
        self._tell(sign_saved(self._run, saved.epoch, saved.state_hash, self._keeper.sign))
        self._note_witnesses(saved.epoch)

    def _already(self, wanted: Snapshot) -> Snapshot | None:
        """What was saved before stays as it is, with its witnesses."""
        with self._lock:
            known = self._held.get(wanted.epoch)
        return known if known is not None and known.state_hash == wanted.state_hash else None

    def _note_witnesses(self, epoch: int) -> None:
        """In the worker: what the others' reports make of a snapshot goes to the disk."""
        with self._lock:
            held = self._held.get(epoch)
            found = self._machine.witnesses(epoch)
            is_complete, is_disputed = self._machine.is_complete(epoch), self._machine.is_disputed(epoch)
        if held is None:
            return
        if is_disputed:
            log.error("snapshot.disputed", run=self._run, epoch=epoch, state_hash=held.state_hash[:12])
        witnesses = tuple(sorted({*found, *held.witnesses}))
        noted = replace(held, witnesses=witnesses, is_complete=is_complete or held.is_complete)
        if noted == held:
            return
        try:
            self._keeper.snapshots.note(noted)
        except LocalError as error:
            log.error("snapshot.not_noted", run=self._run, epoch=epoch, error=str(error))
            return
        with self._lock:
            self._held[epoch] = noted
        if noted.is_complete and not held.is_complete:
            log.info("snapshot.complete", run=self._run, epoch=epoch, witnesses=len(witnesses))
            for gone in self._keeper.snapshots.thin_out(self._run):
                log.info("snapshot.forgotten", run=self._run, epoch=gone.epoch)
                with self._lock:
                    self._held.pop(gone.epoch, None)
