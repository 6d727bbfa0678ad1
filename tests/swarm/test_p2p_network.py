"""The libp2p network with real child processes: joining in any order, loss of the child process, addresses, streams."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from swarm_kit import TestSwarm, eventually, is_running, new_identity, swarm, within_a_minute

from ciuic_p2p.errors import AddressUnusable, ConfigError, P2PDown, PeerUnreachable
from ciuic_p2p.net.ports import settle_ports


def allow_anything(peer, key="key"):
    peer.network.set_rule(key, lambda subkey, value, expires_at: True)


LATER = 4_000_000_000


def test_peer_id_is_what_p2pd_reports():
    async def run():
        async with swarm() as it:
            peer = await it.started("a")
            assert peer.network.peer_id == peer.identity.peer_id

    within_a_minute(run())


def test_three_peers_find_each_other_through_one_and_share_the_dht():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            b = await it.started("b", a.network.join_addresses())
            c = await it.started("c", a.network.join_addresses())
            for peer in (a, b, c):
                allow_anything(peer)
                await peer.network.joined.wait()
            # b and c were told of each other by a
            await eventually(lambda: all(peer.network.contacts() == 2 for peer in (a, b, c)), "everybody knows everybody")
            assert await b.network.store("key", "sub", b"value", LATER)
            assert await c.network.fetch("key") == {"sub": b"value"}

    within_a_minute(run())


def test_a_peer_starts_alone_and_joins_when_the_other_comes_up():
    async def run():
        async with swarm() as it:
            identity = new_identity()
            (address,) = settle_ports(("/ip4/127.0.0.1/tcp/0",))
            early = await it.started("early", (f"{address}/p2p/{identity.peer_id}",))
            allow_anything(early)
            assert not early.network.joined.is_set()
            assert await early.network.store("key", "sub", b"kept", LATER), "it is its own DHT until then"
            late = await it.started("late", identity=identity, listen=(address,))
            allow_anything(late)
            await early.network.joined.wait()
            await eventually(lambda: late.network.contacts() == 1, "the other knows it too")
            assert await late.network.fetch("key") == {"sub": b"kept"}

    within_a_minute(run())


def test_p2pd_is_not_asked_to_dial_a_peer_that_is_away(monkeypatch):
    """It would back off from the address, for minutes after some failures, and find the peer that late when it is back."""
    monkeypatch.setattr("ciuic_p2p.net.meetings.LONGEST_PAUSE_S", 0.3)

    async def run():
        async with swarm() as it:
            identity = new_identity()
            (address,) = settle_ports(("/ip4/127.0.0.1/tcp/0",))
            away = await it.started("away", identity=identity, listen=(address,))
            stays = await it.started("stays", away.network.join_addresses())
            await eventually(lambda: stays.network.contacts() == 1, "they have met")
            control, dials = stays.network._live.control, []
            connect = control.connect

            async def spy(peer_id, addresses):
                dials.append(peer_id)
                await connect(peer_id, addresses)

            control.connect = spy
            await away.network.stop()
            while stays.network.contacts():
                await stays.network._live.dht.ping(identity.peer_id)
            attempts = stays.network._meetings._attempts
            await eventually(lambda: identity.peer_id in attempts and attempts[identity.peer_id].failures > 3, "tried")
            assert dials == []
            back = await it.started("back", identity=identity, listen=(address,))
            await eventually(lambda: back.network.contacts() == stays.network.contacts() == 1, "found again")
            assert dials

    within_a_minute(run())


def test_a_killed_child_process_is_replaced_and_the_swarm_is_whole_again():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            b = await it.started("b", a.network.join_addresses())
            for peer in (a, b):
                allow_anything(peer)
            await eventually(lambda: a.network.contacts() == b.network.contacts() == 1, "they have met")
            addresses, first = a.network.visible_addresses(), a.network.child_pid
            assert await a.network.store("key", "sub", b"kept", LATER)

            os.kill(first, signal.SIGKILL)
            await eventually(lambda: a.network.restarts == 1, "restarted")

            assert a.network.child_pid != first
            assert a.network.peer_id == a.identity.peer_id
            assert a.network.visible_addresses() == addresses
            await eventually(lambda: a.network.contacts() == 1, "it found the other again by itself")
            assert await a.network.fetch("key") == {"sub": b"kept"}
            assert await b.network.fetch("key") == {"sub": b"kept"}

    within_a_minute(run())


def test_what_a_lone_peer_holds_survives_its_child_process():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            allow_anything(a)
            assert await a.network.store("key", "sub", b"kept", LATER)
            os.kill(a.network.child_pid, signal.SIGKILL)
            await eventually(lambda: a.network.restarts == 1, "restarted")
            assert await a.network.fetch("key") == {"sub": b"kept"}

    within_a_minute(run())


def test_a_pending_call_fails_at_once_when_the_child_process_dies():
    async def run():
        async with swarm() as it:
            a = await it.started("a", call_limit_s=60.0)
            b = await it.started("b", a.network.join_addresses(), call_limit_s=60.0)
            arrived, never = asyncio.Event(), asyncio.Event()

            async def hang(data, remote):
                arrived.set()
                await never.wait()

            await a.network._live.control.add_unary_handler("hang", hang)
            await b.network.joined.wait()
            live = b.network._live
            call = asyncio.create_task(b.network._while_up(lambda up: up.control.call_unary_handler(_id(a), "hang", b"")))
            await arrived.wait()
            os.kill(b.network.child_pid, signal.SIGKILL)
            with pytest.raises(P2PDown):
                await call
            with pytest.raises(P2PDown):
                await live.control.call_unary_handler(_id(a), "hang", b"")

    within_a_minute(run())


def test_a_frozen_child_process_is_replaced(monkeypatch):
    monkeypatch.setattr("ciuic_p2p.net.incarnation.CHECK_EVERY_S", 0.1)
    monkeypatch.setattr("ciuic_p2p.net.incarnation.CHECK_LIMIT_S", 0.5)

    async def run():
        async with swarm() as it:
            a = await it.started("a")
            frozen = a.network.child_pid
            os.kill(frozen, signal.SIGSTOP)
            await eventually(lambda: a.network.restarts == 1, "replaced")
            assert not is_running(frozen)

    within_a_minute(run())


def test_the_child_process_ends_when_the_daemon_is_killed(tmp_path):
    script = textwrap.dedent("""
        import asyncio, sys
        sys.path.insert(0, "tests/swarm")
        from swarm_kit import TestSwarm
        async def run():
            peer = await TestSwarm().started("a")
            print(peer.network.child_pid, file=sys.stderr, flush=True)
            await asyncio.Event().wait()
        asyncio.run(run())
    """)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
        env={"PYTHONPATH": "."},
    ) as daemon:
        child = int(daemon.stderr.readline())
        assert is_running(child)
        daemon.kill()
    asyncio.run(eventually(lambda: not is_running(child), "p2pd has ended itself"))


def test_stop_ends_the_child_process_and_is_safe_to_repeat():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            child = a.network.child_pid
            await a.network.stop()
            await a.network.stop()
            assert not is_running(child)
            with pytest.raises(P2PDown):
                await a.network.fetch("key")

    within_a_minute(run())


def test_a_taken_port_is_named():
    async def run():
        it = TestSwarm()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(AddressUnusable, match=rf"tcp/{port} is in use by another program; .*--listen"):
                await it.started("a", listen=("/ip4/127.0.0.1/tcp/0", f"/ip4/127.0.0.1/tcp/{port}"))

    within_a_minute(run())


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("/ip4/203.0.113.7/tcp/4001", "no address of this machine"),
        ("/ip4/127.0.0.1/tcp", "not an address to listen on"),
        ("127.0.0.1:4001", "not an address to listen on"),
        ("/ip4/127.0.0.1/tcp/99999", "not an address to listen on"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named(address, reason):
    async def run():
        with pytest.raises(AddressUnusable, match=reason):
            await TestSwarm().started("a", listen=(address,))

    within_a_minute(run())


@pytest.mark.parametrize(
    "address", ["/ip4/127.0.0.1/tcp/1", "nonsense", "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWnonsense", "/ip4/x/tcp/1/p2p/"]
)
def test_a_malformed_address_to_join_is_refused_before_anything_starts(address):
    with pytest.raises(ConfigError, match="not an address to join"):
        TestSwarm().peer("a", (address,))


def test_streams_carry_bytes_both_ways_and_name_the_peer():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            b = await it.started("b", a.network.join_addresses())
            taken = asyncio.get_running_loop().create_future()

            async def take(peer, reader, writer):
                taken.set_result((peer, reader, writer))

            a.network.set_stream_handler(take)
            reader, writer = await b.network.open_stream(a.peer_id)
            peer, other_reader, other_writer = await taken
            assert peer == b.peer_id
            blob = os.urandom(1 << 20)
            writer.write(blob)
            other_writer.write(blob[::-1])
            assert await other_reader.readexactly(len(blob)) == blob
            assert await reader.readexactly(len(blob)) == blob[::-1]
            writer.close()
            assert await other_reader.read() == b""
            other_writer.close()

    within_a_minute(run())


def test_streams_that_nobody_authenticates_are_few_and_short(monkeypatch):
    monkeypatch.setattr("ciuic_p2p.net.streams.MOST_UNAUTHENTICATED_OF_ONE_PEER", 2)
    monkeypatch.setattr("ciuic_p2p.net.streams.AUTHENTICATION_LIMIT_S", 1.0)

    async def run():
        async with swarm() as it:
            a = await it.started("a")
            b = await it.started("b", a.network.join_addresses())
            entered = []

            async def dawdle(peer, reader, writer):
                entered.append(peer)
                await asyncio.Event().wait()

            a.network.set_stream_handler(dawdle)
            first, second = await b.network.open_stream(a.peer_id), await b.network.open_stream(a.peer_id)
            await eventually(lambda: len(entered) == 2, "two are let in")
            third, _ = await b.network.open_stream(a.peer_id)
            assert await third.read() == b"", "the third is closed"
            assert len(entered) == 2
            assert await first[0].read() == await second[0].read() == b"", "the first two are closed when they took too long"
            for _, writer in (first, second):
                writer.close()

    within_a_minute(run())


def test_no_stream_to_a_peer_nobody_knows():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            with pytest.raises(PeerUnreachable):
                await a.network.open_stream(new_identity().peer_id)

    within_a_minute(run())


def test_two_peers_without_listeners_reach_each_other_through_a_relay():
    async def run():
        async with swarm() as it:
            relay = await it.started("relay")
            join, hidden = relay.network.join_addresses(), {"listen": (), "auto_relay": True, "reachability": "private"}
            one = await it.started("one", join, **hidden)
            other = await it.started("other", join, **hidden)
            greeted = asyncio.get_running_loop().create_future()

            async def take(peer, reader, writer):
                greeted.set_result((peer, await reader.readexactly(5)))
                writer.close()

            one.network.set_stream_handler(take)
            assert all("p2p-circuit" in address for address in one.network.visible_addresses())
            await eventually(lambda: other.network.contacts() == 2, "they have met", 40.0)
            _, writer = await other.network.open_stream(one.peer_id)
            writer.write(b"hello")
            assert await greeted == (other.peer_id, b"hello")
            writer.close()

    within_a_minute(run())


def _id(peer):
    from hivemind.p2p import PeerID

    return PeerID.from_base58(peer.peer_id)
