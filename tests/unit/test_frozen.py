"""The fingerprint of what is not trained: the same on peers that loaded the same base, however the model is held."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from ciuic_p2p.daemon.likeness import describe_difference, likeness_of
from ciuic_p2p.errors import LocalError
from ciuic_p2p.local.protocol import StrategySettings
from ciuic_p2p.tensors.layout import Layout
from ciuic_p2p.train.flat import FlatModel
from ciuic_p2p.train.frozen import frozen_fingerprint

SETTINGS = StrategySettings(name="DiLoCo", inner_steps=2, codec="int4", outer_learning_rate=0.7, outer_momentum=0.6)
FASTER = StrategySettings(name="DiLoCo", inner_steps=2, codec="int4", outer_learning_rate=0.8, outer_momentum=0.6)


def model_of(seed: int = 0, width: int = 3) -> nn.Sequential:
    """Its first layer is frozen; what is trained is the same whatever the seed."""
    torch.manual_seed(seed)
    base = nn.Linear(4, width).requires_grad_(False)
    torch.manual_seed(9)
    return nn.Sequential(base, nn.Linear(width, 2))


def test_a_model_that_is_trained_whole_has_none() -> None:
    assert frozen_fingerprint(nn.Linear(2, 2)) == ""
    assert FlatModel(nn.Linear(2, 2)).layout.to_wire().keys() == {"entries"}, "as older peers and snapshots have it"


def test_it_follows_the_frozen_values_alone() -> None:
    model = model_of()
    before = frozen_fingerprint(model)
    assert before == frozen_fingerprint(model_of())
    with torch.no_grad():
        model[1].weight += 1
    assert frozen_fingerprint(model) == before
    with torch.no_grad():
        model[0].weight[1, 2] = torch.nextafter(model[0].weight[1, 2], torch.tensor(9.0))
    assert frozen_fingerprint(model) != before


def test_dtype_shape_and_which_are_frozen_count() -> None:
    others = [model_of(1), model_of().bfloat16(), model_of(width=4), model_of()]
    others[-1][1].bias.requires_grad_(False)
    assert len({frozen_fingerprint(model) for model in [model_of(), *others]}) == 5


def test_it_is_the_same_for_a_compiled_model_and_for_one_that_lies_otherwise_in_memory() -> None:
    turned = model_of()
    turned[0].weight = nn.Parameter(turned[0].weight.detach().t().contiguous().t(), requires_grad=False)
    assert not turned[0].weight.is_contiguous()
    assert frozen_fingerprint(turned) == frozen_fingerprint(torch.compile(model_of())) == frozen_fingerprint(model_of())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.float8_e4m3fn, torch.complex64])
def test_every_dtype_and_shape_can_be_frozen(dtype: torch.dtype) -> None:
    def holding(*values: float) -> str:
        model = nn.Linear(2, 2)
        for name, value in (("scalar", torch.tensor(1.0)), ("empty", torch.zeros(0, 3)), ("table", torch.tensor([values]))):
            model.register_parameter(name, nn.Parameter(value.to(dtype), requires_grad=False))
        return frozen_fingerprint(model)

    assert holding(0.0, 1.0) == holding(0.0, 1.0) != holding(1.0, 0.0)


def test_a_tensor_made_of_several_counts_with_all_of_them() -> None:
    def holding(second: float) -> str:
        model = nn.Linear(2, 2)
        made = TwoTensor(torch.ones(2), torch.full((2,), second))
        model.register_parameter("quantised", nn.Parameter(made, requires_grad=False))
        return frozen_fingerprint(model)

    assert holding(2.0) == holding(2.0) != holding(3.0)


@pytest.mark.parametrize(
    ("frozen", "complaint"),
    [
        (torch.empty(2, device="meta"), "base has no values"),
        (torch.eye(2).to_sparse(), "the frozen base cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(frozen: torch.Tensor, complaint: str) -> None:
    model = nn.Linear(2, 2)
    model.register_parameter("base", nn.Parameter(frozen, requires_grad=False))
    with pytest.raises(LocalError, match=complaint) as raised:
        FlatModel(model)
    assert raised.value.remedy


def test_the_difference_is_named() -> None:
    def line(model: nn.Module, settings: StrategySettings = SETTINGS) -> str:
        return likeness_of(FlatModel(model).layout, settings)

    mine = line(model_of())
    assert "another model" in describe_difference(mine, line(model_of(width=4)))
    assert "other frozen parameters" in describe_difference(mine, line(model_of(1)))
    assert "outer settings" in describe_difference(mine, line(model_of(), FASTER))
    assert "another model" in describe_difference(mine, "model=whatever a peer says \n ==")
    assert describe_difference(mine, "")


def test_layouts_with_other_frozen_parameters_differ_and_survive_the_wire() -> None:
    layout, other = FlatModel(model_of()).layout, FlatModel(model_of(1)).layout
    assert Layout.from_wire(layout.to_wire()) == layout
    assert layout.fingerprint == other.fingerprint
    assert "frozen parameters" in layout.describe_difference(other)
