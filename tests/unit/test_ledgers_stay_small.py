"""A run's ledgers stay within their bounds whatever trainers want, use or send, and every trainer is given something."""

from __future__ import annotations

import pytest

from ciuic_p2p.core.ledgers import (
    LARGEST_LEDGERS_BYTES,
    MOST_DATASETS,
    MOST_HELD,
    NO_LEDGERS,
    Grant,
    Ledgers,
    Used,
    Wanted,
    share_out,
)
from ciuic_p2p.data.leases import Ledger
from ciuic_p2p.data.positions import Positions
from ciuic_p2p.data.slots import Intervals, Slots
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId

PEERS = [PeerId(f"12D3KooW{number:044d}") for number in range(100)]
ME = PEERS[0]


def test_one_trainer_that_wants_all_there_is_leaves_something_to_the_others() -> None:
    # given a hundred readers of a small dataset, one of which says that it needs as much as can be said
    wanted = {peer: (Wanted(dataset="d", count=1000, samples=10),) for peer in PEERS}
    wanted[ME] = (Wanted(dataset="d", count=1000, samples=MOST_HELD),)
    # when the leader shares out
    found = NO_LEDGERS.granted(share_out(wanted, {}, NO_LEDGERS))
    # then everybody holds something, and a newcomer can be sent the ledgers
    assert all(found.lease_of("d", peer).count for peer in PEERS)
    assert Ledgers.from_bytes(found.to_bytes()) == found


def test_slots_used_in_shreds_do_not_end_the_run() -> None:
    # given a trainer that reports every second slot at the end of a huge lease, round after round
    grants = (Grant(dataset="d", count=1 << 40, shares=((ME, 1 << 30), (PEERS[1], 10))),)
    ledgers = NO_LEDGERS
    for _ in range(9):
        ledgers = ledgers.granted(grants)
        start = ledgers.lease_of("d", ME).passes[0][1].bounds[-1][0]
        shreds = Slots.of((0, slot, slot + 1) for slot in range(start + 2, start + 2002, 2))
        ledgers = ledgers.settled({ME: (Used(dataset="d", slots=shreds),)}, grants)
        # then the ledgers can be a part of a state, and both hold something for the next round
        assert len(ledgers.to_bytes()) <= LARGEST_LEDGERS_BYTES
        assert Ledgers.from_bytes(ledgers.to_bytes()) == ledgers
        assert all(ledgers.lease_of("d", peer).count for peer in PEERS[:2])


def test_passes_behind_one_whose_holder_uses_nothing_do_not_add_up() -> None:
    # given thousands of passes used whole, but for the first, of which somebody holds a slot and never uses it
    whole = tuple((number, Intervals(((0, 4),))) for number in range(1, 9000))
    positions = Positions(count=4, beyond=Slots(((0, Intervals(((0, 3),))), *whole)))
    grants = (Grant(dataset="d", count=4, shares=((ME, 2), (PEERS[1], 2))),)
    # when the next plan grants
    found = Ledgers((("d", Ledger(positions=positions, held=((ME, Slots.of([(0, 3, 4)])),))),)).granted(grants)
    # then the oldest passes count as used
    assert len(found.to_bytes()) <= LARGEST_LEDGERS_BYTES
    assert all(found.lease_of("d", peer).count for peer in PEERS[:2])


def test_the_smallest_gaps_are_given_up_first() -> None:
    positions = Positions(count=100, beyond=Slots.of([(0, 0, 10), (0, 11, 20), (0, 40, 50), (1, 0, 5)]))
    assert positions.coarser(4) == positions
    assert list(positions.coarser(3).beyond.stretches()) == [(0, 0, 20), (0, 40, 50), (1, 0, 5)]
    assert list(positions.coarser(2).beyond.stretches()) == [(0, 0, 50), (1, 0, 5)]
    assert (positions.coarser(1).finished, list(positions.coarser(1).beyond.stretches())) == (1, [(1, 0, 5)])


def test_a_ledger_of_an_impossible_pass_is_refused() -> None:
    # given the last pass that can be written, after which nobody could write the next one
    for positions in (Positions(count=1, finished=(1 << 63) - 1), Positions(count=2, beyond=Slots.of([((1 << 63) - 1, 0, 1)]))):
        with pytest.raises(MalformedMessage):
            Ledgers.from_bytes(Ledgers((("d", Ledger(positions=positions)),)).to_bytes())


def test_names_that_one_trainer_makes_up_keep_nobody_from_what_all_read() -> None:
    # given one that reads as many datasets as there may be, of names that come first
    wanted = {peer: (Wanted(dataset="train", count=1000, samples=10),) for peer in PEERS[1:3]}
    wanted[ME] = tuple(Wanted(dataset=f"!{number:02}", count=10, samples=1) for number in range(MOST_DATASETS))
    # when the leader shares out
    grants = share_out(wanted, {}, NO_LEDGERS)
    # then what the others read is granted, in a plan that is one
    assert [grant.dataset for grant in grants] == sorted(grant.dataset for grant in grants)
    found = NO_LEDGERS.granted(grants)
    assert all(found.lease_of("train", peer).count for peer in PEERS[1:3])


def test_what_was_trained_on_comes_before_names_that_are_new() -> None:
    used = Ledgers((("train", Ledger(positions=Positions(count=1000, beyond=Slots.of([(0, 0, 5)])))),))
    wanted = {PEERS[1]: (Wanted(dataset="train", count=1000, samples=10),)}
    wanted[ME] = tuple(Wanted(dataset=f"!{number:02}", count=10, samples=1) for number in range(MOST_DATASETS))
    assert used.granted(share_out(wanted, {}, used)).lease_of("train", PEERS[1]).count


def test_a_dataset_has_the_size_that_most_say() -> None:
    wanted = {peer: (Wanted(dataset="train", count=7 if peer == ME else 1000, samples=10),) for peer in PEERS[:3]}
    [grant] = share_out(wanted, {}, NO_LEDGERS)
    assert grant.count == 1000
    assert [peer for peer, _ in grant.shares] == PEERS[1:3]
