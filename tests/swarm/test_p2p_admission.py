"""Strangers and half-strangers that speak the protocol: plain hivemind peers with the real child process and the real DHT."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError
from hivemind.proto import dht_pb2
from swarm_kit import RootGate, eventually, new_identity, swarm, within_a_minute

from ciuic_p2p.errors import NotAMember
from ciuic_p2p.net.admission import HANDSHAKE, LARGEST_TOKEN_BYTES
from ciuic_p2p.net.meetings import MEET
from ciuic_p2p.net.multiaddrs import EncodedMultiaddr

LATER = 4_000_000_000


@asynccontextmanager
async def plain_peer(**settings):
    """What anybody can run who knows an address."""
    p2p = await P2P.create(
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        nat_port_map=False,
        identity_path=str(new_identity().file),
        check_if_identity_free=False,
        **settings,
    )
    try:
        yield p2p
    finally:
        await p2p.shutdown()


async def member_with_a_secret(it):
    member = await it.started("member")
    member.network.set_rule("key", lambda subkey, value, expires_at: True)
    assert await member.network.store("key", "sub", b"secret", LATER)
    return member


def test_a_stranger_is_refused_every_call_and_reads_nothing():
    async def run():
        async with swarm() as it:
            member = await member_with_a_secret(it)
            async with plain_peer(initial_peers=list(member.network.join_addresses())) as stranger:
                target = PeerID.from_base58(member.peer_id)
                node = await DHTNode.create(stranger)
                stub = node.protocol.get_stub(target)
                key = DHTID.generate(source="key").to_bytes()
                info = node.protocol.node_info
                for call in (
                    stub.rpc_ping(dht_pb2.PingRequest(peer=info, validate=True), timeout=3),
                    stub.rpc_find(dht_pb2.FindRequest(keys=[key], peer=info), timeout=3),
                    stub.rpc_store(
                        dht_pb2.StoreRequest(
                            keys=[key], subkeys=[b"\xa1x"], values=[b"\xc4\x01x"], expiration_time=[LATER], in_cache=[False]
                        ),
                        timeout=3,
                    ),
                ):
                    with pytest.raises(P2PHandlerError, match=r"^not admitted$"):
                        await call
                with pytest.raises(P2PHandlerError, match=r"^not admitted$"):
                    await stranger._client.call_unary_handler(target, MEET, b"\x90")
                assert await node.get("key", latest=True) is None
                assert member.network.contacts() == 0
                assert await member.network.fetch("key") == {"sub": b"secret"}

    within_a_minute(run())


@pytest.mark.parametrize("forgery", ["nothing", "of another swarm", "of another peer", "huge"])
def test_a_false_token_is_refused_without_a_reason(forgery):
    async def run():
        async with swarm() as it:
            member = await member_with_a_secret(it)
            async with plain_peer(initial_peers=list(member.network.join_addresses())) as stranger:
                token = {
                    "nothing": b"",
                    "of another swarm": Ed25519PrivateKey.generate().sign(stranger.peer_id.to_base58().encode()),
                    "of another peer": member.gate.my_token(),
                    "huge": bytes(LARGEST_TOKEN_BYTES + 1),
                }[forgery]
                target = PeerID.from_base58(member.peer_id)
                with pytest.raises(P2PHandlerError, match=r"^not admitted$"):
                    await stranger._client.call_unary_handler(target, HANDSHAKE, token)
                with pytest.raises(P2PHandlerError, match=r"^not admitted$"):
                    await stranger._client.call_unary_handler(target, MEET, b"\x90")

    within_a_minute(run())


def test_a_stranger_learns_no_addresses_from_libp2ps_own_dht():
    async def run():
        async with swarm() as it:
            member = await it.started("member")
            other = await it.started("other", member.network.join_addresses())
            await eventually(lambda: member.network.contacts() == 1, "the members have met")
            async with plain_peer(initial_peers=None, dht_mode="server") as stranger:
                target = PeerID.from_base58(member.peer_id)
                await stranger._client.connect(target, map(EncodedMultiaddr, member.network.visible_addresses()))
                with pytest.raises(P2PDaemonError):
                    await stranger._client.connect(PeerID.from_base58(other.peer_id), [])

    within_a_minute(run())


def test_nothing_but_the_token_is_said_to_a_stranger_that_we_call():
    async def run():
        async with swarm() as it, plain_peer() as stranger:
            heard = []

            async def pretend(data, remote):
                heard.append(data)
                return b"no token"

            async def spy(data, remote):
                heard.append(data)
                return b""

            await stranger._client.add_unary_handler(HANDSHAKE, pretend)
            for name in (MEET, "DHTProtocol.rpc_ping", "DHTProtocol.rpc_find", "DHTProtocol.rpc_store"):
                await stranger._client.add_unary_handler(name, spy)
            member = await it.started("member")
            control = member.network._live.control
            await stranger._client.connect(
                PeerID.from_base58(member.peer_id), map(EncodedMultiaddr, member.network.visible_addresses())
            )
            with pytest.raises(NotAMember):
                await control.call_unary_handler(stranger.peer_id, MEET, b"secret")
            assert heard == [member.gate.my_token()]

    within_a_minute(run())


def test_a_call_is_repeated_after_a_new_handshake_when_the_other_has_forgotten_us():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            b = await it.started("b", a.network.join_addresses())
            await eventually(lambda: b.network.contacts() == 1, "they have met")
            asked = len(a.gate.asked)

            a.network.admission.forget(b.peer_id)  # as after a restart of the daemon
            assert await b.network._live.dht.ping(a.peer_id)
            asked_again = len(a.gate.asked)
            assert asked_again > asked

            for _ in range(5):  # the two may also meet by themselves meanwhile, which is a handshake more
                assert await b.network._live.dht.ping(a.peer_id)
            assert len(a.gate.asked) < asked_again + 5, "one handshake is enough"

    within_a_minute(run())


def test_one_handshake_serves_many_calls_at_once_and_both_directions():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            b = await it.started("b", a.network.join_addresses())
            await eventually(lambda: a.network.contacts() == b.network.contacts() == 1, "they have met")
            await asyncio.gather(*(b.network._live.dht.ping(a.peer_id) for _ in range(20)))
            assert await a.network._live.dht.ping(b.peer_id)
            # each may have shaken hands once, when both called first in the same moment
            assert 1 <= a.gate.asked.count(b.peer_id) <= 2
            assert 1 <= b.gate.asked.count(a.peer_id) <= 2

    within_a_minute(run())


def test_a_revoked_member_is_shut_out_at_the_next_check():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            b = await it.started("b", a.network.join_addresses())
            await eventually(lambda: a.network.contacts() == 1, "they have met")
            a.gate.revoked.add(b.peer_id)
            a.network.admission._clock = lambda: time.time() + 61
            with pytest.raises((NotAMember, P2PHandlerError)):
                await b.network._live.control.call_unary_handler(PeerID.from_base58(a.peer_id), MEET, b"\x90")

    within_a_minute(run())


def test_members_of_two_swarms_do_not_mix():
    async def run():
        async with swarm() as ours, swarm() as theirs:
            a = await ours.started("a")
            b = await theirs.started("b", a.network.join_addresses())
            b.network.set_rule("key", lambda subkey, value, expires_at: True)
            await eventually(lambda: b.peer_id in a.gate.asked, "b has tried")
            assert a.network.contacts() == b.network.contacts() == 0
            assert not b.network.joined.is_set()
            assert await b.network.fetch("key") == {}

    within_a_minute(run())


def test_root_gate_of_the_tests_is_strict():
    root = Ed25519PrivateKey.generate()
    gate = RootGate(root, "one")
    gate.admit("one", gate.my_token(), 0.0)
    with pytest.raises(NotAMember):
        gate.admit("other", gate.my_token(), 0.0)
