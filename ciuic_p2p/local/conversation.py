"""One client of the daemon: splits its bytes into messages, brings each to the host, and tells it what went wrong.

Knows nothing of what the host does with them, and nothing of other clients.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import structlog

from ciuic_p2p.errors import LocalError, MalformedMessage, SwarmError
from ciuic_p2p.local.checks import LONGEST_TEXT
from ciuic_p2p.local.exchange import map_received
from ciuic_p2p.local.framing import MessageSplitter, decode, encode
from ciuic_p2p.local.protocol import (
    LOCAL_VERSION,
    TO_DAEMON,
    AskLease,
    AskPosition,
    AskView,
    Attach,
    Invite,
    Leave,
    Message,
    Moved,
    ObjectRequest,
    Progress,
    Ready,
    Refused,
    SnapshotOrder,
    Stop,
    Stopping,
    View,
)
from ciuic_p2p.local.trainer import Trainer, refusal
from ciuic_p2p.tensors.layout import Layout

if TYPE_CHECKING:
    from ciuic_p2p.local.server import TrainerHost
    from ciuic_p2p.local.stream import Stream

log = structlog.get_logger(__name__)

MOST_UNANSWERED = 16
"""Messages read ahead of the one being answered; then the client waits, as its socket fills."""
LARGEST_INLINE_BYTES = 1 << 16
"""Larger messages are decoded in a thread, so that the loop is not held up."""
SAME_VERSION = "use the same version of ciuic-p2p for the daemon and the script"


class Conversation:
    """Runs until the client leaves, dies or breaks the protocol."""

    def __init__(self, stream: Stream, host: TrainerHost) -> None:
        self._stream = stream
        self._host = host
        self._bodies: asyncio.Queue[bytes] = asyncio.Queue(MOST_UNANSWERED)
        self._trainer: Trainer | None = None

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._stream.write())
                reading = tasks.create_task(self._read())
                answering = tasks.create_task(self._answer_all())
                await asyncio.wait({reading, answering, writing}, return_when=asyncio.FIRST_COMPLETED)
                reading.cancel()
                answering.cancel()
                await self._stream.flush()
                writing.cancel()
        finally:
            trainer, self._trainer = self._trainer, None  # each knows the other: its memory would stay until a collection
            if trainer is not None:
                await self._host.left(trainer)

    async def _read(self) -> None:
        splitter = MessageSplitter()
        while data := await self._stream.receive():
            splitter.feed(data)
            try:
                for body in splitter.bodies():
                    await self._bodies.put(body)
            except MalformedMessage as error:
                self._refuse(error)
                return

    async def _answer_all(self) -> None:
        try:
            while True:
                message = await _decoded(await self._bodies.get())
                if isinstance(message, Leave) or not await self._answered(message):
                    return
        except MalformedMessage as error:
            self._refuse(error)

    async def _answered(self, message: Message) -> bool:
        """Whether the conversation may go on."""
        try:
            await self._answer(message)
        except MalformedMessage:
            raise
        except SwarmError as error:
            self._refuse(error)
            return not isinstance(message, Attach)
        except Exception:  # a defect of the host must not take the daemon down, nor leave the client waiting
            log.exception("local.host_failed", message=message.type)
            self._refuse(LocalError(f"the daemon failed at {message.type}", "its log says why"))
            return False
        return True

    async def _answer(self, message: Message) -> None:
        match message:
            case Attach():
                await self._attach(message)
            case Progress():
                await self._host.progress(self._attached(message), message)
            case Ready():
                await self._ready(message)
            case AskPosition():
                self._say(await self._host.position(self._attached(message)))
            case AskLease():
                self._say(await self._host.lease(self._attached(message), message))
            case AskView():
                self._say(View(value=await self._host.view(message.what, message.options)))
            case Invite():
                self._say(View(value=await self._host.view(message.type, message.options)))
            case ObjectRequest():
                self._say(View(value=await self._host.objects(message, self._say_moved)))
            case SnapshotOrder():
                self._say(View(value=await self._host.snapshot(message.what, message.options)))
            case Stop():
                self._say(Stopping())
                await self._host.stop()
            case _:
                raise MalformedMessage(None, f"{message.type} is not for the daemon")

    async def _attach(self, attach: Attach) -> None:
        descriptor = self._stream.take_descriptor()
        if descriptor is None:
            raise MalformedMessage(None, "an attach without its exchange")
        try:
            if self._trainer is not None:
                raise MalformedMessage(None, "a second attach on one connection")
            if attach.version != LOCAL_VERSION:
                spoken = f"the script speaks version {attach.version}, the daemon version {LOCAL_VERSION}"
                raise LocalError(spoken, SAME_VERSION)
            layout = await asyncio.to_thread(Layout.from_wire, attach.layout)
            exchange = map_received(descriptor, layout.count)
        finally:
            os.close(descriptor)
        self._trainer = Trainer(attach, exchange, self._say)
        await self._host.attach(self._trainer, attach)

    async def _ready(self, ready: Ready) -> None:
        trainer = self._attached(ready)
        if not trainer.may_be_ready:
            raise MalformedMessage(None, "ready while the exchange is not the trainer's")
        trainer.may_be_ready = False
        await self._host.ready(trainer, ready)

    def _attached(self, message: Message) -> Trainer:
        if self._trainer is None:
            raise MalformedMessage(None, f"{message.type} before attach")
        return self._trainer

    def _say_moved(self, done_bytes: int, total_bytes: int) -> None:
        self._say(Moved(done_bytes=done_bytes, total_bytes=total_bytes))

    def _say(self, message: Message) -> None:
        self._stream.send(encode(message))

    def _refuse(self, error: SwarmError) -> None:
        if isinstance(error, MalformedMessage):
            log.warning("local.malformed_message", error=str(error))
            reason = str(error).partition(": ")[2]  # a RemoteError names a peer first; there is none here
            what = f"the daemon does not understand: {reason}"[:LONGEST_TEXT]
            self._say(Refused(kind=MalformedMessage.__name__, what=what, remedy=SAME_VERSION))
        else:
            self._say(refusal(error))


async def _decoded(body: bytes) -> Message:
    if len(body) <= LARGEST_INLINE_BYTES:
        return decode(body, TO_DAEMON)
    return await asyncio.to_thread(decode, body, TO_DAEMON)
