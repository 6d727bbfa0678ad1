"""The callback for transformers.Trainer: what it counts, what it logs, and that it leaves however training ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from integration_kit import ACCUMULATE, BATCH, MEAN, ROWS, KnownLoss, averaging, handed_over, wait_for
from local_kit import AveragingHost
from torch import Tensor, nn

import ciuic_p2p as ciuic

transformers = pytest.importorskip("transformers", reason="the extra 'integrations' is not installed")
pytest.importorskip("accelerate", reason="the extra 'integrations' is not installed")

from ciuic_p2p.integrations.huggingface import CiuicCallback  # noqa: E402  # needs transformers

SYNC = ciuic.DiLoCo(inner_steps=2)


class MeanOfBatch(KnownLoss):
    """As models outside of transformers give it."""

    def forward(self, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.losses(labels).mean()}


class ShareOfStep(KnownLoss):
    """As transformers' own models give it: divided by the items of all batches that make a step."""

    def forward(self, labels: Tensor, num_items_in_batch: Any = None, **others: Any) -> dict[str, Tensor]:
        losses = self.losses(labels)
        return {"loss": losses.mean() if num_items_in_batch is None else losses.sum() / num_items_in_batch}


class Recorder(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **found: Any) -> None:
        self.logs.append(dict(logs))


class Rows(torch.utils.data.Dataset):
    def __init__(self, at_end: BaseException | None = None) -> None:
        self._at_end = at_end
        self.asked = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.asked += 1
        if self._at_end is not None and self.asked > 2 * ROWS:
            raise self._at_end
        return {"labels": torch.tensor([index])}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AveragingHost]:
    with averaging(tmp_path) as host:
        yield host


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., transformers.Trainer]:
    def make(model: nn.Module, rows: Rows | None = None, callbacks: Any = (), **settings: Any) -> transformers.Trainer:
        usual = {"per_device_train_batch_size": BATCH, "gradient_accumulation_steps": ACCUMULATE, "save_strategy": "no"}
        usual |= {"report_to": "none", "disable_tqdm": True, "num_train_epochs": 3, "use_cpu": True, "data_seed": 1}
        arguments = transformers.TrainingArguments(str(tmp_path / "out"), **(usual | settings))
        rows = rows or Rows()
        return transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=list(callbacks))

    return make


@pytest.mark.parametrize("model", [MeanOfBatch, ShareOfStep])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"eval_strategy": "steps", "eval_steps": 1},
        {"bf16": True},
        {"torch_compile": True, "torch_compile_backend": "eager"},
    ],
    ids=["plain", "evaluated", "bfloat16", "compiled"],
)
def test_each_round_has_the_samples_and_the_loss_of_its_steps(
    host: AveragingHost, make: Any, tmp_path: Path, model: type[nn.Module], settings: dict[str, Any]
) -> None:
    callback = CiuicCallback("run", SYNC, home=tmp_path)
    make(model(), callbacks=[callback], **settings).train()
    # two steps are one pass over all rows, the last batch of which is not full
    assert [(ready.samples, ready.steps) for ready in handed_over(host)] == [(ROWS, 2)] * 3
    assert [ready.loss for ready in handed_over(host)] == pytest.approx([MEAN] * 3)
    assert callback.run is not None
    assert (callback.run.epoch, callback.run.samples) == (3, 3 * ROWS)
    wait_for(lambda: host.left_pids, "it has left")


def test_the_runs_metrics_are_in_the_history_and_reach_callbacks_that_report(
    host: AveragingHost, make: Any, tmp_path: Path
) -> None:
    recorder = Recorder()
    trainer = make(MeanOfBatch(), callbacks=[recorder])
    with CiuicCallback("run", SYNC, home=tmp_path).add_to(trainer):
        trainer.train()
    logged = [logs for logs in recorder.logs if "ciuic/epoch" in logs]
    assert [logs["ciuic/epoch"] for logs in logged] == [1, 2, 3]
    assert logged == [{k: v for k, v in logs.items() if k != "step"} for logs in trainer.state.log_history if "loss" in logs]
    assert (logged[1]["ciuic/peers"], logged[1]["ciuic/samples"], logged[1]["ciuic/bytes_sent"]) == (1, 2 * ROWS, 200)
    assert logged[1]["ciuic/loss"] == pytest.approx(MEAN)


def test_a_trainer_that_logs_nothing_is_not_made_to(host: AveragingHost, make: Any, tmp_path: Path) -> None:
    recorder = Recorder()
    make(MeanOfBatch(), callbacks=[CiuicCallback("run", SYNC, home=tmp_path), recorder], logging_strategy="no").train()
    assert not [logs for logs in recorder.logs if "loss" in logs]


def test_it_stops_at_an_epoch_of_the_run(host: AveragingHost, make: Any, tmp_path: Path) -> None:
    trainer = make(MeanOfBatch(), callbacks=[CiuicCallback("run", SYNC, home=tmp_path, until_epoch=2)], num_train_epochs=50)
    trainer.train()
    assert (host.epoch, trainer.state.global_step) == (2, 4)


@pytest.mark.parametrize("cause", [RuntimeError("the disk is gone"), KeyboardInterrupt()])
def test_it_leaves_when_training_is_interrupted(host: AveragingHost, make: Any, tmp_path: Path, cause: BaseException) -> None:
    model = MeanOfBatch()
    callback = CiuicCallback("run", SYNC, home=tmp_path)
    trainer = make(model, Rows(at_end=cause), callbacks=[callback])
    with pytest.raises(type(cause)), callback:
        trainer.train()
    wait_for(lambda: host.left_pids, "it has left")
    assert not model._forward_hooks


def test_a_training_that_was_interrupted_without_with_is_left_when_the_next_begins(
    host: AveragingHost, make: Any, tmp_path: Path
) -> None:
    callback = CiuicCallback("run", SYNC, home=tmp_path)
    with pytest.raises(RuntimeError):
        make(MeanOfBatch(), Rows(at_end=RuntimeError("out of memory")), callbacks=[callback]).train()
    assert len(host.trainers) == 1
    make(MeanOfBatch(), callbacks=[callback]).train()
    wait_for(lambda: len(host.left_pids) == 2, "both are left")
    assert host.trainers == []


@pytest.mark.parametrize(
    ("processes", "gpus", "remedy"), [(2, 1, "its own --home for each"), (1, 2, "set CUDA_VISIBLE_DEVICES to one of them")]
)
def test_several_processes_and_several_gpus_are_refused(tmp_path: Path, processes: int, gpus: int, remedy: str) -> None:
    arguments = SimpleNamespace(world_size=processes, n_gpu=gpus, data_seed=1)
    model = MeanOfBatch()
    with pytest.raises(ciuic.LocalError, match=remedy):
        CiuicCallback("run", SYNC, home=tmp_path).on_train_begin(
            arguments, None, transformers.TrainerControl(), model=model, optimizer=torch.optim.SGD(model.parameters())
        )


def test_without_a_daemon_training_ends_with_a_line_that_says_so(make: Any, tmp_path: Path) -> None:
    with pytest.raises(ciuic.NoDaemon, match="ciuic-peer start"):
        make(MeanOfBatch(), callbacks=[CiuicCallback("run", SYNC, home=tmp_path)]).train()
