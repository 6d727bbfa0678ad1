"""Taking a state from donors: what they answer, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgpack
import numpy as np
import pytest

from ciuic_p2p.core.messages import AskPieces, AskState, Message, StateOffer
from ciuic_p2p.daemon.fetching import Fetch, version_tag
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.tensors.outer import OuterState
from ciuic_p2p.tensors.state import PIECE_VALUES, StateManifest, piece_bytes
from ciuic_p2p.terms import PeerId, StateHash

DONORS = (PeerId("donor-a"), PeerId("donor-b"))
EPOCH = 7


def make_state() -> tuple[OuterState, StateManifest]:
    values = np.arange(1000, dtype=np.float32)
    state = OuterState(anchor=values, momentum=-values[:900])
    return state, StateManifest.describe(state, EPOCH)


def offer(state_hash: StateHash, manifest: StateManifest | None) -> StateOffer:
    packed = msgpack.packb(manifest.to_wire()) if manifest is not None else b""
    return StateOffer(run="mnist", epoch=EPOCH, state_hash=state_hash, manifest=packed, ancestors=())


def test_a_fetch_ends_at_once_when_every_donor_has_moved_on() -> None:
    async def scenario() -> None:
        asked: list[PeerId] = []
        fetch = Fetch("mnist", EPOCH, StateHash("ab"), DONORS, lambda peer, _: asked.append(peer))
        running = asyncio.ensure_future(fetch.run())
        await asyncio.sleep(0)
        assert asked == list(DONORS)
        for donor in DONORS:
            assert not running.done()
            fetch.offered(donor, offer(StateHash("ab"), None))
        async with asyncio.timeout(2):  # far less than what it waits for donors that say nothing
            assert await running is None

    asyncio.run(scenario())


def test_what_one_donor_refuses_another_gives() -> None:
    async def scenario() -> None:
        state, manifest = make_state()
        refusing, giving = DONORS

        def send(peer: PeerId, message: Message) -> None:
            if isinstance(message, AskState):
                loop.call_soon(fetch.offered, peer, offer(manifest.state_hash, manifest if peer == giving else None))
            elif isinstance(message, AskPieces):
                assert peer == giving
                for piece in message.pieces:
                    payload = memoryview(piece_bytes(manifest.span(piece).of(state)))
                    loop.call_soon(fetch.piece_arrived, peer, piece, payload)

        loop = asyncio.get_running_loop()
        fetch = Fetch("mnist", EPOCH, manifest.state_hash, (refusing, giving), send)
        found = await fetch.run()
        assert found is not None
        assert np.array_equal(found[0].anchor, state.anchor)
        assert np.array_equal(found[0].momentum, state.momentum)

    asyncio.run(scenario())


@pytest.mark.parametrize(("refusing", "donors"), [((), 2), (DONORS[1:], 1)])
def test_the_first_donor_hears_how_many_others_will_give(refusing: tuple[PeerId, ...], donors: int) -> None:
    async def scenario() -> None:
        state, manifest = make_state()
        first, told = DONORS[0], []

        def send(peer: PeerId, message: Message) -> None:
            if isinstance(message, AskState) and peer in (first, *refusing):
                loop.call_soon(fetch.offered, peer, offer(manifest.state_hash, manifest if peer == first else None))
            elif isinstance(message, AskPieces):
                told.append(message.donors)
                for piece in message.pieces:
                    payload = memoryview(piece_bytes(manifest.span(piece).of(state)))
                    loop.call_soon(fetch.piece_arrived, peer, piece, payload)

        loop = asyncio.get_running_loop()
        fetch = Fetch("mnist", EPOCH, manifest.state_hash, DONORS, send)
        assert await fetch.run() is not None
        assert told[0] == donors

    asyncio.run(scenario())


def test_the_pieces_of_two_states_are_told_apart() -> None:
    async def scenario() -> None:
        tags = {Fetch("mnist", EPOCH, StateHash(digits * 32), DONORS, lambda *_: None).tag for digits in ("ab", "cd")}
        assert tags == {version_tag(StateHash("ab" * 32)), version_tag(StateHash("cd" * 32))}
        assert len(tags) == 2
        assert max(tags) < 1 << 32

    asyncio.run(scenario())


def asked_of_a_donor(state: OuterState, local: np.ndarray | None) -> tuple[set[int], OuterState]:
    """The pieces that a newcomer asks for, and the state it has in the end."""

    async def scenario() -> tuple[set[int], OuterState]:
        manifest = StateManifest.describe(state, EPOCH)
        asked: set[int] = set()

        def send(peer: PeerId, message: Message) -> None:
            if isinstance(message, AskState):
                loop.call_soon(fetch.offered, peer, offer(manifest.state_hash, manifest))
            elif isinstance(message, AskPieces):
                asked.update(message.pieces)
                for piece in message.pieces:
                    loop.call_soon(fetch.piece_arrived, peer, piece, memoryview(piece_bytes(manifest.span(piece).of(state))))

        loop = asyncio.get_running_loop()
        fetch = Fetch("mnist", EPOCH, manifest.state_hash, DONORS[:1], send, local)
        found = await fetch.run()
        assert found is not None
        return asked, found[0]

    return asyncio.run(scenario())


def four_pieces() -> OuterState:
    """Two of the anchor, two of the momentum."""
    values = np.random.default_rng(1).standard_normal(PIECE_VALUES + 1000, dtype=np.float32)
    return OuterState(anchor=values, momentum=-values[: PIECE_VALUES + 500])


def changed(values: np.ndarray, at: int) -> np.ndarray:
    copied = values.copy()
    copied[at] += 1
    return copied


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (lambda state: None, {0, 1, 2, 3}),
        (lambda state: state.anchor, {2, 3}),
        (lambda state: changed(state.anchor, 5), {0, 2, 3}),
        (lambda state: changed(state.anchor, -1), {1, 2, 3}),
        (lambda state: state.anchor[:PIECE_VALUES], {1, 2, 3}),
        (lambda state: -state.anchor, {0, 1, 2, 3}),
    ],
    ids=["nothing", "the-same", "one-value-differs", "the-last-differs", "shorter", "alike-the-momentum"],
)
def test_pieces_that_are_here_alike_are_not_asked_for(
    change: Callable[[OuterState], np.ndarray | None], asked: set[int]
) -> None:
    state = four_pieces()
    found_asked, found = asked_of_a_donor(state, change(state))
    assert found_asked == asked
    assert found.anchor.tobytes() == state.anchor.tobytes()
    assert found.momentum.tobytes() == state.momentum.tobytes()


def test_pieces_of_zeros_are_not_asked_for() -> None:
    state = four_pieces()
    state.momentum[:] = 0
    state.anchor[PIECE_VALUES:] = 0
    asked, found = asked_of_a_donor(state, None)
    assert asked == {0}
    assert found.anchor.tobytes() == state.anchor.tobytes()
    assert not found.momentum.any()


def test_a_zero_of_the_other_sign_is_another_state() -> None:
    state = four_pieces()
    state.momentum[:] = 0
    state.momentum[3] = -0.0
    asked, found = asked_of_a_donor(state, state.anchor)
    assert asked == {2}
    assert np.signbit(found.momentum[3])


def test_when_all_is_here_nothing_is_asked_for() -> None:
    state = four_pieces()
    state.momentum[:] = 0
    asked, found = asked_of_a_donor(state, state.anchor)
    assert asked == set()
    assert found.anchor.tobytes() == state.anchor.tobytes()
    assert not np.shares_memory(found.anchor, state.anchor)


@pytest.mark.parametrize("manifest", [b"\xc1", b"\x93\x01", b"\x81\xc0\xc0", b"\x91" * 5000 + b"\xc0"])
def test_an_offer_that_is_no_manifest_is_its_senders_fault(manifest: bytes) -> None:
    async def scenario() -> None:
        fetch = Fetch("mnist", EPOCH, StateHash("ab"), DONORS, lambda *_: None)
        lie = StateOffer(run="mnist", epoch=EPOCH, state_hash=StateHash("ab"), manifest=manifest, ancestors=())
        with pytest.raises(MalformedMessage):
            fetch.offered(DONORS[0], lie)

    asyncio.run(scenario())
