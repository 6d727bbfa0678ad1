"""A trainer's part in a run, as callbacks of training libraries need it: joined late, counted by the batch, left once.

Knows no such library: only models, optimizers, and what went through them between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ciuic_p2p.errors import ConfigError, LocalError
from ciuic_p2p.train.log import get_log
from ciuic_p2p.train.run import Run, join
from ciuic_p2p.train.strategies import DiLoCo

log = get_log(__name__)

SamplesOf = Callable[[Any], int]
"""Tells how many samples a batch holds."""


class Participation:
    """Between `join` and `leave` it counts batches, and passes them to the run when the optimizer has stepped."""

    def __init__(self, run_name: str, sync: DiLoCo, home: str | Path | None, until_epoch: int | None) -> None:
        """until_epoch: the run's epoch at which this trainer has done its part; None for never. Raises ConfigError."""
        if until_epoch is not None and (isinstance(until_epoch, bool) or not isinstance(until_epoch, int) or until_epoch < 1):
            raise ConfigError(f"until_epoch={until_epoch!r} is no epoch", "use a whole number from 1, or None")
        self._run_name, self._sync, self._home = run_name, sync, home
        self._until_epoch = until_epoch
        self.run: Run | None = None
        """The last one that was joined; None before."""
        self._forget_batches()

    def join(self, model: Any, optimizer: Any) -> None:
        """As `ciuic.join`. A run that an interrupted training left open is left first."""
        self.leave()
        self.run = join(self._run_name, model, optimizer, sync=self._sync, home=self._home)
        self._forget_batches()

    def count(self, samples: int, loss: Any = None, *, is_share: bool = False) -> None:
        """One batch went through the model. loss: a number or a tensor; None where it is not known.

        It is the mean over the batch, or with `is_share` what the batch adds to the mean over the whole step.
        """
        self._samples += samples
        if loss is not None:
            self._losses.append((None if is_share else samples, loss.detach() if hasattr(loss, "detach") else loss))

    def step(self, moved: bool = True) -> bool:
        """Call after each step of the optimizer; whether the model has a new anchor now.

        moved: False for a step that was skipped, such as a gradient scaler does at an overflow. It counts as time, not as work.
        """
        assert self.run is not None, "step before join"
        samples, loss = (self._samples if moved else 0), self._mean_loss()
        self._forget_batches()
        if not self.run.step(samples=samples, loss=loss):
            return False
        log.info("round.finished", **self.run.metrics())
        return True

    @property
    def is_done(self) -> bool:
        """Whether the run has come to `until_epoch`."""
        return self.run is not None and self._until_epoch is not None and self.run.epoch >= self._until_epoch

    def figures(self) -> dict[str, float]:
        """The run's metrics that are numbers, under names for a log; empty when there is no run."""
        if self.run is None:
            return {}
        metrics = self.run.metrics()
        metrics["peers"] = len(metrics["peers"])
        numbers = ("epoch", "peers", "samples", "loss", "seconds", "bytes_sent", "bytes_received")
        return {f"ciuic/{name}": metrics[name] for name in numbers if metrics[name] is not None}

    def leave(self) -> None:
        """May be called at any time, also twice."""
        if self.run is not None:
            self.run.leave()

    def _mean_loss(self) -> Any:
        """Not read, so that nothing waits for a device."""
        shares = [loss for samples, loss in self._losses if samples is None]
        means = [(samples, loss) for samples, loss in self._losses if samples]
        if shares:
            return sum(shares)
        return sum(samples * loss for samples, loss in means) / sum(samples for samples, _ in means) if means else None

    def _forget_batches(self) -> None:
        self._samples = 0
        self._losses: list[tuple[int | None, Any]] = []


def rows_in(batch: Any) -> int:
    """Length of the first tensor or array with a dimension in it. Raises LocalError when there is none."""
    found = next(_lengths(batch), None)
    if found is None:
        what = f"a batch of type {type(batch).__name__} holds no tensor that tells how many samples it has"
        raise LocalError(what, "pass samples_of=, a function from a batch to a number")
    return found


def _lengths(batch: Any) -> Iterator[int]:
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for each in batch:
            yield from _lengths(each)
    elif getattr(batch, "shape", ()):
        yield int(batch.shape[0])


def missing(library: str, error: ImportError) -> LocalError:
    """What to raise where a library cannot be imported."""
    what = f"{library} is not installed" if isinstance(error, ModuleNotFoundError) else f"{library}: {error}"
    return LocalError(what, "run: pip install 'ciuic-p2p[integrations]'")


def refuse_several_processes(count: int) -> None:
    """Raises LocalError when more than one process trains the model on this machine."""
    if count > 1:
        what = f"{count} processes train this model together; a run takes one trainer from each daemon"
        raise LocalError(what, "start one process, or one daemon with its own --home for each")
