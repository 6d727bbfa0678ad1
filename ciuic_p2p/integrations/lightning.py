"""For Lightning: a callback that takes part in a run. Knows the Trainer's hooks, and no daemon.

    Trainer(max_epochs=10, callbacks=[CiuicCallback("my-run", sync=ciuic.DiLoCo(inner_steps=25))]).fit(module, loader)

Works with `lightning` and with `pytorch_lightning`: with the one that was imported before this, else with the one installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ciuic_p2p.errors import LocalError
from ciuic_p2p.integrations.participation import Participation, SamplesOf, missing, refuse_several_processes, rows_in
from ciuic_p2p.train.run import Run
from ciuic_p2p.train.strategies import DiLoCo

_DEFAULT_SYNC = DiLoCo()
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """Each package has a class of its own, and a Trainer refuses the other's."""
    imported = [package for package in _PACKAGES if package in sys.modules]
    installed = [package for package in _PACKAGES if find_spec(package.partition(".")[0])]
    try:
        return import_module((imported or installed or _PACKAGES)[0]).Callback
    except ImportError as error:
        raise missing("lightning", error) from None


class CiuicCallback(_callback_class()):  # type: ignore[misc]  # which class it is depends on what is installed
    """Joins when training begins, steps with the optimizer, leaves when training ends, by an exception or Ctrl-C as well.

    Counts the samples of all batches since the last step of the optimizer, whatever `accumulate_grad_batches` and the end of a
    pass make of them. At each new anchor the run's metrics go to the Trainer's loggers. Raises what `ciuic.join` raises, out of
    `Trainer.fit`; LocalError for manual optimisation, and so for several optimizers, for several processes, and when a batch
    does not tell its size.
    """

    def __init__(
        self,
        run_name: str,
        sync: DiLoCo = _DEFAULT_SYNC,
        *,
        home: str | Path | None = None,
        until_epoch: int | None = None,
        samples_of: SamplesOf = rows_in,
    ) -> None:
        """until_epoch: training stops when the run is there. samples_of: from a batch to a number."""
        super().__init__()
        self._part = Participation(run_name, sync, home, until_epoch)
        self._samples_of = samples_of
        self._steps_seen = 0
        self._moved = False
        self._hook: Any = None

    @property
    def run(self) -> Run | None:
        """Of the last training, which it outlives; None before the first."""
        return self._part.run

    def leave(self) -> None:
        """May be called at any time, also twice. The model keeps the values that it has."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._part.leave()

    # -- what the Trainer calls --------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Before anything was computed."""
        refuse_several_processes(trainer.world_size)
        if not pl_module.automatic_optimization:
            # Lightning allows several optimizers here only.
            optimizers = f"{len(trainer.optimizers)} optimizer{'s' * (len(trainer.optimizers) != 1)}"
            what = f"the module steps its {optimizers} by itself (automatic_optimization=False); a run counts the steps of one"
            raise LocalError(what, "use automatic optimisation, or call ciuic.join and run.step in the module instead")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """After a checkpoint was read: the run's values are newer."""
        self._part.join(pl_module, trainer.optimizers[0])
        self._hook = trainer.optimizers[0].register_step_post_hook(self._optimizer_stepped)
        self._steps_seen, self._moved = trainer.global_step, False
        trainer.should_stop = trainer.should_stop or self._part.is_done

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = _loss_in(outputs, trainer.accumulate_grad_batches)
        if loss is not None:  # else training_step left the batch out
            self._part.count(self._samples_of(batch), loss)
        if trainer.global_step == self._steps_seen:
            return
        moved, self._steps_seen, self._moved = self._moved, trainer.global_step, False
        if self._part.step(moved=moved):
            for logger in trainer.loggers:
                # What Lightning logs of this batch has the number of steps before it.
                logger.log_metrics(self._part.figures(), step=trainer.global_step - 1)
            trainer.should_stop = trainer.should_stop or self._part.is_done

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.leave()

    def _optimizer_stepped(self, *_: Any) -> None:
        """Not called when a gradient scaler skips a step, which Lightning counts all the same."""
        self._moved = True


def _loss_in(outputs: Any, batches_a_step: int) -> Any:
    """The mean over the batch. Lightning has divided it by the number of batches that make a step."""
    loss = outputs if hasattr(outputs, "detach") else (outputs or {}).get("loss")
    return None if loss is None else loss * batches_a_step
