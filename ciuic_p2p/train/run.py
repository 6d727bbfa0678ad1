"""`join` and `Run`: the hook in the user's training loop. Knows what the daemon says, nothing of peers or network."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.utils.data import DataLoader

from ciuic_p2p.config import home_from
from ciuic_p2p.data.indexed import Records
from ciuic_p2p.data.naming import mark_dataset
from ciuic_p2p.data.order import Order
from ciuic_p2p.data.pipeline import Pipeline
from ciuic_p2p.data.positions import UNBOUNDED, slots_from_plain
from ciuic_p2p.errors import ConfigError, DaemonGone, LocalError, MalformedMessage
from ciuic_p2p.local import checks
from ciuic_p2p.local.protocol import Advanced, AskLease, Attached, Position, Ready
from ciuic_p2p.train.attachment import Attachment
from ciuic_p2p.train.flat import FlatModel
from ciuic_p2p.train.kept_optimizer import KeptOptimizer
from ciuic_p2p.train.loading import LeasedLoader, batches_ahead, records_of, require_count, require_options
from ciuic_p2p.train.log import get_log
from ciuic_p2p.train.reading import LeasedStream, documents_ahead, require_stream
from ciuic_p2p.train.shares import Lease, Share, count_samples
from ciuic_p2p.train.strategies import DiLoCo
from ciuic_p2p.train.tally import Tally, count_of

log = get_log(__name__)

REPORT_S = 1.0
"""The shortest time between two reports of progress."""
_DEFAULT_SYNC = DiLoCo()


def join(
    run_name: str,
    model: Any,  # torch.nn.Module
    optimizer: Any,  # torch.optim.Optimizer over parameters of `model`
    sync: DiLoCo = _DEFAULT_SYNC,
    home: str | Path | None = None,
    *,
    keep_optimizer: bool = False,
) -> Run:
    """Takes part in the run of this name, through the daemon of `home` (default: CIUIC_HOME, else the user's data folder).

    keep_optimizer: the optimizer's own state, such as Adam's moments, is saved on this machine whenever a snapshot of the run
    is, and given back to a trainer that joins again with an optimizer that has none. It is neither averaged nor shared.

    Returns once the model holds the run's parameters: the swarm's, or its own when it is the first. A context manager.
    Raises NoDaemon, LayoutMismatch when others train another model under this name, LocalError for a model that cannot be
    shared, ConfigError for a name or a setting that is none.
    """
    try:
        checks.run_name("the run's name", run_name)
    except MalformedMessage:
        raise ConfigError(f"{run_name!r} is no name for a run", "use 1 to 128 printable characters") from None
    _check_optimizer(model, optimizer)
    flat = FlatModel(model)
    if not flat.is_finite():
        raise LocalError("the model holds values that are not finite", "start from a sound initialisation or checkpoint")
    folder = home_from(home)
    attachment = Attachment(folder, run_name, flat.layout, sync.settings())
    try:
        flat.share_memory(attachment.exchange.values)
        flat.write()
        attached = attachment.attach()
        flat.load()
        kept = KeptOptimizer(folder, run_name, model, optimizer) if keep_optimizer else None
        if kept is not None:
            kept.forget() if attached.fresh else kept.give_back(attached.epoch, attached.state_hash)
    except BaseException:
        flat.close()
        attachment.leave()
        raise
    return Run(run_name, flat, attachment, attached, sync.inner_steps, kept, folder)


class Run:
    """One trainer's part in a run. Attributes change only inside `step`, and between two batches of `shard`."""

    def __init__(
        self,
        name: str,
        flat: FlatModel,
        attachment: Attachment,
        attached: Attached,
        inner_steps: int,
        kept: KeptOptimizer | None = None,
        home: Path | None = None,
    ) -> None:
        self.name = name
        self.epoch = attached.epoch
        """Outer steps of the run so far."""
        self.state_hash = attached.state_hash
        """Of the anchor that this trainer loaded; the same on every peer at the same epoch."""
        self.peers: tuple[str, ...] = ()
        """Names of those whose contributions are in the last anchor."""
        self.bytes_sent = attached.bytes_sent
        """By this peer for this run, before this trainer joined as well; the same for `bytes_received`."""
        self.bytes_received = attached.bytes_received
        self.samples = 0
        """Trained on by this trainer since it joined."""
        self._flat = flat
        self._attachment = attachment
        self._inner_steps = inner_steps
        self._kept = kept
        self._home = home
        self._tally = Tally()
        self._last_round: Advanced | None = None
        self._loss: float | None = None
        self._reported_s = time.monotonic()
        self._shares: dict[str, Share] = {}
        self._counted: Attached | Advanced = attached
        """What the daemon last said; its totals begin again at 0 when it is restarted."""
        self._left = False

    def step(self, samples: int, loss: Any = None) -> bool:
        """Call after each step of the optimizer, with the number of samples that it saw and its mean loss (number or tensor).

        Every `inner_steps`-th call averages with the other peers and loads the new anchor into the model; it then returns True.
        The optimizer keeps its state. Raises DaemonGone when a restarted daemon does not come back in time.
        """
        self._check_not_left()
        count = count_of(samples)
        self._tally.add(count, loss)
        self.samples += count
        if self._tally.steps >= self._inner_steps:
            return self._synchronise()
        self._report_progress()
        return False

    def shard(
        self,
        dataset: Any,
        batch_size: int,
        shuffle_seed: int = 0,
        name: str = "data",
        batches_a_step: int = 1,
        **loader_options: Any,
    ) -> DataLoader | LeasedStream:
        """This peer's share of a dataset, as a DataLoader: each iteration over it is one pass over the share.

        dataset: map-style; or a URL, a path or a Source, whose records are fetched and indexed first (`data.Records`); or a
        `data.Pipeline` with passes=None, whose documents are divided: its batches come without end, and not by a DataLoader.

        In each pass, in another order each time, every sample is trained on once over all peers: a share follows from how
        fast its trainer is, what a lost peer had not contributed goes to others, and how far all are is a part of the run's
        state. Options such as `num_workers` and `drop_last` go to the DataLoader. Every peer must use the same `shuffle_seed`
        and the same dataset, of which the length is compared, and of files the contents; name: tells several of a run apart.

        Every batch is to be trained on: call `step` after each, or after every `batches_a_step`. Raises LocalError for a
        dataset that is empty, has no length, or is not the one that the run knows by this name.
        """
        self._check_not_left()
        require_count("batch_size", batch_size)
        require_count("batches_a_step", batches_a_step)
        if isinstance(dataset, Pipeline):
            require_stream(dataset, loader_options)
            return self._shard_stream(dataset.batch(batch_size), name, batch_size * batches_a_step)
        require_options(loader_options)
        dataset = records_of(dataset, self._home)
        count = count_samples(dataset)
        ledger = mark_dataset(name, dataset.fingerprint, shuffle_seed) if isinstance(dataset, Records) else name
        batches_a_round = (self._inner_steps + 2) * batches_a_step + batches_ahead(loader_options)
        share = self._share_of(name, ledger, count, batches_a_round * batch_size)
        order = Order(count, shuffle_seed)

        def estimate() -> int:
            return -(-count // self.position().count)

        return LeasedLoader(dataset, batch_size, order, share, self._supply, estimate, **loader_options)

    def _shard_stream(self, pipeline: Pipeline, name: str, samples_a_step: int) -> LeasedStream:
        pipeline = pipeline if self._home is None else pipeline.with_home(self._home)
        documents = (self._inner_steps + 2) * samples_a_step + documents_ahead(pipeline)
        ledger = mark_dataset(name, pipeline.fingerprint)
        return LeasedStream(pipeline, self._share_of(name, ledger, UNBOUNDED, documents), self._supply_stream)

    def position(self) -> Position:
        """This trainer is the `index`-th of `count` that divide the data among them, now."""
        self._check_not_left()
        while True:
            try:
                return self._attachment.position()
            except DaemonGone:
                self._attach_again()

    def metrics(self) -> dict[str, Any]:
        """Plain data for a log or a dashboard; `loss` and `seconds` are those of the last round, None before the first."""
        return {
            "run": self.name,
            "epoch": self.epoch,
            "state_hash": self.state_hash,
            "peers": list(self.peers),
            "samples": self.samples,
            "loss": self._loss,
            "seconds": self._last_round.seconds if self._last_round else None,
            "counted": self._last_round.counted if self._last_round else None,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
        }

    def leave(self) -> None:
        """Ends this trainer's part; the run goes on in the daemon. The model keeps the values that it has."""
        if not self._left:
            self._left = True
            try:
                self._flat.close()
            finally:
                self._attachment.leave()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.leave()

    def _synchronise(self) -> bool:
        """Whether there is a new anchor; False when the round of this trainer begins anew from another one."""
        while True:
            try:
                advanced = self._attachment.advance(self._hand_over())
            except DaemonGone:
                if not self._attach_again():
                    return False
            else:
                self._load(advanced)
                if advanced.saving and self._kept is not None:
                    self._kept.save(advanced.epoch, advanced.state_hash)
                return True

    def _share_of(self, name: str, ledger: str, count: int, samples_a_round: int) -> Share:
        """The same share for each loader over the same dataset. ledger: what the run calls it. Raises LocalError."""
        try:
            checks.run_name("a dataset's name", name)
            checks.run_name("a dataset's name", ledger)
        except MalformedMessage:
            raise LocalError(f"{name!r} is no name for a dataset", "use 1 to 100 printable characters") from None
        share = self._shares.get(name)
        if share is None:
            share = Share(ledger, count, samples_a_round, self._ask_lease)
            share.refresh()
            self._shares[name] = share
        remedy = "give another dataset its own name: run.shard(…, name=…)"
        if share.count != count:
            raise LocalError(f"dataset {name!r} had {share.count} samples before, and has {count} now", remedy)
        if share.dataset != ledger:
            raise LocalError(f"dataset {name!r} had other contents before, or another order", remedy)
        share.samples_a_round = max(share.samples_a_round, samples_a_round)
        return share

    def _ask_lease(self, share: Share, waits: bool) -> Lease:
        self._check_not_left()
        while True:
            try:
                return self._lease_now(share, waits=waits)
            except DaemonGone:
                self._attach_again()

    def _lease_now(self, share: Share, *, waits: bool) -> Lease:
        ask = AskLease(dataset=share.dataset, count=share.count, samples=share.samples_a_round, waits=waits)
        leased = self._attachment.lease(ask)
        return Lease(slots_from_plain(leased.slots), leased.open_pass)

    def _supply(self, share: Share) -> None:
        """All that this trainer holds is used. What it has trained makes room for more; else others or the next round do."""
        if self._tally.steps:
            share.ran_dry(self._tally.steps, self._inner_steps)
            log.info("lease.used_up", dataset=share.dataset, steps=self._tally.steps)
            self._synchronise()
        elif share.used.count:
            what = f"all that this peer holds of dataset {share.dataset!r} was handed out, and step was never called"
            remedy = "call run.step after each batch, or say batches_a_step; read what is not trained on by another DataLoader"
            raise LocalError(what, remedy)
        else:
            share.wait()

    def _supply_stream(self, share: Share) -> None:
        """As `_supply`; and what is held may be too little for one batch, when most of it was cleaned away or is short."""
        if self._tally.steps == 0 and not share.used.count and share.holds_something():
            log.info("lease.too_small", dataset=share.dataset, samples=share.samples_a_round)
            share.more()
            self._synchronise()  # without weight: a plan that grants more comes with the next round
        else:
            self._supply(share)

    def _hand_over(self) -> Ready:
        """Writes the local parameters into the exchange, unless they are broken."""
        if self._flat.is_finite():
            self._flat.write_trained()
            used = {share.dataset: share.report() for share in self._shares.values() if share.used.count}
            return self._tally.ready(used)
        log.warning("contribution.withheld", why="the model holds values that are not finite", epoch=self.epoch)
        return self._tally.ready_without_weight()

    def _load(self, advanced: Advanced) -> None:
        self._loss = self._tally.loss
        self._start_from(advanced)
        self.peers = advanced.peers
        self._count_bytes(advanced)
        self._last_round = advanced

    def _attach_again(self) -> bool:
        """Whether the restarted daemon has the anchor that this trainer started from, so that its steps still count."""
        attached = self._attached_again()
        self._counted = attached
        if attached.state_hash == self.state_hash:
            return True
        log.warning("anchor.changed", epoch=attached.epoch, steps_lost=self._tally.steps)
        self._start_from(attached)
        return False

    def _attached_again(self) -> Attached:
        """A daemon that was restarted knows what is read here before it hears of a contribution."""
        while True:
            attached = self._attachment.attach_again(self._offer_parameters)
            try:
                for share in self._shares.values():
                    self._lease_now(share, waits=False)
            except DaemonGone:
                continue
            return attached

    def _start_from(self, anchor: Attached | Advanced) -> None:
        self._flat.load()
        self.epoch = anchor.epoch
        self.state_hash = anchor.state_hash
        self._tally = Tally()
        for share in self._shares.values():
            share.anchor_loaded()
        self._reported_s = time.monotonic()

    def _count_bytes(self, advanced: Advanced) -> None:
        self.bytes_sent += advanced.bytes_sent - self._counted.bytes_sent
        self.bytes_received += advanced.bytes_received - self._counted.bytes_received
        self._counted = advanced

    def _offer_parameters(self) -> None:
        """A daemon that lost the run starts it again from here."""
        if self._flat.is_finite():
            self._flat.write()

    def _report_progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s >= REPORT_S:
            self._reported_s = now_s
            self._attachment.report(self._tally.progress())

    def _check_not_left(self) -> None:
        if self._left:
            raise LocalError(f"this trainer has left run {self.name!r}", "call ciuic.join again")


def _check_optimizer(model: Any, optimizer: Any) -> None:
    parameters = {id(parameter) for parameter in model.parameters()}
    optimized = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not any(id(parameter) in parameters for parameter in optimized):
        raise LocalError("the optimizer holds no parameter of this model", "make it with model.parameters()")
