"""The callback for Lightning: what it counts, what it refuses, what it logs, and that it leaves however training ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from integration_kit import ACCUMULATE, BATCH, MEAN, ROWS, KnownLoss, averaging, handed_over, wait_for
from local_kit import AveragingHost
from torch import Tensor
from torch.utils.data import DataLoader

import ciuic_p2p as ciuic

lightning = pytest.importorskip("pytorch_lightning", reason="the extra 'integrations' is not installed")

from pytorch_lightning.loggers import Logger  # noqa: E402  # needs Lightning
from pytorch_lightning.plugins import MixedPrecision  # noqa: E402

from ciuic_p2p.integrations.lightning import CiuicCallback  # noqa: E402

SYNC = ciuic.DiLoCo(inner_steps=2)


class Module(lightning.LightningModule):
    def __init__(
        self, interrupted_by: BaseException | None = None, optimizers: int = 1, automatic: bool = True, leaves_out: int = -1
    ) -> None:
        super().__init__()
        self._leaves_out = leaves_out
        self.model = KnownLoss()
        self.automatic_optimization = automatic
        self._interrupted_by, self._optimizers, self._batches = interrupted_by, optimizers, 0

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor | None:
        self._batches += 1
        if self._interrupted_by is not None and self._batches > 6:
            raise self._interrupted_by
        return None if index == self._leaves_out else self.model.losses(batch["number"]).mean()

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.model.losses(batch["number"])

    def configure_optimizers(self) -> Any:
        made = [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(self._optimizers)]
        return made if self._optimizers > 1 else made[0]


class Recorder(Logger):
    name = version = log_hyperparams = None

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AveragingHost]:
    with averaging(tmp_path) as host:
        yield host


@pytest.fixture
def _keyboard() -> Iterator[None]:
    """Lightning turns Ctrl-C off once it was pressed."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def fit(module: Module, callback: CiuicCallback, **settings: Any) -> Any:
    loader = DataLoader([{"number": torch.tensor([row])} for row in range(ROWS)], batch_size=BATCH, shuffle=True)
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    usual = {"max_epochs": 3, "accumulate_grad_batches": ACCUMULATE, "accelerator": "cpu", "callbacks": [callback]}
    trainer = lightning.Trainer(**(quiet | usual | settings))
    trainer.fit(module, loader, loader)
    return trainer


def test_each_round_has_the_samples_and_the_loss_of_its_steps(host: AveragingHost, tmp_path: Path) -> None:
    callback = CiuicCallback("run", SYNC, home=tmp_path)
    fit(Module(), callback)
    # two steps are one pass over all rows, the last batch of which is not full
    assert [(ready.samples, ready.steps) for ready in handed_over(host)] == [(ROWS, 2)] * 3
    assert [ready.loss for ready in handed_over(host)] == pytest.approx([MEAN] * 3)
    assert callback.run is not None
    assert (callback.run.epoch, callback.run.samples) == (3, 3 * ROWS)
    wait_for(lambda: host.left_pids, "it has left")


def test_a_batch_that_training_leaves_out_is_not_counted(host: AveragingHost, tmp_path: Path) -> None:
    fit(Module(leaves_out=1), CiuicCallback("run", SYNC, home=tmp_path))
    assert [(ready.samples, ready.steps) for ready in handed_over(host)] == [(ROWS - BATCH, 2)] * 3


def test_steps_that_a_gradient_scaler_skips_are_no_work(host: AveragingHost, tmp_path: Path) -> None:
    # given a scale at which the first step's gradients are infinite, and the second's are not
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-120, growth_interval=1000)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    trainer = fit(Module(), CiuicCallback("run", SYNC, home=tmp_path), plugins=[plugin])
    # then Lightning counts all six steps, and the first of two in the first round brought nothing
    assert trainer.global_step == 6
    assert [(ready.samples, ready.steps) for ready in handed_over(host)] == [(4, 2), (ROWS, 2), (ROWS, 2)]


def test_the_runs_metrics_reach_the_loggers(host: AveragingHost, tmp_path: Path) -> None:
    recorder = Recorder()
    fit(Module(), CiuicCallback("run", SYNC, home=tmp_path), logger=recorder)
    logged = [(step, metrics) for step, metrics in recorder.logged if "ciuic/epoch" in metrics]
    assert [(step, metrics["ciuic/epoch"]) for step, metrics in logged] == [(1, 1), (3, 2), (5, 3)]
    assert logged[0][1]["ciuic/loss"] == pytest.approx(MEAN)


def test_it_stops_at_an_epoch_of_the_run(host: AveragingHost, tmp_path: Path) -> None:
    trainer = fit(Module(), CiuicCallback("run", SYNC, home=tmp_path, until_epoch=2), max_epochs=-1)
    assert (host.epoch, trainer.global_step) == (2, 4)


@pytest.mark.usefixtures("_keyboard")
@pytest.mark.parametrize(
    ("cause", "seen"), [(RuntimeError("the disk is gone"), RuntimeError), (KeyboardInterrupt(), SystemExit)]
)
def test_it_leaves_when_training_is_interrupted(
    host: AveragingHost, tmp_path: Path, cause: BaseException, seen: type[BaseException]
) -> None:
    callback = CiuicCallback("run", SYNC, home=tmp_path)
    with pytest.raises(seen):
        fit(Module(interrupted_by=cause), callback)
    wait_for(lambda: host.left_pids, "it has left")
    assert host.trainers == []


@pytest.mark.parametrize("optimizers", [1, 2])
def test_what_it_cannot_count_is_refused_before_anything_is_computed(
    host: AveragingHost, tmp_path: Path, optimizers: int
) -> None:
    refused = Module(optimizers=optimizers, automatic=False)
    with pytest.raises(ciuic.LocalError, match=rf"steps its {optimizers} optimizers? by itself") as raised:
        fit(refused, CiuicCallback("run", SYNC, home=tmp_path), accumulate_grad_batches=1)
    assert raised.value.remedy
    assert refused._batches == 0
