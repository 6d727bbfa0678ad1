"""A model as one flat vector: which tensors are in it, what the copies keep, and what cannot be shared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from ciuic_p2p.errors import LocalError
from ciuic_p2p.train.flat import FlatModel


def shared(model: nn.Module) -> tuple[FlatModel, NDArray[np.float32]]:
    """The model, and the vector that its values were written to."""
    flat = FlatModel(model)
    exchange = np.zeros(flat.layout.count, np.float32)
    flat.share_memory(exchange)
    flat.write()
    return flat, exchange


def names_of(flat: FlatModel) -> list[str]:
    return [entry.name for entry in flat.layout.entries]


def holding(tensor: torch.Tensor) -> nn.Module:
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(tensor))
    return model


def test_parameters_come_first_then_floating_buffers() -> None:
    flat, exchange = shared(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    assert names_of(flat) == ["0.weight", "0.bias", "1.weight", "1.bias", "0.running_mean", "0.running_var"]
    assert [entry.role for entry in flat.layout.entries] == ["parameter"] * 4 + ["buffer"] * 2
    assert flat.layout.parameter_count == 14
    np.testing.assert_array_equal(exchange[-6:], [0, 0, 0, 1, 1, 1])


def test_a_tensor_that_is_used_twice_is_there_once_and_stays_one() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    flat, exchange = shared(model)
    assert names_of(flat) == ["0.weight"]
    exchange[:] = 5.0
    flat.load()
    assert model[1].weight is model[0].weight
    assert bool((model[1].weight == 5.0).all())


def test_frozen_parameters_and_buffers_that_are_not_saved_stay() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    model.register_buffer("scratch", torch.ones(3), persistent=False)
    model.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
    before = model[0].weight.clone()
    flat, exchange = shared(model)
    assert names_of(flat) == ["1.weight", "1.bias"]
    exchange[:] = 9.0
    flat.load()
    assert model[0].weight.equal(before)
    assert model.scratch.equal(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@given(seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_every_dtype_comes_back_as_it_was(dtype: torch.dtype, seed: int) -> None:
    values = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed)).to(dtype)
    model = holding(values.clone())
    flat, exchange = shared(model)
    np.testing.assert_array_equal(exchange, values.float().numpy().ravel())
    with torch.no_grad():
        model.weight.zero_()
    flat.load()
    assert model.weight.dtype == dtype
    assert model.weight.detach().equal(values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_rounding_took_off_the_anchor_is_no_part_of_the_contribution(dtype: torch.dtype) -> None:
    # given an anchor between two values of the model's dtype
    model = holding(torch.ones(3, dtype=dtype))
    flat, exchange = shared(model)
    anchor = np.array([1.0001, 0.9999, 1.0], np.float32)
    exchange[:] = anchor
    flat.load()
    # when nothing was trained
    flat.write_trained()
    # then the difference to the anchor is nothing
    np.testing.assert_array_equal(exchange, anchor)
    # and when something was, it is that
    with torch.no_grad():
        model.weight += 0.5
    flat.write_trained()
    np.testing.assert_allclose(exchange - anchor, 0.5, atol=1e-6)


def test_a_tensor_that_is_not_contiguous_keeps_its_place() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    model = holding(values.t().clone(memory_format=torch.preserve_format))
    assert not model.weight.is_contiguous()
    flat, exchange = shared(model)
    np.testing.assert_array_equal(exchange, values.t().reshape(-1).numpy())
    exchange += 1
    flat.load()
    assert model.weight.detach().equal(values.t() + 1)
    assert not model.weight.is_contiguous()


def test_a_model_that_was_moved_or_compiled_is_the_same_model() -> None:
    plain = FlatModel(nn.Sequential(nn.Linear(2, 2)))
    assert FlatModel(torch.compile(nn.Sequential(nn.Linear(2, 2)))).layout == plain.layout
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    flat, exchange = shared(model)
    model.double()
    model[1].running_mean.fill_(4.0)
    flat.write()
    assert 4.0 in exchange


def test_scalars_and_odd_names_are_shared() -> None:
    model = holding(torch.tensor(2.5))
    model.register_parameter("größe ✓", nn.Parameter(torch.ones(1)))
    _, exchange = shared(model)
    np.testing.assert_array_equal(exchange, [2.5, 1.0])


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_that_are_not_finite_are_noticed(dtype: torch.dtype, broken: float) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(dtype)
    flat = FlatModel(model)
    assert flat.is_finite()
    with torch.no_grad():
        model[1].weight[1, 1] = broken
    assert not flat.is_finite()


def test_a_value_that_float32_cannot_hold_is_not_finite() -> None:
    assert not FlatModel(holding(torch.tensor([1e300], dtype=torch.float64))).is_finite()


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), check_invariants=True)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (nn.Module, "no floating-point parameter"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "no floating-point parameter"),
        (lambda: holding(torch.ones(2, dtype=torch.complex64)), "weight is torch.complex64"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight has no values"),
        (lambda: holding(sparse()), "weight is not a plain dense tensor"),
        (lambda: nn.LazyLinear(2), "weight has no shape yet"),
        (lambda: holding(torch.ones(0, 3)), "weight holds no values"),
    ],
)
def test_a_model_that_cannot_be_shared_is_refused_by_name(make: Callable[[], nn.Module], complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint) as raised:
        FlatModel(make())
    assert raised.value.remedy


def test_a_complex_buffer_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("phases", torch.ones(2, dtype=torch.complex64))
    with pytest.raises(LocalError, match=r"phases is torch\.complex64"):
        FlatModel(model)


def test_a_tensor_that_changed_its_shape_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    flat, _ = shared(model)
    model[0].weight = nn.Parameter(torch.ones(5, 2))
    for copy in (flat.write, flat.write_trained, flat.load):
        with pytest.raises(LocalError, match=r"0\.weight has shape \(5, 2\), it joined with \(3, 2\)"):
            copy()
