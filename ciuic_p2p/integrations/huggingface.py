"""For `transformers.Trainer`: a callback that takes part in a run. Knows the Trainer's hooks, and no daemon.

    with CiuicCallback("my-run", sync=ciuic.DiLoCo(inner_steps=25)) as callback:
        Trainer(model=model, args=args, train_dataset=dataset, callbacks=[callback]).train()

A Trainer tells its callbacks nothing of an exception: `with` leaves the run then. Without it the run is left at the end of a
training that went well, when the process ends, or when the callback's next training begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ciuic_p2p.errors import LocalError
from ciuic_p2p.integrations.participation import Participation, SamplesOf, missing, refuse_several_processes, rows_in
from ciuic_p2p.train.log import get_log
from ciuic_p2p.train.run import Run
from ciuic_p2p.train.strategies import DiLoCo

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing("transformers", error) from None

log = get_log(__name__)

_DEFAULT_SYNC = DiLoCo()
_ITEMS = "num_items_in_batch"
"""What a Trainer passes to models that divide their loss by the items (tokens) of the whole step, not of one batch."""


class CiuicCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy
    """Joins when training begins, steps with the optimizer, leaves when training ends. Adds the run's metrics to the logs.

    Samples are the rows that went through the model in training mode since the last step, whatever gradient accumulation and
    the end of a pass make of them. The loss is the one that the model returns; where the Trainer computes it, the run has none.
    Raises what `ciuic.join` raises, out of `Trainer.train`; LocalError when several processes or GPUs train, and when a batch
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
        """until_epoch: training stops when the run is there. samples_of: from the model's keyword arguments to a number."""
        self._part = Participation(run_name, sync, home, until_epoch)
        self._samples_of = samples_of
        self._hook: Any = None

    @property
    def run(self) -> Run | None:
        """Of the last training, which it outlives; None before the first."""
        return self._part.run

    def add_to(self, trainer: Any) -> CiuicCallback:
        """Before all other callbacks, so that those which report (TensorBoard, W&B) get the run's metrics as well."""
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def leave(self) -> None:
        """May be called at any time, also twice. The model keeps the values that it has."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._part.leave()

    def __enter__(self) -> CiuicCallback:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.leave()

    # -- what the Trainer calls --------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self.leave()
        refuse_several_processes(args.world_size)
        _refuse_several_gpus(args.n_gpu)
        if args.data_seed is None:
            log.warning("data.order_alike", why="peers with the same seed train on the same batches", remedy="set data_seed")
        self._part.join(found["model"], found["optimizer"])
        self._hook = found["model"].register_forward_hook(self._batch_went_through, with_kwargs=True)
        control.should_training_stop = control.should_training_stop or self._part.is_done

    def on_step_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        """After evaluation was decided on and before it is done: what is evaluated and saved is the new anchor."""
        if self._part.step(moved=not getattr(found["optimizer"], "step_was_skipped", False)):
            control.should_log = control.should_log or args.logging_strategy != "no"
            control.should_training_stop = control.should_training_stop or self._part.is_done

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **found: Any) -> None:
        """The Trainer has put a copy of `logs` into its history."""
        if logs is not None and "loss" in logs:
            logs.update(self._part.figures())
            state.log_history[-1].update(self._part.figures())

    def on_train_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self.leave()

    def _batch_went_through(self, model: Any, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if not model.training:
            return
        batch = {name: value for name, value in named.items() if name != _ITEMS} or inputs
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        self._part.count(self._samples_of(batch), loss, is_share=named.get(_ITEMS) is not None)


def _refuse_several_gpus(count: int) -> None:
    """A Trainer that sees several uses all, by DataParallel, whose replicas give losses on devices of their own."""
    if count > 1:
        what = f"this Trainer spreads each batch over {count} GPUs"
        raise LocalError(what, "set CUDA_VISIBLE_DEVICES to one of them, with a daemon and a process for each")
