"""How long a plan is held back for peers that cannot catch up."""

from __future__ import annotations

from ciuic_p2p.core.newcomers import FIRST_HOLD_S, LEAST_HOLD_S, LONGEST_HOLD_S, Newcomers
from ciuic_p2p.terms import PeerId

SLOW = PeerId("slow")


def held_epochs(newcomers: Newcomers, epochs: int, count: int = 1000) -> list[int]:
    held = []
    for epoch in range(epochs):
        if newcomers.hold_s({SLOW}, epoch, count) > FIRST_HOLD_S:
            held.append(epoch)
        newcomers.go_on_without(epoch)
    return held


def test_two_epochs_pass_before_the_first_hold_and_twice_as_many_after_each_in_vain():
    assert held_epochs(Newcomers(), 40) == [2, 6, 14, 30]


def test_who_arrived_is_forgotten():
    newcomers = Newcomers()
    held_epochs(newcomers, 5)
    assert newcomers.hold_s(set(), 5, 1000) == 0
    assert newcomers.hold_s({SLOW}, 6, 1000) == FIRST_HOLD_S
    assert newcomers.hold_s({SLOW}, 7, 1000) == 0
    assert newcomers.hold_s({SLOW}, 8, 1000) == LEAST_HOLD_S


def test_a_hold_grows_with_the_state_and_ends():
    newcomers = Newcomers()
    newcomers.hold_s({SLOW}, 0, 1)
    assert newcomers.hold_s({SLOW}, 2, 10_000_000) == 64.0
    assert newcomers.hold_s({SLOW}, 2, 10**9) == LONGEST_HOLD_S
