"""The outer step: formula, bits, in place and beside."""

from __future__ import annotations

import blake3
import numpy as np
import pytest

from ciuic_p2p.errors import ConfigError, RoundFailed
from ciuic_p2p.tensors.outer import OuterOptimizer, OuterState
from ciuic_p2p.tensors.tiles import TILE_VALUES

PARAMETERS = 2 * TILE_VALUES + 777
COUNT = PARAMETERS + TILE_VALUES + 55
DILOCO = OuterOptimizer(learning_rate=0.7, momentum=0.9)


def normal(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def state(seed: int = 0) -> OuterState:
    return OuterState(anchor=normal(COUNT, seed), momentum=normal(PARAMETERS, seed + 1))


def test_parameters_take_a_nesterov_step_and_buffers_the_mean() -> None:
    before, mean, after = state(), normal(COUNT, 5), OuterState.empty(COUNT, PARAMETERS)
    DILOCO.step(before, mean, after)
    anchor, momentum, r = (np.float64(array) for array in (before.anchor, before.momentum, mean))
    velocity = 0.9 * momentum + r[:PARAMETERS]
    moved = anchor[:PARAMETERS] - 0.7 * (r[:PARAMETERS] + 0.9 * velocity)
    np.testing.assert_allclose(after.momentum, velocity, rtol=0, atol=2e-6)
    np.testing.assert_allclose(after.anchor[:PARAMETERS], moved, rtol=0, atol=3e-6)
    assert (after.anchor[PARAMETERS:] == before.anchor[PARAMETERS:] - mean[PARAMETERS:]).all()


def test_matches_torch_sgd_with_nesterov() -> None:
    torch = pytest.importorskip("torch")
    weights = torch.nn.Parameter(torch.from_numpy(normal(1000, 0)))
    reference = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    mine = OuterState(anchor=normal(1000, 0), momentum=np.zeros(1000, np.float32))
    for epoch in range(5):
        weights.grad = torch.from_numpy(normal(1000, 10 + epoch))
        reference.step()
        DILOCO.step(mine, normal(1000, 10 + epoch), mine)
    np.testing.assert_allclose(mine.anchor, weights.detach().numpy(), rtol=0, atol=1e-5)


def test_in_place_and_beside_give_the_same_bits_and_beside_leaves_the_old_state() -> None:
    old, untouched, mean = state(), state(), normal(COUNT, 5)
    beside, in_place = OuterState.empty(COUNT, PARAMETERS), state()
    DILOCO.step(old, mean, beside)
    DILOCO.step(in_place, mean, in_place)
    for name in ("anchor", "momentum"):
        assert getattr(beside, name).tobytes() == getattr(in_place, name).tobytes()
        assert getattr(old, name).tobytes() == getattr(untouched, name).tobytes()


def test_new_anchor_may_share_the_old_momentum() -> None:
    mean, expected = normal(COUNT, 5), OuterState.empty(COUNT, PARAMETERS)
    DILOCO.step(state(), mean, expected)
    old = state()
    DILOCO.step(old, mean, OuterState(anchor=(anchor := np.empty(COUNT, np.float32)), momentum=old.momentum))
    assert anchor.tobytes() == expected.anchor.tobytes()
    assert old.momentum.tobytes() == expected.momentum.tobytes()


def test_ten_steps_give_the_same_bits_on_every_machine() -> None:
    # Inputs from integers, so that no generator or library decides them.
    ramp = ((np.arange(10_000) * 7919 % 10_007 - 5000) / 3000).astype(np.float32)
    replica = OuterState(anchor=ramp.copy(), momentum=np.zeros(9000, np.float32))
    for epoch in range(10):
        DILOCO.step(replica, np.roll(ramp, epoch * 17), replica)
    digest = blake3.blake3(replica.anchor.astype("<f4").tobytes() + replica.momentum.astype("<f4").tobytes()).hexdigest()
    assert digest == "311e48949ea95227a0cf7ba0ed12245463b71709795f20bf30dd95f2b566ab77"


def test_step_out_of_range_fails_the_round_and_keeps_the_old_state() -> None:
    old = OuterState(anchor=np.full(10, 3e38, np.float32), momentum=np.zeros(10, np.float32))
    with pytest.raises(RoundFailed, match="float32"):
        DILOCO.step(old, np.full(10, -3e38, np.float32), OuterState.empty(10, 10))
    assert (old.anchor == np.float32(3e38)).all()


def test_overflow_of_a_buffer_fails_the_round() -> None:
    old = OuterState(anchor=np.full(10, 3e38, np.float32), momentum=np.zeros(0, np.float32))
    with pytest.raises(RoundFailed, match="float32"):
        DILOCO.step(old, np.full(10, -3e38, np.float32), OuterState.empty(10, 0))


@pytest.mark.parametrize(
    ("learning_rate", "momentum"), [(0, 0.9), (-1, 0.9), (3, 0.9), (float("nan"), 0), (0.7, 1), (0.7, -0.1)]
)
def test_settings_out_of_range_are_refused(learning_rate: float, momentum: float) -> None:
    with pytest.raises(ConfigError):
        OuterOptimizer(learning_rate=learning_rate, momentum=momentum)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="mean of 9 values"):
        DILOCO.step(OuterState.empty(10, 5), np.zeros(9, np.float32), OuterState.empty(10, 5))
