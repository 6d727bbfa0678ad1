"""A splice over real sockets: bytes come out as they went in, an end is passed on, and nobody is read faster than the other."""

from __future__ import annotations

import asyncio
import resource
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import uvloop

from ciuic_p2p.net import splicing
from ciuic_p2p.net.splicing import Allowance, splice
from ciuic_p2p.net.wires import Streams

RUNNERS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
MEGABYTES = 20


@pytest.fixture(params=["splice(2)", "copying"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "copying":
        monkeypatch.setattr(splicing, "_HAS_SPLICE", False)
    elif not splicing._HAS_SPLICE:
        pytest.skip("this system has no splice(2)")


@dataclass
class Spliced:
    """The far ends of two connections that are spliced, and what was carried."""

    one: Streams
    other: Streams
    work: asyncio.Task[None]
    sockets: tuple[socket.socket, ...]
    pieces: list[int] = field(default_factory=list)


async def connection() -> tuple[Streams, socket.socket]:
    """A TCP connection: streams at one end, a bare socket at the other."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        far = socket.create_connection(listening.getsockname())
        near, _ = listening.accept()
    far.setblocking(False)
    return await asyncio.open_connection(sock=far), near


@asynccontextmanager
async def spliced(allowance: Allowance | None = None) -> AsyncIterator[Spliced]:
    one, near = await connection()
    other, far = await connection()
    pieces: list[int] = []
    loop = asyncio.get_running_loop()
    work = loop.create_task(splice(near, far, allowance or Allowance(loop.time), pieces.append))
    try:
        yield Spliced(one, other, work, (near, far), pieces)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        for writer in (one[1], other[1]):
            writer.close()
        for each in (near, far):
            each.close()


@RUNNERS
def test_bytes_come_out_as_they_went_in_both_ways(run: Callable[..., None]) -> None:
    async def story() -> None:
        data = secrets.token_bytes(1 << 20)
        async with spliced() as it, asyncio.timeout(60):
            sending = [asyncio.create_task(send(writer, data)) for writer in (it.one[1], it.other[1])]
            for reader in (it.one[0], it.other[0]):
                for _ in range(MEGABYTES):
                    assert await reader.readexactly(len(data)) == data
            await asyncio.gather(*sending)
            assert sum(it.pieces) <= 2 * MEGABYTES * len(data)
            assert max(it.pieces) <= splicing.PIECE_BYTES

    run(story())


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    for _ in range(MEGABYTES):
        writer.write(data)
        await writer.drain()


@RUNNERS
def test_an_end_in_order_is_passed_on_after_all_bytes_and_the_answer_still_comes(run: Callable[..., None]) -> None:
    async def story() -> None:
        async with spliced() as it, asyncio.timeout(30):
            it.one[1].write(b"goodbye" * 100_000)
            it.one[1].write_eof()
            assert await it.other[0].read(-1) == b"goodbye" * 100_000
            it.other[1].write(b"goodbye too")
            it.other[1].write_eof()
            assert await it.one[0].read(-1) == b"goodbye too"
            await it.work

    run(story())


@RUNNERS
def test_a_broken_connection_ends_the_splice_at_once(run: Callable[..., None]) -> None:
    async def story() -> None:
        async with spliced() as it, asyncio.timeout(30):
            it.one[1].write(b"x")
            assert await it.other[0].readexactly(1) == b"x"
            it.other[1].transport.abort()
            it.one[1].write(b"y" * 1_000_000)
            with suppress(OSError):  # it may have seen the reset as an end
                await it.work

    run(story())


def test_who_does_not_read_is_not_buffered_for() -> None:
    async def story() -> None:
        async with spliced() as it:
            held = 0
            it.one[1].transport.set_write_buffer_limits(high=0)
            stalled = asyncio.Event()
            writing = asyncio.create_task(write_until_stalled(it.one[1], stalled))
            async with asyncio.timeout(60):
                await stalled.wait()
            held = sum(it.pieces)
            writing.cancel()
            # then only the kernel's buffers and one piece are full
            assert held < 32 << 20

    asyncio.run(story())


async def write_until_stalled(writer: asyncio.StreamWriter, stalled: asyncio.Event) -> None:
    while True:
        writer.write(bytes(1 << 20))
        try:
            async with asyncio.timeout(1):
                await writer.drain()
        except TimeoutError:
            stalled.set()
            return


class TestAllowance:
    """With a clock that the test moves."""

    def test_without_a_rate_nothing_waits(self) -> None:
        allowance = Allowance(lambda: 5.0)
        assert [allowance.book(1_000_000) for _ in range(3)] == [0.0, 0.0, 0.0]

    def test_pieces_leave_one_after_the_other_at_the_rate(self) -> None:
        now = [0.0]
        allowance = Allowance(lambda: now[0])
        allowance.most_mbps = 8.0  # a megabyte a second
        assert [allowance.book(500_000) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]
        now[0] = 2.0
        assert allowance.book(1_000_000) == 0.0
        now[0] = 2.25
        assert allowance.book(1) == 0.75

    def test_time_in_which_nothing_was_carried_is_not_made_up_for(self) -> None:
        now = [0.0]
        allowance = Allowance(lambda: now[0])
        allowance.most_mbps = 8.0
        allowance.book(1_000_000)
        now[0] = 100.0
        assert [allowance.book(1_000_000) for _ in range(2)] == [0.0, 1.0]

    def test_a_rate_that_is_lifted_frees_the_next_piece(self) -> None:
        allowance = Allowance(lambda: 0.0)
        allowance.most_mbps = 1.0
        allowance.book(1 << 30)
        allowance.most_mbps = None
        assert allowance.book(1 << 30) == 0.0
        allowance.most_mbps = 1.0
        assert allowance.book(1) == 0.0


@pytest.mark.parametrize(("files", "splices"), [(1024, 42), (96, 4), (1, 0), (resource.RLIM_INFINITY, sys.maxsize)])
def test_splices_take_a_quarter_of_the_open_files_at_most(monkeypatch: pytest.MonkeyPatch, files: int, splices: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (files, files))
    assert splicing.most_splices() == splices
