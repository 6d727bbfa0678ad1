"""Each defect of hivemind's client, shown on the original and absent from ours, on real child processes.

When a new hivemind mends one, the test of the original fails: then the guard against it can go.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress

import pytest
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PHandlerError
from hivemind.proto import dht_pb2
from swarm_kit import eventually, new_identity

from ciuic_p2p.errors import P2PDown, PeerUnreachable
from ciuic_p2p.net import guard
from ciuic_p2p.net.guard import GuardedControl, GuardedP2P
from ciuic_p2p.net.multiaddrs import EncodedMultiaddr
from ciuic_p2p.net.p2pd import P2pd, P2pdSettings
from ciuic_p2p.net.ports import settle_ports

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]


@asynccontextmanager
async def original(**settings):
    p2p = await P2P.create(host_maddrs=LOOPBACK, nat_port_map=False, **settings)
    try:
        yield p2p
    finally:
        await p2p.shutdown()


@asynccontextmanager
async def guarded(call_limit_s=5.0):
    listen = settle_ports(LOOPBACK)
    p2pd = await P2pd.launch(P2pdSettings(identity_file=new_identity().file, listen=listen, map_ports=False))
    control = GuardedControl(p2pd.control_socket, p2pd.listener_socket, call_limit_s)
    try:
        await control.attach()
        p2p = GuardedP2P(control)
        await p2p.identify()
        p2p.child = p2pd
        yield p2p
    finally:
        control.close()
        await p2pd.stop()


async def connect(one, other):
    addresses = [str(address).rpartition("/p2p/")[0] for address in await other.get_visible_maddrs()]
    await one._client.connect(other.peer_id, map(EncodedMultiaddr, addresses))


class ThreadedPeer:
    """An original peer in a loop of its own, so that it replies while the test's loop is blocked."""

    def __enter__(self):
        self.ready: Future = Future()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.thread.start()
        self.peer_id, self.addresses = self.ready.result(20)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.end.set)
        self.thread.join()

    async def _run(self):
        self.loop, self.end = asyncio.get_running_loop(), asyncio.Event()

        async def reply_later(data, remote):
            await asyncio.sleep(0.1)
            return data

        async with original() as p2p:
            await p2p._client.add_unary_handler("echo", reply_later)
            addresses = [str(address).rpartition("/p2p/")[0] for address in await p2p.get_visible_maddrs()]
            self.ready.set_result((p2p.peer_id, addresses))
            await self.end.wait()


async def cancel_just_as_the_reply_comes(client, peer):
    """The loop is blocked while the reply arrives and the call's timer runs out, so both are handled in one turn."""
    await client.connect(peer.peer_id, map(EncodedMultiaddr, peer.addresses))
    assert await client.call_unary_handler(peer.peer_id, "echo", b"warm") == b"warm"
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, lambda: time.sleep(0.5))  # noqa: ASYNC251  # the stall is what is tested
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.3):
            await client.call_unary_handler(peer.peer_id, "echo", b"late")


def test_the_originals_reader_dies_when_a_call_is_cancelled_as_its_reply_comes():
    async def run(peer):
        async with original() as p2p:
            await cancel_just_as_the_reply_comes(p2p._client, peer)
            with pytest.raises(asyncio.InvalidStateError):
                await asyncio.wait_for(p2p._client.control._read_task, 3)

    with ThreadedPeer() as peer:
        asyncio.run(run(peer))


def test_our_reader_survives_that():
    async def run(peer):
        async with guarded() as p2p:
            await cancel_just_as_the_reply_comes(p2p._client, peer)
            assert await p2p._client.call_unary_handler(peer.peer_id, "echo", b"on") == b"on"

    with ThreadedPeer() as peer:
        asyncio.run(run(peer))


async def reply_with_too_much(data, remote):
    return bytes(guard.LARGEST_UNARY_BYTES + 1)


def test_the_originals_too_large_reply_leaves_the_caller_waiting():
    async def run():
        async with original() as one, original() as other:
            await other._client.add_unary_handler("much", reply_with_too_much)
            await connect(one, other)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(one._client.call_unary_handler(other.peer_id, "much", b""), 2)

    asyncio.run(run())


def test_our_too_large_reply_is_an_error_at_once():
    async def run():
        async with guarded(60) as one, guarded(60) as other:
            await other._client.add_unary_handler("much", reply_with_too_much)
            await connect(one, other)
            with pytest.raises(P2PHandlerError, match="size limit"):
                await one._client.call_unary_handler(other.peer_id, "much", b"")

    asyncio.run(run())


def test_the_largest_reply_of_ours_arrives():
    async def run():
        async def reply(data, remote):
            return bytes(guard.LARGEST_REPLY_BYTES)

        async with guarded(60) as one, guarded(60) as other:
            await other._client.add_unary_handler("much", reply)
            await connect(one, other)
            assert len(await one._client.call_unary_handler(other.peer_id, "much", b"")) == guard.LARGEST_REPLY_BYTES

    asyncio.run(run())


def test_a_remote_that_never_replies_costs_the_call_limit_and_no_more():
    async def run():
        async with guarded(0.5) as one, original() as other:
            await other._client.add_unary_handler("much", reply_with_too_much)
            await connect(one, other)
            with pytest.raises(PeerUnreachable, match=r"did not reply to much within 0\.5 s"):
                await one._client.call_unary_handler(other.peer_id, "much", b"")

    asyncio.run(run())


def test_a_handler_that_fails_tells_only_the_kind_of_failure():
    async def run():
        async def fail(data, remote):
            raise ValueError("a path, a key, a name")

        async with guarded() as one, guarded() as other:
            await other._client.add_unary_handler("fail", fail)
            await connect(one, other)
            with pytest.raises(P2PHandlerError, match="^ValueError$"):
                await one._client.call_unary_handler(other.peer_id, "fail", b"")

    asyncio.run(run())


def test_too_many_requests_at_once_are_refused_not_queued(monkeypatch):
    monkeypatch.setattr(guard, "MOST_REQUESTS_AT_ONCE", 3)

    async def run():
        release = asyncio.Event()

        async def hold(data, remote):
            await release.wait()
            return b"done"

        async with guarded() as one, guarded() as other:
            await other._client.add_unary_handler("hold", hold)
            await connect(one, other)
            calls = [asyncio.ensure_future(one._client.call_unary_handler(other.peer_id, "hold", b"")) for _ in range(5)]
            await eventually(lambda: sum(call.done() for call in calls) == 2, "two are refused")
            release.set()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert sorted(str(result) for result in results) == ["b'done'"] * 3 + ["busy"] * 2

    asyncio.run(run())


def test_the_originals_calls_hang_when_the_child_process_dies():
    async def run():
        async with original() as one, original() as other:
            await connect(one, other)
            one._child.kill()
            await one._child.wait()
            assert one.is_alive
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(one._client.call_unary_handler(other.peer_id, "any", b""), 1)

    asyncio.run(run())


def test_our_calls_fail_at_once_when_the_child_process_dies():
    async def run():
        async with guarded(60) as one, guarded(60) as other:
            await connect(one, other)
            one.child.kill()
            await one.child.wait()
            for ask in (
                lambda: one._client.call_unary_handler(other.peer_id, "any", b""),
                lambda: one._client.stream_open(other.peer_id, ("any",)),
                lambda: one._client.connect(other.peer_id, ()),
                one.identify,
            ):
                with pytest.raises(P2PDown):
                    await ask()

    asyncio.run(run())


def test_a_reader_that_was_cut_off_ends_the_control():
    async def run():
        async with guarded() as one:
            one.child.kill()
            await asyncio.wait_for(one._client.control.lost.wait(), 5)

    asyncio.run(run())


async def announce_too_much(one, other):
    """`one` opens a protobuf stream to `other` and announces a frame over the limit, of which it sends the first 6 MiB."""
    got = asyncio.get_running_loop().create_future()

    async def serve(requests, context):
        async for request in requests:
            got.set_result(len(request.values[0]))
        yield dht_pb2.StoreResponse()

    await other.add_protobuf_handler("eat", serve, dht_pb2.StoreRequest, stream_input=True, stream_output=True)
    await connect(one, other)
    _, reader, writer = await one._client.stream_open(other.peer_id, ("eat",))
    big = dht_pb2.StoreRequest(values=[bytes(6 << 20)]).SerializeToString()
    writer.write(P2P.MESSAGE_MARKER + len(big).to_bytes(8, "big"))
    eof = asyncio.ensure_future(reader.read())
    for start in range(0, len(big), 1 << 16):
        if eof.done():
            break
        writer.write(big[start : start + (1 << 16)])
        with suppress(ConnectionResetError):
            await writer.drain()
    return got, eof, writer


def test_the_original_reads_a_stream_frame_of_any_size():
    async def run():
        async with original() as one, original() as other:
            got, eof, writer = await announce_too_much(one, other)
            assert await asyncio.wait_for(got, 10) == 6 << 20
            writer.close()
            await eof

    asyncio.run(run())


def test_ours_ends_a_stream_that_announces_too_large_a_frame():
    async def run():
        async with original() as one, guarded() as other:
            got, eof, writer = await announce_too_much(one, other)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(eof, 10) == b""
            assert not got.done()
            writer.close()

    asyncio.run(run())


def test_ours_ends_a_reply_stream_that_announces_too_large_a_frame():
    async def run():
        async def serve(requests, context):
            yield dht_pb2.StoreRequest(values=[bytes(6 << 20)])

        async with guarded() as one, original() as other:
            await other.add_protobuf_handler("much", serve, dht_pb2.PingRequest, stream_output=True)
            await connect(one, other)
            replies = await one.iterate_protobuf_handler(other.peer_id, "much", dht_pb2.PingRequest(), dht_pb2.StoreRequest)
            assert [reply async for reply in replies] == []

    asyncio.run(run())


def test_a_stream_that_is_refused_leaves_no_connection_behind():
    async def run():
        async with guarded() as one, guarded() as other:
            await connect(one, other)
            with pytest.raises(PeerUnreachable, match="protocols not supported"):
                await one._client.stream_open(other.peer_id, ("nothing",))
            with pytest.raises(PeerUnreachable):
                await one._client.call_unary_handler(PeerID.from_base58(new_identity().peer_id), "any", b"")

    asyncio.run(run())
