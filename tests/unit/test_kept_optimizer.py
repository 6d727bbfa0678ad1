"""The state of a trainer's optimizer on its disk: given back bit by bit, or left alone with one line that says why."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from ciuic_p2p.train.kept_optimizer import KeptOptimizer

HASH = "ab" * 32
Make = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return AdamW(model.parameters(), lr=0.01, amsgrad=True)


def model_of(width: int = 3, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width, dtype=dtype), nn.Linear(width, 1, dtype=dtype))


def trained(make: Make, model: nn.Module, steps: int = 3) -> torch.optim.Optimizer:
    optimizer = make(model)
    for _ in range(steps):
        model(torch.randn(5, 4, dtype=next(model.parameters()).dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def bits(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    def of(value: Any) -> Any:
        return (value.dtype, value.shape, value.tolist()) if isinstance(value, torch.Tensor) else value

    return {i: {key: of(value) for key, value in each.items()} for i, each in optimizer.state_dict()["state"].items()}


def kept(home: Path, make: Make = adamw, model: nn.Module | None = None, steps: int = 0, run: str = "run") -> Any:
    """What keeps the state of such an optimizer, and the optimizer."""
    model = model or model_of()
    optimizer = trained(make, model, steps)
    return KeptOptimizer(home, run, model, optimizer), optimizer


def files(home: Path) -> list[Path]:
    return sorted(home.glob("optimizers/*/*"))


@pytest.mark.parametrize(
    "make",
    [
        adamw,
        lambda model: Adam([{"params": [each], "lr": 0.1} for each in model.parameters()]),
        lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda model: RMSprop(model.parameters(), momentum=0.9, centered=True),
        lambda model: Adagrad(model.parameters(), initial_accumulator_value=0.1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_is_given_back_as_it_was(tmp_path: Path, make: Make, dtype: torch.dtype) -> None:
    keeping, optimizer = kept(tmp_path, make, model_of(dtype=dtype), steps=3)
    keeping.save(7, HASH)
    saved = bits(optimizer)
    assert saved

    model = model_of(dtype=dtype)
    back = make(model)
    back.param_groups[0]["lr"] = 0.5
    assert KeptOptimizer(tmp_path, "run", model, back).give_back(7, HASH) == 7
    assert bits(back) == saved
    assert back.param_groups[0]["lr"] == 0.5, "settings are the script's"
    files(tmp_path)[0].write_bytes(b"")
    assert bits(back) == saved, "nothing refers to the file any more"


def test_the_state_of_this_epoch_else_the_newest_before(tmp_path: Path) -> None:
    for epoch in (3, 8):
        kept(tmp_path, steps=epoch)[0].save(epoch, HASH)
    for at, found in ((2, None), (3, 3), (5, 3), (8, 8), (100, 8)):
        keeping, optimizer = kept(tmp_path)
        assert keeping.give_back(at, HASH) == found
        assert (bits(optimizer)[0]["step"][2] if found else None) == found
    keeping, _ = kept(tmp_path, run="another")
    assert keeping.give_back(100, HASH) is None


def test_a_compiled_model_is_the_same_model(tmp_path: Path) -> None:
    kept(tmp_path, steps=5)[0].save(5, HASH)
    model = model_of()
    optimizer = adamw(model)
    assert KeptOptimizer(tmp_path, "run", torch.compile(model), optimizer).give_back(5, HASH) == 5


def test_an_optimizer_that_has_run_keeps_its_own_state(tmp_path: Path) -> None:
    kept(tmp_path, steps=5)[0].save(5, HASH)
    keeping, optimizer = kept(tmp_path, steps=1)
    assert keeping.give_back(5, HASH) is None
    assert bits(optimizer)[0]["step"][2] == 1


def test_two_are_kept_and_none_of_a_history_that_was_given_up(tmp_path: Path) -> None:
    keeping, _ = kept(tmp_path, steps=1)
    (tmp_path / "optimizers").mkdir()
    for epoch, left in ((1, [1]), (9, [1, 9]), (5, [1, 5]), (5, [1, 5]), (6, [5, 6]), (7, [6, 7])):
        keeping.save(epoch, HASH)
        assert [int(file.name[:10]) for file in files(tmp_path)] == left
    (files(tmp_path)[0].parent / ".part").write_bytes(b"of a process that died")
    assert kept(tmp_path)[0].give_back(7, HASH) == 7
    keeping.save(8, HASH)
    assert len(files(tmp_path)) == 2
    keeping.forget()
    assert not files(tmp_path)


@pytest.mark.parametrize(
    ("make", "model", "why"),
    [
        (lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9), model_of(), r"it is of torch\.optim\.adamw\.AdamW, the"),
        (
            adamw,
            model_of(width=5),
            r"of parameter '0\.weight' of shape \[3, 4\], the optimizer has '0\.weight' of shape \[5, 4\]",
        ),
        (lambda model: AdamW(model[0].parameters()), model_of(), "it is of 4 parameters, the optimizer has 2"),
        (lambda model: AdamW(reversed(list(model.parameters()))), model_of(), r"'0\.weight' of shape .* has '1\.bias' of"),
    ],
)
def test_a_state_of_something_else_is_left_alone(
    tmp_path: Path, make: Make, model: nn.Module, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in (3, 4):
        kept(tmp_path, steps=2)[0].save(epoch, HASH)
    keeping, optimizer = kept(tmp_path, make, model)
    assert keeping.give_back(4, HASH) is None
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage().startswith("event='optimizer.ignored' run='run' epoch=4")
    assert re.search(why, said.getMessage().replace("\\'", "'"))
    assert not bits(optimizer)
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda _: b""])
def test_a_damaged_file_is_passed_over(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in (3, 8):
        kept(tmp_path, steps=epoch)[0].save(epoch, HASH)
    newest = files(tmp_path)[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    keeping, optimizer = kept(tmp_path)
    assert keeping.give_back(8, HASH) == 3
    assert bits(optimizer)[0]["step"][2] == 3
    (said,) = caplog.records
    assert f"file='{newest}'" in said.getMessage()


def poisoned(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = trained(adamw, model)
    next(iter(optimizer.state.values()))["exp_avg"][0] = float("nan")
    return optimizer


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (poisoned, "'exp_avg' holds values that are not finite"),
        (lambda model: torch.optim.LBFGS(model.parameters()), "its 'al': a torch.Tensor is no plain data"),
    ],
)
def test_what_cannot_be_kept_is_said_and_what_was_kept_stays(
    tmp_path: Path, make: Make, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path, steps=2)[0].save(4, HASH)
    model = model_of()
    optimizer = make(model)
    if isinstance(optimizer, torch.optim.LBFGS):
        for _ in range(3):
            optimizer.step(lambda: loss_of(model))
    KeptOptimizer(tmp_path, "run", model, optimizer).save(5, HASH)
    (said,) = caplog.records
    assert said.getMessage().startswith("event='optimizer.not_kept' run='run' epoch=5 why=")
    assert re.search(why, said.getMessage().replace("\\'", "'"))
    assert kept(tmp_path)[0].give_back(5, HASH) == 4


def loss_of(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    return loss


def test_a_disk_that_does_not_take_it_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "optimizers").write_bytes(b"no folder")
    keeping, _ = kept(tmp_path, steps=1)
    keeping.save(1, HASH)
    assert keeping.give_back(1, HASH) is None
    assert [record.getMessage() for record in caplog.records] == [
        "event='optimizer.not_kept' run='run' epoch=1 why='Not a directory'"
    ]


def test_an_optimizer_without_a_state_leaves_no_file(tmp_path: Path) -> None:
    keeping, _ = kept(tmp_path, lambda model: SGD(model.parameters(), lr=0.1), steps=0)
    keeping.save(1, HASH)
    assert not files(tmp_path)
