"""The blocking end of the daemon's unix socket, for the trainer and the command line. Knows no model and no event loop."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from weakref import WeakSet

from ciuic_p2p import errors
from ciuic_p2p.config import socket_path
from ciuic_p2p.errors import DaemonGone, LocalError, MalformedMessage, NoDaemon, RoundFailed, SwarmError
from ciuic_p2p.local.address import short_address
from ciuic_p2p.local.framing import MessageSplitter, decode, encode
from ciuic_p2p.local.protocol import FROM_DAEMON, Message, Moved, Refused, Waiting

Reply = TypeVar("Reply", bound=Message)

_RECEIVE_BYTES = 1 << 16
_LAST_WORD_S = 1.0
"""What a daemon said before it hung up is here already; this only bounds a socket that fails in another way."""


def open_channel(home: Path) -> DaemonChannel:
    """Connects to the daemon of `home`.

    Raises NoDaemon, naming the command that starts one, when none answers; HomeUnusable when the socket is another user's.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_address(socket_path(home)) as address:
            connection.connect(address)
    except PermissionError:
        connection.close()
        whose = f"the daemon of {home} belongs to another user"
        raise errors.HomeUnusable(whose, "set CIUIC_HOME to a home of yours") from None
    except OSError:
        connection.close()
        raise NoDaemon(f"no daemon answers at {home}", f"start one with `{start_command(home)}`") from None
    return DaemonChannel(connection, home)


def start_command(home: Path) -> str:
    """What to type to start the daemon of `home`."""
    return f"ciuic-peer start --home {home}"


@functools.cache
def _open_channels() -> WeakSet[DaemonChannel]:
    """Forked children, such as those that load data, close their copies: else the daemon would not see that a trainer died."""
    channels: WeakSet[DaemonChannel] = WeakSet()

    def close_all() -> None:
        for channel in channels:
            channel.close()

    os.register_at_fork(after_in_child=close_all)
    return channels


class DaemonChannel:
    """One conversation with the daemon. Not thread-safe. Any method raises DaemonGone once the socket has ended."""

    def __init__(self, connection: socket.socket, home: Path) -> None:
        self._connection = connection
        self._home = home
        self._splitter = MessageSplitter()
        self._received: list[Message] = []
        _open_channels().add(self)

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Sends a message and, with it, a copy of `descriptor`. Raises what the daemon refused with before it hung up."""
        data = memoryview(encode(message))
        try:
            self._connection.settimeout(None)
            if descriptor is not None:
                data = data[socket.send_fds(self._connection, [data], [descriptor]) :]
            if data:  # sending nothing fails too when the daemon has answered and hung up meanwhile: its answer is to be read
                self._connection.sendall(data)
        except OSError:
            raise self._last_word() from None

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when none came within `timeout_s` (None: waits as long as it takes)."""
        while not self._received:
            try:
                self._connection.settimeout(timeout_s)
                data = self._connection.recv(_RECEIVE_BYTES)
            except TimeoutError:
                return None
            except OSError:
                raise self._gone() from None
            if not data:
                raise self._gone()
            self._take(data)
        return self._received.pop(0)

    def ask(self, message: Message, reply: type[Reply], moved: Callable[[int, int], None] | None = None) -> Reply:
        """Sends a question and waits for its answer. Raises what the daemon refused it with.

        moved: told how many bytes of how many are done, where the daemon says so meanwhile.
        """
        self.send(message)
        while isinstance(answer := self.receive(), Waiting | Moved):
            if isinstance(answer, Moved) and moved is not None:
                moved(answer.done_bytes, answer.total_bytes)
        if isinstance(answer, Refused):
            raise error_of(answer)
        if not isinstance(answer, reply):
            raise self._not_understood(f"{answer and answer.type} as the answer to {message.type}")
        return answer

    def close(self) -> None:
        """Ends the conversation; to the daemon the same as leaving."""
        self._connection.close()

    def __enter__(self) -> DaemonChannel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _take(self, data: bytes) -> None:
        self._splitter.feed(data)
        try:
            self._received.extend(decode(body, FROM_DAEMON) for body in self._splitter.bodies())
        except MalformedMessage as error:
            raise self._not_understood(str(error)) from None

    def _last_word(self) -> SwarmError:
        """Why the daemon hung up: its refusal may lie unread, and says more than that it is gone."""
        try:
            while (message := self.receive(_LAST_WORD_S)) is not None:
                if isinstance(message, Refused):
                    return error_of(message)
        except (DaemonGone, LocalError) as error:
            return error
        return self._gone()

    def _gone(self) -> DaemonGone:
        return DaemonGone(f"the daemon of {self._home} went away", f"start it again with `{start_command(self._home)}`")

    def _not_understood(self, what: str) -> LocalError:
        self.close()
        return LocalError(f"the daemon said something unexpected: {what}", "use the same version of ciuic-p2p on both sides")


def error_of(refused: Refused) -> SwarmError:
    """The exception that a refusal stands for; kinds of another version become a LocalError."""
    if refused.kind == RoundFailed.__name__:
        return RoundFailed(refused.what)
    kind = getattr(errors, refused.kind, None)
    if isinstance(kind, type) and issubclass(kind, LocalError | errors.Transient):
        return kind(refused.what, refused.remedy)
    return LocalError(refused.what, refused.remedy)
