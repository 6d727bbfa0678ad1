"""The daemon's unix socket: accepts trainers and the command line and hands what they say to a `TrainerHost`.

Knows nothing of rounds or runs. A client that lies, floods, stalls or dies costs its own connection, nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import structlog

from ciuic_p2p.errors import AddressUnusable
from ciuic_p2p.local.address import short_address
from ciuic_p2p.local.conversation import Conversation
from ciuic_p2p.local.protocol import AskLease, Attach, Leased, ObjectRequest, Position, Progress, Ready
from ciuic_p2p.local.stream import Stream
from ciuic_p2p.local.trainer import Trainer

log = structlog.get_logger(__name__)

MOST_CONNECTIONS = 128
"""Trainers and commands at once; more are hung up on, so that a loop of commands cannot use up descriptors."""


class TrainerHost(Protocol):
    """Who answers. A SwarmError raised by any method reaches the client as `refused`; the others' calls go on meanwhile.

    Calls of one client come one after the other. The call in progress is cancelled when its client dies.
    """

    async def attach(self, trainer: Trainer, attach: Attach) -> None:
        """`trainer.exchange` holds its parameters. Ends in `say_attached`, now or after this returns; raising detaches."""

    async def progress(self, trainer: Trainer, progress: Progress) -> None:
        """At most once a second, between anchors."""

    async def ready(self, trainer: Trainer, ready: Ready) -> None:
        """The exchange holds the local parameters, and is the daemon's until `say_advanced`, now or later."""

    async def left(self, trainer: Trainer) -> None:
        """It left or died. Called once after every attach that began, whether it succeeded or not."""

    async def position(self, trainer: Trainer) -> Position:
        """The share of a dataset that is this trainer's."""

    async def lease(self, trainer: Trainer, ask: AskLease) -> Leased:
        """What this trainer holds of a dataset; waits until that is something, where it is asked to."""

    async def view(self, what: str, options: dict[str, Any]) -> Any:
        """Plain data for the command line; `what` may be anything, "invite" among it."""

    async def objects(self, request: ObjectRequest, moved: Callable[[int, int], None]) -> Any:
        """Plain data. moved: to be told how many bytes of how many are done, now and then."""

    async def snapshot(self, what: str, options: dict[str, Any]) -> Any:
        """Plain data for the command line, once it is done."""

    async def stop(self) -> None:
        """Begins to end the daemon and returns at once."""


class LocalServer:
    """Answers on `socket_path` inside `async with`. The caller holds the home's lock, so a socket file found there is stale."""

    def __init__(self, socket_path: Path, host: TrainerHost) -> None:
        self._path = socket_path
        self._host = host
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> LocalServer:
        self._listener = _listen(self._path)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._accepting = self._tasks.create_task(self._accept(), name="local.accept")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._accepting.cancel()
        for connection in self._connections:
            connection.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            self._listener.close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("local.accept_failed", error=str(error))
                await asyncio.sleep(1.0)  # out of descriptors: asking again at once would only burn the processor
                continue
            if len(self._connections) >= MOST_CONNECTIONS:
                log.warning("local.too_many_connections", most=MOST_CONNECTIONS)
                connection.close()
                continue
            task = self._tasks.create_task(self._converse(connection), name="local.conversation")
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _converse(self, connection: socket.socket) -> None:
        stream = Stream(connection)
        try:
            await Conversation(stream, self._host).run()
        except Exception:  # the supervisor of one client: whatever went wrong with it, the daemon goes on
            log.exception("local.conversation_failed")
        finally:
            stream.close()


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setblocking(False)
    try:
        if path.is_socket():
            path.unlink()
        os.fchmod(listener.fileno(), 0o600)  # before bind, so that the file never exists with wider rights
        with short_address(path) as address:
            listener.bind(address)
        listener.listen(MOST_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise AddressUnusable(f"cannot listen on {path}: {error.strerror}", "use another --home") from None
    return listener
