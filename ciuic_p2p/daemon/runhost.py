"""One run on this peer: performs what its machine wants, with real values, peers and time.

The machine is asked under one lock, from the event loop and from lane threads alike; what computes goes to the pool. Knows no
TLS, no DHT and no socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgpack
import numpy as np
import structlog
from blake3 import blake3

from ciuic_p2p.core import events as e
from ciuic_p2p.core.frames import HEADER_BYTES, FrameHeader, FrameKind
from ciuic_p2p.core.ledgers import Ledgers, UseReport, Wanted
from ciuic_p2p.core.messages import (
    AskPieces,
    AskState,
    Message,
    Plan,
    SaveSnapshot,
    SnapshotSaved,
    Standing,
    StateOffer,
    Transcript,
    encode,
)
from ciuic_p2p.core.planning.network import Network
from ciuic_p2p.core.rounds import Round
from ciuic_p2p.core.runs import RunMachine
from ciuic_p2p.daemon.buffers import Buffers
from ciuic_p2p.daemon.contribution import Contribution
from ciuic_p2p.daemon.fetching import Fetch, version_tag
from ciuic_p2p.daemon.leasing import Held, LeaseDesk, describe_ledgers
from ciuic_p2p.daemon.likeness import describe_difference
from ciuic_p2p.daemon.pacemaker import Pacemaker
from ciuic_p2p.daemon.roundlog import RoundLog
from ciuic_p2p.daemon.seat import Seat
from ciuic_p2p.daemon.snapshotting import Keeper, Moment
from ciuic_p2p.daemon.transcripts import is_signed_by, sign_transcript
from ciuic_p2p.daemon.values import LOSSLESS, RoundValues
from ciuic_p2p.daemon.versions import Loan, Version, Versions
from ciuic_p2p.errors import (
    LayoutMismatch,
    LocalError,
    MalformedMessage,
    MalformedPayload,
    PeerUnreachable,
    RemoteError,
    RoundFailed,
)
from ciuic_p2p.local.protocol import Advanced, Attached
from ciuic_p2p.net.transport import OutgoingFrame, Transport
from ciuic_p2p.store.snapshots import Snapshot
from ciuic_p2p.tensors.codecs.registry import reply_codec
from ciuic_p2p.tensors.kernels import prepare_soon
from ciuic_p2p.tensors.layout import Layout
from ciuic_p2p.tensors.outer import OuterOptimizer, OuterState
from ciuic_p2p.tensors.state import piece_bytes
from ciuic_p2p.terms import PeerId

log = structlog.get_logger(__name__)

LATER_LIMIT_S = 10.0
"""A frame whose plan has not come waits so long in its lane, which holds the sender back as well."""

FRAME_OVERHEAD_BYTES = 8 + HEADER_BYTES + 2 * 16
"""Counter, header and two authentication tags around each payload."""

ROUND_FRAMES = (FrameKind.CONTRIBUTION, FrameKind.RESULT)

LARGEST_SAMPLES = 1 << 32

LARGEST_LAST_BYTES = 1 << 30
"""A state that is larger is not saved at the end of the daemon, which has to be over in a few seconds."""


def run_tag(run: str) -> bytes:
    """The run's name in frame headers: 8 bytes."""
    return blake3(f"ciuic run\0{run}".encode()).digest()[:8]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run needs of its daemon."""

    me: PeerId
    transport: Transport
    sign: Callable[[bytes], bytes]
    name_of: Callable[[PeerId], str]
    pool: Executor
    tasks: asyncio.TaskGroup
    pacemaker: Pacemaker
    keeper: Keeper


class RunHost:
    """Made in the event loop's thread."""

    def __init__(self, run: str, around: Surroundings, seed_wait_s: float) -> None:
        self.run = run
        self.tag = run_tag(run)
        self.seat: Seat | None = None
        self.rounds = RoundLog()
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition(threading.RLock())
        self._machine = RunMachine(around.me, run, now=time.monotonic(), seed_wait_s=seed_wait_s)
        self._versions = Versions()
        self._model: Layout | None = None
        """Of the newest trainer; it may have left."""
        self.snapshots = around.keeper.of(run, self._tell_all)
        self._values: dict[int, RoundValues] = {}
        self._buffers = Buffers()
        self._contribution: Contribution | None = None
        self._fetch: Fetch | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._closed = False
        self._leases = LeaseDesk(run, self._machine, self._loop)
        self.given_up_samples = 0
        """Counted here while the swarm was parted, and not in the state that went on."""

    # -- what the daemon tells and asks --------------------------------------------------------------------------------

    def handle(self, event: e.RunEvent) -> None:
        """From any thread; what computes goes to the pool."""
        with self._changed:
            computing = self._perform(self._machine.handle(event, time.monotonic()))
            self._changed.notify_all()
            self._leases.look()
        for action, values in computing:
            self._around.pool.submit(self._compute, action, values)

    def tick(self) -> None:
        """Several times a second, so that deadlines are kept."""
        with self._changed:
            deadline = self._machine.next_deadline_s()
            if deadline is not None and deadline <= time.monotonic():
                self.handle(e.TimePassed())
            self.snapshots.tick(time.monotonic(), self._next_epoch())
            self._save_if_wanted()

    def message_received(self, sender: PeerId, message: Message) -> None:
        """One of this run's messages. Raises MalformedMessage when the sender is to blame."""
        match message:
            case AskState():
                self._offer_state(sender, message)
            case StateOffer():
                if self._fetch is not None:
                    self._fetch.offered(sender, message)
            case AskPieces():
                self._send_pieces(sender, message)
            case SaveSnapshot() | SnapshotSaved():
                self.snapshots.message_received(sender, message)
            case Transcript():
                if not is_signed_by(sender, message):
                    raise MalformedMessage(sender, "its transcript is not signed by it")
                self.rounds.record(message)
            case _:
                if isinstance(message, Standing):
                    self._note_donor(sender, message)
                self.handle(e.MessageReceived(sender=sender, message=message))

    def _note_donor(self, sender: PeerId, standing: Standing) -> None:
        """Who just came to hold the state that is being fetched can give pieces of it too."""
        fetch = self._fetch
        if fetch is not None and fetch.wanted == (standing.epoch, standing.state_hash):
            fetch.add_donor(sender)

    def peer_gone(self, peer: PeerId) -> None:
        if self._fetch is not None:
            self._fetch.drop_donor(peer)
        self.handle(e.PeerLost(peer=peer))

    def restore(self, snapshot: Snapshot, state: OuterState) -> None:
        """From this peer's disk, before any trainer is here. Others may hold a newer state: then that is taken."""
        with self._changed:
            self._machine.layout, self._model = snapshot.layout, snapshot.model()
            self.snapshots.begin_from(snapshot)
            version = Version.of(state, snapshot.epoch, snapshot.samples, snapshot.ledgers)
            self._hold(version, ancestors=snapshot.ancestors)

    def order_snapshot(self) -> int:
        """All peers of the run save the state of the epoch that is returned. Raises LocalError while there is none."""
        with self._changed:
            epoch = self._next_epoch()
            if epoch is None:
                raise LocalError(f"run {self.run!r} has no state yet", "wait until its trainers were let in")
            self.snapshots.order(epoch)
            self._save_if_wanted()
        return epoch

    def update_network(self, network: Network) -> None:
        """What the next plan is made by."""
        self._machine.links, self._machine.places = network.links, network.places
        self._machine.lines_mbps, self._machine.cables_mbps = network.lines_mbps, network.cables_mbps

    def is_busy(self) -> bool:
        """A round's bytes are under way: the links are not to be disturbed."""
        current = self._machine.current_round()
        return current is not None and bool(current.samples) and not current.finished

    def took_part(self, peer: PeerId) -> bool:
        """Whether its contribution is in the newest finished round."""
        last = self.rounds.last()
        return last is not None and any(p == peer for p, _ in last.contributors)

    def describe(self) -> dict[str, Any]:
        """As `ciuic-peer status --json` prints it."""
        last = self.rounds.view({})[-1:]
        return {
            "run": self.run,
            "epoch": self._machine.epoch,
            "training": self.seat is not None,
            "participating": self.took_part(self._around.me),
            "samples_per_s": round(self.seat.samples_per_s, 2) if self.seat is not None else 0.0,
            "state_hash": self._machine.state_hash,
            "given_up_samples": self.given_up_samples,
            "data": describe_ledgers(self._machine.ledgers),
            "last_round": last[0] if last else {},
        }

    def close(self) -> None:
        self.save_last()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._fetching is not None:
            self._fetching.cancel()

    @property
    def machine(self) -> RunMachine:
        """For views; read in the loop's thread."""
        return self._machine

    # -- the trainer ---------------------------------------------------------------------------------------------------

    def attach(self, seat: Seat) -> None:
        """Raises LocalError while another trainer is attached, LayoutMismatch when the run's model is another."""
        if self.seat is not None:
            raise LocalError(
                f"process {self.seat.trainer.pid} already trains {self.run!r} through this daemon",
                "end it, or start another daemon with its own --home",
            )
        if self._machine.epoch is not None and self._machine.layout != seat.shape.layout:
            difference = describe_difference(seat.shape.layout, self._machine.layout)
            raise LayoutMismatch(f"run {self.run!r} is of {difference}", "use the same script, or another run name")
        prepare_soon(seat.layout.count)
        self.seat, self._model = seat, seat.layout
        self.handle(e.TrainerAttached(shape=seat.shape))
        if self._versions.current is not None:
            self._around.pool.submit(self._let_in, seat, False)
        else:
            seat.trainer.say_waiting("looking for the run's state among the peers")

    async def lease(self, wanted: Wanted, *, waits: bool) -> Held:
        """What the trainer holds of a dataset; waits: until that is something. Raises LocalError."""
        with self._changed:
            asked = self._leases.ask(wanted, waits=waits)
            self.handle(e.DatasetWanted(wanted=wanted))
            if waits:
                self.handle(e.LeaseAwaited(dataset=wanted.dataset))
        return await asked

    def trainer_ready(self, seat: Seat, samples: int, report: UseReport = ()) -> None:
        """Its exchange holds the local values; report: what it used of its leases for them."""
        seat.note_speed(samples)
        self._machine.samples_per_s = seat.samples_per_s
        self._around.pool.submit(self._guarded, self._take_contribution, seat, samples, report)

    def trainer_left(self, seat: Seat) -> None:
        if self.seat is seat:
            self.seat = None
            self._leases.close()
            self.handle(e.TrainerLeft())

    def _let_in(self, seat: Seat, fresh: bool) -> None:
        """In the pool: gives the trainer the state that is held now."""
        with self._changed:
            version = self._versions.current
            if version is None or seat.is_attached or self.seat is not seat:
                return
            seat.is_attached = True
            seat.load(version)
        answer = Attached(
            epoch=version.epoch,
            state_hash=version.state_hash,
            fresh=fresh,
            bytes_sent=self.rounds.bytes_sent,
            bytes_received=self.rounds.bytes_received,
        )
        self._loop.call_soon_threadsafe(seat.trainer.say_attached, answer)

    def _take_contribution(self, seat: Seat, samples: int, report: UseReport) -> None:
        contribution = seat.contribution(report) if samples > 0 else None
        if contribution is None and samples > 0:
            log.warning("run.contribution_not_finite", run=self.run)
        with self._changed:
            if self.seat is seat:
                self._contribution = contribution
                is_whole = contribution is not None
                self.handle(e.TrainerReady(samples=samples if is_whole else 0, report=report if is_whole else ()))

    def _load_trainer(self, action: e.LoadTrainer) -> None:
        with self._changed:
            seat, version = self.seat, self._versions.current
            if seat is None or version is None:
                return
            self._settle_contribution(counted=action.counted)
            seat.load(version)
            entry = self.rounds.entry(version.epoch - 1)
        answer = Advanced(
            epoch=version.epoch,
            state_hash=version.state_hash,
            peers=tuple(self._around.name_of(peer) for peer, _ in entry.contributors) if entry else (),
            bytes_sent=self.rounds.bytes_sent,
            bytes_received=self.rounds.bytes_received,
            seconds=(entry.seconds or 0.0) if entry else 0.0,
            counted=action.counted,
            saving=self.snapshots.is_begun(version.epoch),
        )
        self._loop.call_soon_threadsafe(seat.trainer.say_advanced, answer)

    def _settle_contribution(self, *, counted: bool) -> None:
        contribution, self._contribution = self._contribution, None
        if contribution is not None:
            contribution.end()
            contribution.forget() if counted else contribution.take_back()

    # -- frames, in lane threads ---------------------------------------------------------------------------------------

    def frame_received(self, sender: PeerId, header: FrameHeader, payload: memoryview) -> None:
        """Raises RemoteError when the sender is to blame; a frame that is not wanted is dropped."""
        epoch = header.epoch if header.kind in ROUND_FRAMES else None
        self.rounds.count_received(epoch, len(payload) + FRAME_OVERHEAD_BYTES)
        match header.kind:
            case FrameKind.CONTRIBUTION:
                self._take_part(sender, header, payload)
            case FrameKind.RESULT:
                self._take_result(sender, header, payload)
            case FrameKind.STATE:
                fetch = self._fetch
                if fetch is not None and header.term == fetch.tag:
                    fetch.piece_arrived(sender, header.part, payload)
            case FrameKind.PROBE:
                pass

    def _take_part(self, sender: PeerId, header: FrameHeader, payload: memoryview) -> None:
        values = self._accepted(header, lambda r: r.judge_part(sender, header.part, header.term))
        if values is None:
            return
        try:
            if not values.may_come_under(header.part, header.codec) or not 0 < header.samples <= LARGEST_SAMPLES:
                raise MalformedPayload(sender, "a contribution under another codec than planned, or of no weight")
            values.add(header.part, payload, header.codec, header.samples, header.term, packed=header.packed, sender=sender)
        except RemoteError:
            self._handle_in_round(values, header.epoch, e.PartRefused(sender=sender, part=header.part, term=header.term))
            raise
        self._handle_in_round(values, header.epoch, e.PartAccumulated(sender=sender, part=header.part, term=header.term))

    def _take_result(self, sender: PeerId, header: FrameHeader, payload: memoryview) -> None:
        values = self._accepted(header, lambda r: r.judge_result(sender, header.part, header.term))
        if values is None:
            return
        try:
            values.store_result(header.part, payload, header.codec, header.samples, packed=header.packed)
        except RemoteError:
            self._handle_in_round(values, header.epoch, e.ResultRefused(part=header.part))
            raise
        self._handle_in_round(values, header.epoch, e.ResultStored(part=header.part))

    def _accepted(self, header: FrameHeader, judge: Callable[[Round], e.Verdict]) -> RoundValues | None:
        """The round's values when the frame is to be taken. Waits a while for a plan or a term that is still on its way."""
        deadline = time.monotonic() + LATER_LIMIT_S
        with self._changed:
            while True:
                verdict = self._verdict(header, judge)
                if verdict is e.Verdict.ACCEPT:
                    return self._values[header.epoch]
                remaining_s = deadline - time.monotonic()
                if verdict is e.Verdict.IGNORE or self._closed or remaining_s <= 0:
                    return None
                self._changed.wait(remaining_s)

    def _verdict(self, header: FrameHeader, judge: Callable[[Round], e.Verdict]) -> e.Verdict:
        current = self._machine.rounds.get(header.epoch)
        if current is not None:
            return judge(current)
        return e.Verdict.LATER if self._machine.awaits(header.epoch, header.term) else e.Verdict.IGNORE

    def _handle_in_round(self, values: RoundValues, epoch: int, event: e.RoundEvent) -> None:
        """In a lane's thread or the pool's: what computes a part is done at once, it is in the processor's cache.

        values: what the event is of. Another plan of the same epoch may have come meanwhile: its machine must not hear of it.
        """
        with self._changed:
            if self._values.get(epoch) is not values:
                return
            computing = self._perform(self._machine.handle_in_round(epoch, event, time.monotonic()))
            self._changed.notify_all()
            self._leases.look()
        for action, of_action in computing:
            if isinstance(action, e.PublishPart | e.AccumulateOwn):
                self._compute(action, of_action)
            else:
                self._around.pool.submit(self._compute, action, of_action)

    # -- actions, under the lock ---------------------------------------------------------------------------------------

    def _perform(self, actions: list[e.RunAction]) -> list[tuple[e.RunAction, RoundValues | None]]:
        """Returns those that compute, for when the lock is free, with the values of the round that they are of now."""
        return [(action, self._values_of(action)) for action in actions if not self._do(action)]

    def _values_of(self, action: e.RunAction) -> RoundValues | None:
        match action:
            case e.AccumulateOwn(epoch=epoch):
                return self._own_values(epoch)
            case e.PublishPart(epoch=epoch):
                return self._values.get(epoch)
            case _:
                return None

    def _do(self, action: e.RunAction) -> bool:
        """False when it is of those that compute."""
        match action:
            case e.SendMessage(to=to, message=message):
                self._send(to, message)
            case e.SendPart():
                self._send_part(action)
            case e.ForwardPart():
                self._forward_part(action)
            case e.SendResult():
                self._send_result(action)
            case e.OpenRound(epoch=epoch):
                if epoch in self._machine.rounds:  # else what was decided right after has dropped it
                    self._open_round(self._machine.rounds[epoch].plan)
            case e.DropRound(epoch=epoch):
                self._values.pop(epoch, None)
                self._around.pacemaker.round_closed(self.run, epoch)
                self._discard_frames(epoch)
            case e.LeaveRound(epoch=epoch, reason=reason):
                log.info("round.left", run=self.run, epoch=epoch, reason=reason)
            case e.FetchState():
                self._loop.call_soon_threadsafe(self._begin_fetch, action)
            case e.RecordTranscript():
                self._record(action)
            case e.WorkGivenUp():
                self._say_given_up(action)
            case e.RefuseLayout():
                self._refuse_layout(action.theirs)
            case _:
                return False
        return True

    def _open_round(self, plan: Plan) -> None:
        self._around.pacemaker.round_opened(plan, self._around.me)
        self._values[plan.epoch] = RoundValues(plan, self._buffers, self._around.me)
        self.rounds.open(plan, time.monotonic())
        log.debug(
            "round.opened",
            run=self.run,
            epoch=plan.epoch,
            contributors=plan.contributors,
            spans={span.owner: span.stop - span.start for span in plan.spans},
        )

    def _compute(self, action: e.RunAction, values: RoundValues | None) -> None:
        match action:
            case e.AccumulateOwn():
                self._guarded(self._accumulate_own, action, values)
            case e.PublishPart():
                self._guarded(self._publish, action, values)
            case e.FinishRound():
                self._guarded(self._finish, action)
            case e.SeedState():
                self._guarded(self._seed)
            case e.LoadTrainer():
                self._guarded(self._load_trainer, action)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """The pool would swallow what goes wrong: say it."""
        try:
            work(*arguments)
        except Exception:
            log.exception("run.work_failed", run=self.run, work=work.__name__)
            raise

    def _send(self, to: tuple[PeerId, ...], message: Message) -> None:
        data = encode(message)
        for peer in to:
            with contextlib.suppress(PeerUnreachable):
                self._around.transport.send_message(peer, data)

    def _send_part(self, action: e.SendPart) -> None:
        values, epoch = self._own_values(action.epoch), action.epoch
        if values is None:
            return
        header = self._header(FrameKind.CONTRIBUTION, action.epoch, action.part, action.term)
        samples = self._own_samples(epoch)
        codec = values.codec_of(action.part)

        def make_payload() -> memoryview | None:
            payload = values.contribution_payload(action.part)
            if payload is None:
                return None
            self.rounds.count_sent(epoch, len(payload) + FRAME_OVERHEAD_BYTES)
            return payload

        frame = OutgoingFrame(replace(header, codec=codec.code, packed=values.packing.is_wanted, samples=samples), make_payload)
        with contextlib.suppress(PeerUnreachable):
            self._around.transport.send_frames(action.to, [frame])

    def _forward_part(self, action: e.ForwardPart) -> None:
        values, epoch = self._values.get(action.epoch), action.epoch
        samples = values.weight_under(action.part, action.term) if values is not None else 0
        if values is None or samples == 0:
            return
        codec = reply_codec(values.codec_of(action.part))
        header = self._header(FrameKind.CONTRIBUTION, action.epoch, action.part, action.term)

        def make_payload() -> memoryview | None:
            payload = values.partial_payload(action.part, action.term)
            if payload is not None:
                self.rounds.count_sent(epoch, len(payload) + FRAME_OVERHEAD_BYTES)
            return payload

        frame = OutgoingFrame(replace(header, codec=codec.code, packed=values.packing.is_wanted, samples=samples), make_payload)
        with contextlib.suppress(PeerUnreachable):
            self._around.transport.send_frames(action.to, [frame])

    def _send_result(self, action: e.SendResult) -> None:
        values, epoch = self._values.get(action.epoch), action.epoch
        if values is None:
            return
        code, _ = values.result_payload(action.part)
        header = replace(
            self._header(FrameKind.RESULT, action.epoch, action.part, action.term),
            codec=code,
            packed=values.packing.is_wanted,
            samples=values.weight_of(action.part),
        )

        def make_payload() -> memoryview:
            _, payload = values.result_payload(action.part)  # refers to `values`, which keeps the memory from being used again
            self.rounds.count_sent(epoch, len(payload) + FRAME_OVERHEAD_BYTES)
            return payload

        for peer in action.to:
            with contextlib.suppress(PeerUnreachable):
                self._around.transport.send_frames(peer, [OutgoingFrame(header, make_payload)])

    def _discard_frames(self, epoch: int) -> None:
        """Of a round that is over for all that take part: a listener on a slow link must not be buried in old results."""
        tag = self.tag

        def is_stale(_peer: PeerId, header: FrameHeader) -> bool:
            return header.run == tag and header.epoch <= epoch and header.kind is not FrameKind.STATE

        self._around.transport.discard_frames(is_stale)

    def _header(self, kind: FrameKind, epoch: int, part: int, term: int) -> FrameHeader:
        return FrameHeader(kind=kind, codec=LOSSLESS.code, run=self.tag, epoch=epoch, term=term, part=part)

    def _own_samples(self, epoch: int) -> int:
        current = self._machine.rounds.get(epoch)
        return current.samples.get(self._around.me, 0) if current is not None else 0

    def _own_values(self, epoch: int) -> RoundValues | None:
        values = self._values.get(epoch)
        if values is not None and self._contribution is not None:
            values.contribution = self._contribution
            self.rounds.begin(epoch, time.monotonic())
            return values
        return None

    # -- computing, in the pool ----------------------------------------------------------------------------------------

    def _accumulate_own(self, action: e.AccumulateOwn, values: RoundValues | None) -> None:
        with self._changed:
            is_there = values is not None and self._values.get(action.epoch) is values
            samples = self._own_samples(action.epoch) if is_there else 0
        if values is not None and samples > 0:
            values.add_own(action.part, samples, action.term)
            done = e.PartAccumulated(sender=self._around.me, part=action.part, term=action.term)
            self._handle_in_round(values, action.epoch, done)

    def _publish(self, action: e.PublishPart, values: RoundValues | None) -> None:
        if values is not None:
            values.publish(action.part, action.term)
            self._handle_in_round(values, action.epoch, e.PartPublished(part=action.part))

    def _finish(self, action: e.FinishRound) -> None:
        with self._changed:
            values, version = self._values.pop(action.epoch, None), self._versions.current
            plan = self._machine.rounds[action.epoch].plan if action.epoch in self._machine.rounds else None
            granted = self._machine.granted()
            if values is None or version is None or plan is None or version.epoch != action.epoch:
                return
            is_base = self.seat is not None and self.seat.base is version
            in_place = (not is_base or action.counted) and self._versions.give_up_current(time.monotonic())
            if in_place and is_base and self._contribution is not None:  # one of an older base waits for a later round
                self._contribution.end()
        self.rounds.finish(action, time.monotonic())
        optimizer = OuterOptimizer(learning_rate=plan.outer_learning_rate, momentum=plan.outer_momentum)
        ledgers = granted.settled(values.reports.found, plan.grants).to_bytes()
        samples = values.counted_samples()
        try:
            stepped = version.stepped(optimizer, values.results, samples, ledgers=ledgers, in_place=in_place)
        except RoundFailed as error:  # the same on every replica: the epoch passes, and no sample of it was used
            log.error("round.not_finite", run=self.run, epoch=action.epoch, reason=error.reason)
            stepped = Version.of(version.state, version.epoch + 1, version.samples, granted.to_bytes())
        self.rounds.stepped(action.epoch, stepped.state_hash)
        self._hold(stepped)
        log.info(
            "round.finished",
            run=self.run,
            epoch=action.epoch,
            peers=len(action.contributors),
            lost=len(action.lost),
            repaired=action.repaired,
            state_hash=stepped.state_hash[:12],
        )

    def _seed(self) -> None:
        seat = self.seat
        if seat is None:
            return
        momentum = np.zeros(seat.layout.parameter_count, np.float32)
        self._hold(Version.of(OuterState(anchor=seat.trainer.exchange.copy(), momentum=momentum), 0, 0), fresh=True)
        log.info("run.seeded", run=self.run)

    def _hold(self, version: Version, *, fresh: bool = False, ancestors: tuple[str, ...] = ()) -> None:
        with self._changed:
            self._versions.hold(version, time.monotonic())
            held = e.StateHeld(
                epoch=version.epoch,
                state_hash=version.state_hash,
                samples=version.samples,
                ancestors=ancestors,
                ledgers=Ledgers.from_bytes(version.ledgers),
            )
            self._save_if_wanted()
            self.handle(held)
            seat = self.seat
        if seat is not None and not seat.is_attached:
            self._let_in(seat, fresh)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _next_epoch(self) -> int | None:
        """Whose state can be saved by all: the one that the round under way leads to, else the one that is held."""
        epoch = self._machine.epoch
        return epoch if epoch is None or not self._machine.is_trained() else epoch + 1

    def _save_if_wanted(self) -> None:
        """The caller holds the lock: the values are lent before they can be stepped in place."""
        version = self._versions.current
        if version is None or not self.snapshots.wants(version.epoch):
            return
        self._save()

    def save_last(self) -> None:
        """At the end of this daemon: what was averaged since the last snapshot is not lost with the process."""
        with self._changed:
            version = self._versions.current
            if version is None or self.snapshots.is_saved(version.epoch) or version.state.size_bytes > LARGEST_LAST_BYTES:
                return
            if version.epoch > 0:  # else it is what a script makes anyhow
                self._save(agreeing=self._machine.agreeing())

    def _save(self, agreeing: Collection[PeerId] = ()) -> None:
        """The caller holds the lock."""
        loan = self._versions.lend_current()
        assert loan is not None
        epoch, state_hash = loan.version.epoch, loan.version.state_hash
        entry = self.rounds.entry(epoch - 1)
        moment = Moment(
            layout=self._machine.layout,
            model=self._model,
            ancestors=self._machine.ancestry.short(state_hash),
            members=[peer for peer, _ in entry.contributors] if entry is not None else self._machine.trained_by(),
            agreeing=agreeing,
        )
        self.snapshots.save_soon(loan, moment)

    def _tell_all(self, message: Message) -> None:
        self._send(tuple(sorted(self._machine.connected)), message)

    # -- the state for others, and from others -------------------------------------------------------------------------

    def _offer_state(self, sender: PeerId, ask: AskState) -> None:
        tag = self.tag
        self._around.transport.discard_frames(
            lambda to, header: (to, header.run, header.kind) == (sender, tag, FrameKind.STATE) and header.epoch != ask.epoch
        )  # it has given up the version that it asked for before
        with self._changed:
            loan = self._versions.find(ask.epoch, ask.state_hash, time.monotonic())
            ancestors = self._machine.ancestry.short(ask.state_hash)
        if loan is not None:
            self._around.transport.prepare(sender)  # lanes open while it reads the manifest
        manifest = msgpack.packb(loan.version.manifest.to_wire()) if loan is not None else b""
        offer = StateOffer(run=self.run, epoch=ask.epoch, state_hash=ask.state_hash, manifest=manifest, ancestors=ancestors)
        self._send((sender,), offer)

    def _send_pieces(self, sender: PeerId, ask: AskPieces) -> None:
        with self._changed:
            loan = self._versions.find(ask.epoch, ask.state_hash, time.monotonic())
        if loan is None:
            return
        self._around.pacemaker.state_asked(sender, ask.donors)
        frames = []
        for piece in dict.fromkeys(ask.pieces):
            header = self._header(FrameKind.STATE, ask.epoch, piece, version_tag(ask.state_hash))
            frames.append(OutgoingFrame(header, partial(self._state_payload, loan, piece)))
        with contextlib.suppress(PeerUnreachable):
            self._around.transport.send_frames(sender, frames)

    def _state_payload(self, loan: Loan, piece: int) -> memoryview:
        payload = piece_bytes(loan.version.manifest.span(piece).of(loan.version.state))
        self.rounds.count_sent(None, len(payload) + FRAME_OVERHEAD_BYTES)
        return payload

    def _begin_fetch(self, action: e.FetchState) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
        if not self._closed:
            self._fetching = self._around.tasks.create_task(self._fetch_state(action), name="run.fetch")

    async def _fetch_state(self, action: e.FetchState) -> None:
        log.info("state.fetching", run=self.run, epoch=action.epoch, donors=len(action.donors))
        local = self.seat.initial_values() if self.seat is not None else None
        for donor in action.donors:
            self._around.transport.prepare(donor)
        fetch = Fetch(self.run, action.epoch, action.state_hash, action.donors, lambda p, m: self._send((p,), m), local)
        self._fetch = fetch
        try:
            found = await fetch.run()
        finally:
            if self._fetch is fetch:  # else a newer one has taken its place
                self._fetch = None
        if found is None or not self._fits(found[0]):
            self.handle(e.FetchFailed(epoch=action.epoch, state_hash=action.state_hash))
            return
        state, manifest = found
        with self._changed:
            if self._contribution is not None:
                self._contribution.forget()
            if self.seat is not None:
                self.seat.forget_residual()
        hold = partial(self._hold, Version(state, manifest), ancestors=fetch.ancestors)
        await self._loop.run_in_executor(None, hold)
        log.info("state.fetched", run=self.run, epoch=action.epoch, values=state.count)

    def _fits(self, state: OuterState) -> bool:
        seat = self.seat
        return seat is None or (seat.layout.count, seat.layout.parameter_count) == (state.count, state.parameter_count)

    # -- records -------------------------------------------------------------------------------------------------------

    def _record(self, action: e.RecordTranscript) -> None:
        transcript = sign_transcript(self.run, action, self._around.sign)
        self.rounds.record(transcript)
        self._send(action.to, transcript)

    def _say_given_up(self, action: e.WorkGivenUp) -> None:
        self.given_up_samples += action.samples
        log.warning(
            "run.work_given_up",
            run=self.run,
            samples=action.samples,
            epochs=action.epochs,
            reason=f"{self._around.name_of(action.by)} and others counted more samples while they did not reach this peer",
        )

    def _refuse_layout(self, theirs: str) -> None:
        seat = self.seat
        if seat is not None:
            error = LayoutMismatch(
                f"others train {self.run!r} with {describe_difference(seat.shape.layout, theirs)}",
                "use the same script, or another run name",
            )
            self._loop.call_soon_threadsafe(seat.trainer.say_refused, error)
