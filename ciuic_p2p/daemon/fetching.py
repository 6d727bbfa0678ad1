"""Takes one version of a run's state from several donors at once, every piece verified. Knows no rounds.

Who comes to hold that version meanwhile becomes a donor too. A donor that is silent, refuses or lies is left out and its pieces
are asked of the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import structlog

from ciuic_p2p.core.ancestry import MOST_STATES
from ciuic_p2p.core.ledgers import Ledgers
from ciuic_p2p.core.messages import AskPieces, AskState, Message, StateOffer
from ciuic_p2p.core.piecework import Piecework
from ciuic_p2p.core.wire import unpack
from ciuic_p2p.errors import MalformedMessage, PeerUnreachable
from ciuic_p2p.tensors.codecs.base import Float32
from ciuic_p2p.tensors.outer import OuterState
from ciuic_p2p.tensors.state import StateManifest, piece_bytes
from ciuic_p2p.terms import LARGEST_MESSAGE_BYTES, PeerId, StateHash

log = structlog.get_logger(__name__)

OFFER_LIMIT_S = 10.0
LATE_OFFER_S = 1.0
"""A donor that has not answered by then is not counted on."""
STALL_LIMIT_S = 8.0
"""Without a piece from anybody for so long, what is missing is asked for again, of the next donors."""
MOST_STALLS = 3


def version_tag(state_hash: StateHash) -> int:
    """Tells the pieces of one version from those of another, in their frames' `term`: 32 bits of its hash."""
    return int(state_hash[:8], 16)


class Fetch:
    """One version. `run` returns the state; frames and messages come in by the other methods, frames from lane threads."""

    def __init__(
        self,
        run: str,
        epoch: int,
        state_hash: StateHash,
        donors: tuple[PeerId, ...],
        send: Callable[[PeerId, Message], None],
        local: Float32 | None = None,
    ) -> None:
        """local: values held here that may be the anchor's, such as a model that every script begins with alike."""
        self._run, self._epoch, self._state_hash = run, epoch, state_hash
        self._donors = list(donors)
        self._send = send
        self._local = local
        self._loop = asyncio.get_running_loop()
        self.ancestors: tuple[str, ...] = ()
        """Of the state, as the first donor says."""
        self._manifest: StateManifest | None = None
        self._state: OuterState | None = None
        self._work = Piecework(())
        self._refused: set[PeerId] = set()
        self._changed = asyncio.Event()
        self._lock = threading.Lock()
        self._began_s = self._loop.time()

    @property
    def tag(self) -> int:
        """Of the pieces wanted; others are of a fetch that was given up, and nobody's fault."""
        return version_tag(self._state_hash)

    @property
    def wanted(self) -> tuple[int, StateHash]:
        return self._epoch, self._state_hash

    def add_donor(self, donor: PeerId) -> None:
        """In the loop's thread: one more peer holds this version now."""
        if donor not in self._donors:
            self._donors.append(donor)
            self._ask_for_offer(donor)

    def drop_donor(self, donor: PeerId) -> None:
        """In the loop's thread: it is gone."""
        with self._lock:
            self._work.drop_donor(donor)
        self._refused.add(donor)
        self._changed.set()

    async def run(self) -> tuple[OuterState, StateManifest] | None:
        """None when no donor could give it."""
        self._began_s = self._loop.time()
        for donor in self._donors:
            self._ask_for_offer(donor)
        await self._wait(lambda: self._manifest is not None or self._refused >= set(self._donors), OFFER_LIMIT_S)
        if self._manifest is None:
            return None
        await self._loop.run_in_executor(None, self._take_from_here)
        for _ in range(MOST_STALLS):
            if await self._take_all():
                return self._taken()
            with self._lock:
                self._work.stalled()
        log.warning("state.fetch_stalled", run=self._run, epoch=self._epoch, missing=len(self._work.missing))
        return None

    async def _take_all(self) -> bool:
        """False when nothing came for too long."""
        while before := len(self._work.missing):
            self._ask_for_missing()
            donors = self._work.donors

            def is_another(before: int = before, donors: tuple[PeerId, ...] = donors) -> bool:
                return len(self._work.missing) < before or self._work.donors != donors

            if not donors or not await self._wait(is_another, STALL_LIMIT_S):
                return False
        return True

    def offered(self, sender: PeerId, offer: StateOffer) -> None:
        """In the loop's thread. Raises MalformedMessage when the manifest is not that of the wanted hash."""
        if sender not in self._donors or offer.state_hash != self._state_hash:
            return
        if not offer.manifest:  # it has moved on since it said that it has this state
            self._refused.add(sender)
            self._changed.set()
            return
        manifest = StateManifest.from_wire(unpack(offer.manifest, LARGEST_MESSAGE_BYTES))
        if (manifest.epoch, manifest.state_hash) != (self._epoch, self._state_hash):
            raise MalformedMessage(sender, "it offered a state that is not the one asked for")
        Ledgers.from_bytes(manifest.ledgers)  # so that what is held here can be read
        if self._manifest is None:
            self._manifest, self.ancestors = manifest, offer.ancestors[-MOST_STATES:]
            self._state = OuterState.empty(manifest.count, manifest.parameter_count)
            with self._lock:
                self._work = Piecework(range(len(manifest.piece_hashes)))
        with self._lock:
            self._work.add_donor(sender)
        self._changed.set()

    def piece_arrived(self, sender: PeerId, piece: int, payload: memoryview) -> None:
        """In a lane's thread. Raises MalformedMessage when the piece is not the one that the hash says."""
        manifest, state = self._manifest, self._state
        if manifest is None or state is None or piece not in self._work.missing:
            return
        if not manifest.verify_piece(piece, payload):
            raise MalformedMessage(sender, f"piece {piece} of its state does not have the promised hash")
        manifest.span(piece).of(state)[:] = np.frombuffer(payload, "<f4")
        self._found(piece)

    def _take_from_here(self) -> None:
        """Pieces that need not travel: zeros, as all momentum is at first, and what the local values have alike."""
        state, manifest = self._taken()
        for piece in sorted(self._work.missing):
            span = manifest.span(piece)
            values = span.of(state)
            local = self._local[span.start : span.stop] if self._local is not None and span.array == "anchor" else None
            for candidate in (np.zeros_like(values), local):
                if candidate is not None and manifest.verify_piece(piece, piece_bytes(candidate)):
                    np.copyto(values, candidate)
                    self._found(piece)
                    break

    def _found(self, piece: int) -> None:
        with self._lock:
            self._work.found(piece)
        self._loop.call_soon_threadsafe(self._changed.set)

    def _taken(self) -> tuple[OuterState, StateManifest]:
        assert self._state is not None
        assert self._manifest is not None
        return self._state, self._manifest

    def _ask_for_missing(self) -> None:
        expected = self._expected()
        with self._lock:
            asked, donors = self._work.asks(expected), max(len(self._work.donors), expected)
        for donor, pieces in asked.items():
            wanted = AskPieces(run=self._run, epoch=self._epoch, state_hash=self._state_hash, pieces=pieces, donors=donors)
            self._ask(donor, wanted)

    def _expected(self) -> int:
        """Donors, those too that are far and have not answered yet: the first to answer would else fill the line alone, and the
        others overfill it a moment later."""
        is_early = self._loop.time() < self._began_s + LATE_OFFER_S
        return len(set(self._donors) - self._refused) if is_early else 0

    def _ask_for_offer(self, donor: PeerId) -> None:
        self._ask(donor, AskState(run=self._run, epoch=self._epoch, state_hash=self._state_hash))

    def _ask(self, donor: PeerId, message: Message) -> None:
        try:
            self._send(donor, message)
        except PeerUnreachable as error:
            log.debug("state.donor_gone", donor=donor, error=str(error))

    async def _wait(self, done: Callable[[], bool], limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while not done():
                    self._changed.clear()
                    if not done():
                        await self._changed.wait()
        except TimeoutError:
            return done()
        return True
