"""Versions of a run's state: a step in place gives the same bits, and is refused while somebody reads."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from ciuic_p2p.daemon.versions import PIN_S, Version, Versions
from ciuic_p2p.errors import RoundFailed
from ciuic_p2p.tensors.outer import OuterOptimizer, OuterState
from ciuic_p2p.tensors.tiles import TILE_VALUES
from ciuic_p2p.terms import StateHash

PARAMETERS = TILE_VALUES + 777
COUNT = PARAMETERS + 300
OPTIMIZER = OuterOptimizer(learning_rate=0.7, momentum=0.9)
NOW = 1000.0


def normal(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def make_version(seed: int = 0, epoch: int = 4) -> Version:
    return Version.of(OuterState(anchor=normal(COUNT, seed), momentum=normal(PARAMETERS, seed + 1)), epoch, samples=100)


def holding(version: Version) -> Versions:
    versions = Versions()
    versions.hold(version, NOW)
    return versions


def test_a_step_in_place_gives_the_same_bits_and_hash_as_a_copying_one() -> None:
    # Given the same version twice, and steps of several rounds,
    copying, in_place = make_version(), make_version()
    arrays = in_place.state
    for round_number in range(3):
        mean = normal(COUNT, 50 + round_number)
        before = copying.state.anchor.tobytes()
        stepped = copying.stepped(OPTIMIZER, mean, samples=32)
        assert copying.state.anchor.tobytes() == before, "a copying step leaves the old version as it was"
        copying, in_place = stepped, in_place.stepped(OPTIMIZER, mean, samples=32, in_place=True)
        # then one has new arrays and the other the old ones, and both have the same content.
        assert in_place.state is arrays
        assert copying.state.anchor.tobytes() == in_place.state.anchor.tobytes()
        assert copying.state.momentum.tobytes() == in_place.state.momentum.tobytes()
        assert copying.state_hash == in_place.state_hash
        assert (
            (copying.epoch, copying.samples)
            == (in_place.epoch, in_place.samples)
            == (5 + round_number, 132 + 32 * round_number)
        )
    assert in_place.state_hash == Version.of(in_place.state, in_place.epoch, in_place.samples).state_hash


@pytest.mark.parametrize("in_place", [False, True])
def test_a_step_that_fails_leaves_the_version_as_it_was(in_place: bool) -> None:
    version = make_version()
    version.state.anchor[-1] = -3e38
    mean = np.zeros(COUNT, np.float32)
    mean[-1] = 3e38
    before = version.state.anchor.tobytes(), version.state.momentum.tobytes()
    with pytest.raises(RoundFailed):
        version.stepped(OPTIMIZER, mean, samples=1, in_place=in_place)
    assert (version.state.anchor.tobytes(), version.state.momentum.tobytes()) == before


def test_a_version_that_nobody_was_lent_is_given_up_once() -> None:
    versions = holding(make_version())
    assert versions.give_up_current(NOW)
    assert versions.current is None
    assert not versions.give_up_current(NOW)


def test_a_version_given_up_is_lent_to_nobody() -> None:
    version = make_version()
    versions = holding(version)
    versions.give_up_current(NOW)
    assert versions.find(version.epoch, version.state_hash, NOW) is None


def test_a_version_stays_while_it_is_lent() -> None:
    version = make_version()
    versions = holding(version)
    loan = versions.find(version.epoch, version.state_hash, NOW)
    assert loan is not None
    assert loan.version is version
    # Also when its pin has run out long ago,
    assert not versions.give_up_current(NOW + 100 * PIN_S)
    assert versions.current is version
    # until the loan ends.
    del loan
    gc.collect()
    assert versions.give_up_current(NOW + 100 * PIN_S)


def test_a_version_stays_a_while_after_it_was_last_asked_for() -> None:
    version = make_version()
    versions = holding(version)
    for asked_at in (NOW, NOW + PIN_S / 2):
        assert versions.find(version.epoch, version.state_hash, asked_at) is not None
    gc.collect()
    assert not versions.give_up_current(NOW + 1.5 * PIN_S - 1)
    assert versions.give_up_current(NOW + 1.5 * PIN_S)


def test_an_old_version_is_found_while_it_is_pinned() -> None:
    # Given a version that was asked for, when the run moves on,
    old, new = make_version(), make_version(seed=9, epoch=5)
    versions = holding(old)
    assert versions.find(old.epoch, old.state_hash, NOW) is not None
    versions.hold(new, NOW + 1)
    # then both are there, and asking prolongs it,
    for now in (NOW + PIN_S - 1, NOW + 2 * PIN_S - 2):
        found = versions.find(old.epoch, old.state_hash, now)
        assert found is not None
        assert found.version is old
        del found
        versions.hold(new, now)
    current = versions.find(new.epoch, new.state_hash, NOW)
    assert current is not None
    assert current.version is new
    # until nobody has asked for it.
    versions.hold(new, NOW + 10 * PIN_S)
    assert versions.find(old.epoch, old.state_hash, NOW + 10 * PIN_S) is None


def test_an_old_version_is_found_while_it_is_lent() -> None:
    old, new = make_version(), make_version(seed=9, epoch=5)
    versions = holding(old)
    loan = versions.find(old.epoch, old.state_hash, NOW)
    later = NOW + 10 * PIN_S
    versions.hold(new, later)
    assert loan is not None
    assert versions.find(old.epoch, old.state_hash, later) is not None
    del loan
    gc.collect()
    versions.hold(new, later + PIN_S)
    assert versions.find(old.epoch, old.state_hash, later + PIN_S) is None


def test_an_old_version_that_is_lent_does_not_keep_the_current_one() -> None:
    old, new = make_version(), make_version(seed=9, epoch=5)
    versions = holding(old)
    loan = versions.find(old.epoch, old.state_hash, NOW)
    versions.hold(new, NOW + 1)
    assert loan is not None
    assert versions.give_up_current(NOW + 2)


def test_another_epoch_or_hash_is_not_found_and_pins_nothing() -> None:
    version = make_version()
    versions = holding(version)
    assert versions.find(version.epoch + 1, version.state_hash, NOW) is None
    assert versions.find(version.epoch, StateHash("ab" * 32), NOW) is None
    assert Versions().find(version.epoch, version.state_hash, NOW) is None
    assert versions.give_up_current(NOW)
