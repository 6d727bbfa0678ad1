"""The state hash, and pieces that a newcomer verifies one by one."""

from __future__ import annotations

import numpy as np
import pytest

from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.tensors.outer import OuterState
from ciuic_p2p.tensors.state import PIECE_VALUES, StateManifest, piece_bytes, state_hash

COUNT, PARAMETERS = 2 * PIECE_VALUES + 10, PIECE_VALUES + 7


def state() -> OuterState:
    return OuterState(
        anchor=np.arange(COUNT, dtype=np.float32),
        momentum=np.arange(PARAMETERS, dtype=np.float32)[::-1].copy(),
    )


def test_hash_is_pinned() -> None:
    assert state_hash(state(), 3) == "b154c1bc4df1d254f888aaefb874f960fa4a712bc03d91f5873322e75159de36"


def test_hash_depends_on_every_part() -> None:
    hashes = {state_hash(state(), 3), state_hash(state(), 4), StateManifest.describe(state(), 3, samples=1).state_hash}
    for name, index in (("anchor", 0), ("anchor", COUNT - 1), ("momentum", PARAMETERS - 1)):
        changed = state()
        getattr(changed, name)[index] += 0.5
        hashes.add(state_hash(changed, 3))
    shorter = state()
    hashes.add(state_hash(OuterState(anchor=shorter.anchor, momentum=shorter.momentum[:-1]), 3))
    assert len(hashes) == 7


def test_negative_zero_is_another_state() -> None:
    plus, minus = (OuterState(anchor=np.float32([zero]), momentum=np.float32([])) for zero in (0.0, -0.0))
    assert state_hash(plus, 0) != state_hash(minus, 0)


def test_newcomer_rebuilds_the_state_from_verified_pieces() -> None:
    served, manifest = state(), StateManifest.from_wire(StateManifest.describe(state(), 3).to_wire())
    taken = OuterState.empty(manifest.count, manifest.parameter_count)
    for index in reversed(range(len(manifest.piece_hashes))):
        piece = bytes(piece_bytes(manifest.span(index).of(served)))
        assert manifest.verify_piece(index, piece)
        manifest.span(index).of(taken)[:] = np.frombuffer(piece, "<f4")
    assert state_hash(taken, 3) == manifest.state_hash == state_hash(served, 3)


def test_spans_cover_both_arrays_without_overlap() -> None:
    manifest = StateManifest.describe(state(), 3)
    spans = [manifest.span(index) for index in range(len(manifest.piece_hashes))]
    assert [(span.array, span.start, span.stop) for span in spans] == [
        ("anchor", 0, PIECE_VALUES),
        ("anchor", PIECE_VALUES, 2 * PIECE_VALUES),
        ("anchor", 2 * PIECE_VALUES, COUNT),
        ("momentum", 0, PIECE_VALUES),
        ("momentum", PIECE_VALUES, PARAMETERS),
    ]


def test_changed_cut_or_misplaced_pieces_are_refused() -> None:
    served = state()
    manifest = StateManifest.describe(served, 3)
    piece = bytes(piece_bytes(manifest.span(0).of(served)))
    changed = bytes([piece[0] ^ 1]) + piece[1:]
    assert not manifest.verify_piece(0, changed)
    assert not manifest.verify_piece(0, piece[:-4])
    assert not manifest.verify_piece(0, piece + b"\0")
    assert not manifest.verify_piece(1, piece)


@pytest.mark.parametrize("index", [-1, 5])
def test_there_are_no_other_pieces(index: int) -> None:
    manifest = StateManifest.describe(state(), 3)
    with pytest.raises(MalformedMessage, match="piece"):
        manifest.verify_piece(index, b"")


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"epoch": 1 << 32},
        {"epoch": True},
        {"epoch": 1.0},
        {"count": 0},
        {"count": 1 << 62},
        {"parameter_count": COUNT + 1},
        {"parameter_count": -1},
        {"piece_values": 1},
        {"piece_hashes": b""},
        {"piece_hashes": b"x" * (5 * 32 - 1)},
        {"piece_hashes": b"x" * (6 * 32)},
        {"piece_hashes": "x" * (5 * 32)},
        {"piece_hashes": bytes(40_000 * 32)},
    ],
)
def test_impossible_manifests_are_refused(change: dict[str, object]) -> None:
    message = StateManifest.describe(state(), 3).to_wire() | change
    with pytest.raises(MalformedMessage):
        StateManifest.from_wire(message)
