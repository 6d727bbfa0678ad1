"""The daemon's socket: right answers to those who speak the protocol, and no harm from those who do not."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from local_kit import ATTACH, COUNT, AveragingHost, Refusing, open_descriptors, socket_of, start_script, within_half_a_minute

from ciuic_p2p import errors
from ciuic_p2p.errors import ConfigError, DaemonGone, HomeUnusable, LocalError, NoDaemon, RoundFailed
from ciuic_p2p.local import server, stream
from ciuic_p2p.local.channel import DaemonChannel, open_channel
from ciuic_p2p.local.exchange import Exchange
from ciuic_p2p.local.framing import encode
from ciuic_p2p.local.protocol import (
    Advanced,
    AskPosition,
    AskView,
    Attached,
    Invite,
    Leave,
    Message,
    Position,
    Progress,
    Ready,
    Refused,
    Stop,
    Stopping,
    View,
    Waiting,
)
from ciuic_p2p.local.server import LocalServer

READY = Ready(samples=10, steps=2, loss=0.5)


def next_that_counts(channel: DaemonChannel) -> Message | None:
    while isinstance(message := channel.receive(20.0), Waiting):
        pass
    return message


class TinyTrainer:
    """An attached trainer without a model."""

    def __init__(self, home: Path, value: float) -> None:
        self.exchange = Exchange(COUNT)
        self.exchange.values[:] = value
        self.channel = open_channel(home)
        self.channel.send(ATTACH, self.exchange.descriptor)
        assert isinstance(next_that_counts(self.channel), Attached)

    def advance(self, value: float) -> float:
        """The new anchor, for local values of `value`."""
        self.exchange.values[:] = value
        self.channel.send(READY)
        assert isinstance(next_that_counts(self.channel), Advanced)
        return float(self.exchange.values[0])

    def close(self) -> None:
        self.channel.close()
        self.exchange.close()


@contextmanager
def raw(home: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20.0)
        connection.connect(str(socket_of(home)))
        yield connection


def everything_from(connection: socket.socket) -> bytes:
    """Until the daemon hangs up."""
    data = b""
    try:
        while more := connection.recv(1 << 16):
            data += more
    except ConnectionResetError:
        pass
    return data


# -- those who speak the protocol -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_two_trainers_get_the_mean(tmp_path: Path, run: Callable[..., None]) -> None:
    async def scenario() -> None:
        host = AveragingHost(members=2)
        async with LocalServer(socket_of(tmp_path), host):
            anna = await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)
            bert = await asyncio.to_thread(TinyTrainer, tmp_path, 2.0)
            assert bert.exchange.values[0] == 1.0, "it got the anchor of the first"
            for value in (4.0, 8.0):
                means = await asyncio.gather(asyncio.to_thread(anna.advance, value), asyncio.to_thread(bert.advance, value + 2))
                assert means == [value + 1, value + 1]
            anna.close()
            bert.channel.send(Leave())
            await host.until(lambda: len(host.left_pids) == 2)

    within_half_a_minute(scenario(), run)


def test_questions_are_answered_in_their_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = AveragingHost()
        async with LocalServer(socket_of(tmp_path), host):
            await asyncio.to_thread(ask_all)
            assert host.stopped

    def ask_all() -> None:
        with open_channel(tmp_path) as channel:
            for number in range(40):
                channel.send(AskView(what="peers", options={"n": number}))
            for number in range(40):
                assert channel.receive(20.0) == View(value={"peers": {"n": number}})
            assert channel.ask(AskView(what="large", options={"size": 1 << 20}), View).value == b"x" * (1 << 20)
            assert channel.ask(Invite(options={"for": "anna"}), View).value == {"invite": {"for": "anna"}}
            channel.ask(Stop(), Stopping)
        with closing(TinyTrainer(tmp_path, 1.0)) as trainer:
            trainer.channel.send(Progress(samples=1, steps=1, loss=None))
            assert trainer.channel.ask(AskPosition(), Position) == Position(index=0, count=1, epoch=0)

    within_half_a_minute(scenario())


@pytest.mark.parametrize(
    ("raised", "arrives"),
    [
        (LocalError("no", "do this"), LocalError),
        (ConfigError("no", "do this"), ConfigError),
        (DaemonGone("no", "do this"), DaemonGone),
        (RoundFailed("no"), RoundFailed),
        (Refusing("no", "do this"), LocalError),
        (errors.RemoteError(None, "no"), LocalError),
        (ZeroDivisionError("a defect"), LocalError),
    ],
)
def test_what_the_host_raises_arrives_and_the_next_client_is_served(
    tmp_path: Path, raised: Exception, arrives: type[Exception]
) -> None:
    async def scenario() -> None:
        host = AveragingHost()
        async with LocalServer(socket_of(tmp_path), host):
            host.refusal = raised
            error = await asyncio.to_thread(refusal_of_a_view)
            assert type(error) is arrives
            assert "a defect" not in str(error)
            with pytest.raises(AssertionError, match="Refused"):
                await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)
            host.refusal = None
            (await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)).close()

    def refusal_of_a_view() -> Exception:
        with open_channel(tmp_path) as channel, pytest.raises(errors.SwarmError) as error:
            channel.ask(AskView(what="peers"), View)
        return error.value

    within_half_a_minute(scenario())


def test_the_socket_is_the_users_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        for _ in range(2):
            async with LocalServer(socket_of(tmp_path), AveragingHost()):
                assert socket_of(tmp_path).stat().st_mode & 0o777 == 0o600
        assert not socket_of(tmp_path).exists()
        with socket.socket(socket.AF_UNIX) as stale:  # as after kill -9
            stale.bind(str(socket_of(tmp_path)))
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            (await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)).close()

    within_half_a_minute(scenario())


def test_any_home_will_do_however_long_its_path(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30) / "größe"
    home.mkdir(parents=True)

    async def scenario() -> None:
        async with LocalServer(socket_of(home), AveragingHost()):
            (await asyncio.to_thread(TinyTrainer, home, 1.0)).close()

    within_half_a_minute(scenario())


def test_a_home_that_cannot_be_listened_in_is_one_clear_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(errors.AddressUnusable, match="cannot listen on"):
            async with LocalServer(socket_of(tmp_path / "missing"), AveragingHost()):
                pass

    within_half_a_minute(scenario())


def test_without_a_daemon_the_command_that_starts_one_is_named(tmp_path: Path) -> None:
    for home in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NoDaemon, match=f"ciuic-peer start --home {home}"):
            open_channel(home)


def test_a_socket_of_another_user_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: str) -> None:
        raise PermissionError(address)  # what the kernel says; the tests may run as root, whom it lets through

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(HomeUnusable, match="belongs to another user"):
        open_channel(tmp_path)


def test_when_the_server_ends_its_clients_see_it_and_the_host_hears_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = AveragingHost(members=2)
        async with LocalServer(socket_of(tmp_path), host):
            trainer = await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)
            waiting = asyncio.create_task(asyncio.to_thread(trainer.advance, 2.0))
            await host.until(lambda: host.heard)
        assert host.left_pids == [os.getpid()]
        with pytest.raises(DaemonGone, match="ciuic-peer start --home"):
            await waiting
        trainer.close()

    within_half_a_minute(scenario())


# -- those who die --------------------------------------------------------------------------------------------------------

FORKED = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.exchange import Exchange
from local_kit import ATTACH, COUNT
exchange = Exchange(COUNT)
channel = open_channel(Path(sys.argv[1]))
channel.send(replace(ATTACH, pid=os.getpid()), exchange.descriptor)
channel.receive()
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def test_a_killed_trainer_has_left_though_its_forked_loader_lives_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = AveragingHost()
        async with LocalServer(socket_of(tmp_path), host):
            with start_script(FORKED, tmp_path) as process:
                assert process.stdout is not None
                loader = int(await asyncio.to_thread(process.stdout.readline))
                process.kill()
                await host.until(lambda: host.left_pids == [process.pid])
                os.kill(loader, 0)  # it was there all the while
                os.kill(loader, signal.SIGKILL)

    within_half_a_minute(scenario())


# -- those who do not speak it ---------------------------------------------------------------------------------------------


def sealed(count: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    descriptor = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4 * count)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


HOSTILE: dict[str, tuple[bytes, Callable[[], int] | None, str]] = {
    "a huge length": (b"\xff\xff\xff\xff", None, "a message of 4294967295 bytes"),
    "garbage": (b"\0\0\0\x10" + random.Random(5).randbytes(300), None, "not a msgpack map"),
    "nothing in a message": (b"\0\0\0\0", None, "not a msgpack map"),
    "the daemon's own words": (encode(Stopping()), None, "unknown message"),
    "ready before attach": (encode(READY), None, "ready before attach"),
    "progress before attach": (encode(Progress(samples=1, steps=1, loss=None)), None, "progress before attach"),
    "a position before attach": (encode(AskPosition()), None, "position before attach"),
    "attach without memory": (encode(ATTACH), None, "without its exchange"),
    "attach with a file": (encode(ATTACH), lambda: os.open(__file__, os.O_RDONLY), "not memory that can be sealed"),
    "attach with memory of another size": (encode(ATTACH), lambda: sealed(COUNT + 1), "has 28 bytes"),
    "attach with memory that may shrink": (encode(ATTACH), lambda: sealed(COUNT, 0), "not sealed"),
    "an impossible layout": (
        encode(replace(ATTACH, layout={"entries": [["w", [-1], "float32", "parameter"]]})),
        lambda: sealed(COUNT),
        "impossible shape",
    ),
    "another version": (encode(replace(ATTACH, version=99)), lambda: sealed(COUNT), "speaks version 99"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_client_is_told_why_and_hung_up_on_while_a_trainer_trains_on(tmp_path: Path, what: str) -> None:
    data, make, complaint = HOSTILE[what]

    def attack() -> bytes:
        with raw(tmp_path) as connection:
            descriptors = [make()] if make else []
            socket.send_fds(connection, [data], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            return everything_from(connection)

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            trainer = await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)
            await asyncio.to_thread(attack)
            before = open_descriptors()
            answer = await asyncio.to_thread(attack)
            assert complaint.encode() in answer
            assert b"refused" in answer
            assert await asyncio.to_thread(trainer.advance, 3.0) == 3.0
            assert open_descriptors() == before
            trainer.close()

    within_half_a_minute(scenario())


def test_ready_again_before_the_answer_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = AveragingHost(members=2)
        async with LocalServer(socket_of(tmp_path), host):
            trainer = await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)
            trainer.channel.send(READY)
            trainer.channel.send(READY)
            refused = await asyncio.to_thread(next_that_counts, trainer.channel)
            assert isinstance(refused, Refused)
            assert "ready while the exchange is not the trainer's" in refused.what
            await host.until(lambda: host.left_pids)
            assert host.heard == [READY]
            trainer.close()

    within_half_a_minute(scenario())


def test_a_second_attach_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = AveragingHost()
        async with LocalServer(socket_of(tmp_path), host):
            trainer = await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)
            trainer.channel.send(ATTACH, trainer.exchange.descriptor)
            refused = await asyncio.to_thread(next_that_counts, trainer.channel)
            assert isinstance(refused, Refused)
            assert "a second attach" in refused.what
            await host.until(lambda: host.left_pids)
            trainer.close()

    within_half_a_minute(scenario())


def test_descriptors_that_nobody_asked_for_are_closed(tmp_path: Path) -> None:
    def send_many() -> None:
        with raw(tmp_path) as connection:
            extra = [os.dup(0) for _ in range(20)]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", extra))]
            for _ in range(10):
                connection.sendmsg([encode(AskView(what="peers"))], rights)
                assert connection.recv(1 << 16)
            for descriptor in extra:
                os.close(descriptor)
            connection.shutdown(socket.SHUT_WR)
            everything_from(connection)

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            (await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)).close()
            await asyncio.to_thread(send_many)
            before = open_descriptors()
            await asyncio.to_thread(send_many)
            assert open_descriptors() <= before

    within_half_a_minute(scenario())


def test_a_client_that_never_reads_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_WAITING_BYTES", 1 << 20)

    def flood() -> None:
        question = encode(AskView(what="large", options={"size": 100_000}))
        with raw(tmp_path) as connection:
            while True:  # until the daemon hangs up
                connection.sendall(question)

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            trainer = await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)
            with pytest.raises(ConnectionError):
                await asyncio.to_thread(flood)
            assert await asyncio.to_thread(trainer.advance, 3.0) == 3.0
            trainer.close()

    within_half_a_minute(scenario())


def test_a_client_that_stops_inside_a_message_holds_up_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX) as stuck:
            async with LocalServer(socket_of(tmp_path), AveragingHost()):
                stuck.connect(str(socket_of(tmp_path)))
                stuck.sendall(encode(ATTACH)[:-1])
                trainer = await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)
                assert await asyncio.to_thread(trainer.advance, 3.0) == 3.0
                trainer.close()
            assert everything_from(stuck) == b""

    within_half_a_minute(scenario())


def test_too_many_clients_are_hung_up_on_until_some_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)

    def ask(channel: DaemonChannel) -> Any:
        return channel.ask(AskView(what="peers"), View).value

    def ask_until_served() -> None:
        while True:
            with open_channel(tmp_path) as channel:
                try:
                    ask(channel)
                except DaemonGone:
                    continue
                return

    async def scenario() -> None:
        async with LocalServer(socket_of(tmp_path), AveragingHost()):
            channels = [open_channel(tmp_path) for _ in range(4)]
            for channel in channels[:3]:
                await asyncio.to_thread(ask, channel)
            with pytest.raises(DaemonGone):
                await asyncio.to_thread(ask, channels[3])
            for channel in channels:
                channel.close()
            await asyncio.to_thread(ask_until_served)

    within_half_a_minute(scenario())


def test_a_daemon_that_talks_nonsense_is_not_believed(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with DaemonChannel(ours, tmp_path) as channel, theirs:
        theirs.sendall(encode(Stopping()))
        with pytest.raises(LocalError, match="stopping as the answer to view"):
            channel.ask(AskView(what="peers"), View)
    ours, theirs = socket.socketpair()
    with DaemonChannel(ours, tmp_path) as channel, theirs:
        theirs.sendall(b"\0\0\0\1\xc0")
        with pytest.raises(LocalError, match="same version"):
            channel.receive()
    ours, theirs = socket.socketpair()
    with DaemonChannel(ours, tmp_path) as channel, theirs:
        theirs.sendall(encode(Stopping())[:-1])
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(DaemonGone):
            channel.receive()


def test_nothing_within_the_time_is_nothing(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with DaemonChannel(ours, tmp_path) as channel, theirs:
        assert channel.receive(0.01) is None
        theirs.sendall(encode(Stopping()) + encode(Waiting(why="x")))
        assert channel.receive(20.0) == Stopping()
        assert channel.receive(0.01) == Waiting(why="x")


def test_a_trainer_that_has_left_can_be_spoken_to_in_vain(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = AveragingHost()
        async with LocalServer(socket_of(tmp_path), host):
            trainer = await asyncio.to_thread(TinyTrainer, tmp_path, 1.0)
            seat = host.trainers[0]
            trainer.close()
            await host.until(lambda: host.left_pids)
            seat.say_refused(LocalError("too late"))
            np.copyto(seat.exchange, 2.0)  # its memory is the daemon's as long as it is looked at

    within_half_a_minute(scenario())
