"""A `Receiver` that writes down what it is told, and lets a test wait for it. Knows no transport."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.terms import PeerId

PATIENCE_S = 30.0


class Recorder:
    """Made in the event loop's thread."""

    def __init__(self) -> None:
        self.opened: list[tuple[PeerId, str]] = []
        self.moved: list[tuple[PeerId, str]] = []
        self.steered: list[tuple[PeerId, str]] = []
        self.closed: list[tuple[PeerId, Exception | None]] = []
        self.messages: list[tuple[PeerId, bytes]] = []
        self.frames: list[tuple[PeerId, FrameHeader, bytes]] = []
        self.order: list[str] = []
        self.refuse_frames_with: Exception | None = None
        self.let_frames_in = threading.Event()
        """Cleared by a test that wants the receiver to be slow."""
        self.let_frames_in.set()
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def session_opened(self, peer: PeerId, path: str) -> None:
        self.opened.append((peer, path))
        self._note("opened")

    def session_moved(self, peer: PeerId, path: str) -> None:
        self.moved.append((peer, path))
        self._note("moved")

    def lanes_moved(self, peer: PeerId, path: str) -> None:
        self.steered.append((peer, path))
        self._note("steered")

    def session_closed(self, peer: PeerId, error: Exception | None) -> None:
        self.closed.append((peer, error))
        self._note("closed")

    def message_received(self, peer: PeerId, message: bytes) -> None:
        self.messages.append((peer, message))
        self._note("message")

    def frame_received(self, peer: PeerId, header: FrameHeader, payload: memoryview) -> None:
        self.let_frames_in.wait(PATIENCE_S)
        if self.refuse_frames_with is not None:
            raise self.refuse_frames_with
        self.frames.append((peer, header, bytes(payload)))
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, "frame")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that is told. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _note(self, what: str) -> None:
        self.order.append(what)
        self._changed.set()
