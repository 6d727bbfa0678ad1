"""Signed records through the real DHT: seen by all, newest first, lost when silent; wrong clocks; a hostile member."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer
from swarm_kit import QUICK, SWARM, eventually, new_identity, swarm, within_a_minute

from ciuic_p2p.core.records import encode_record
from ciuic_p2p.errors import P2PDown
from ciuic_p2p.net.discovery import LATEST_EXPIRY_S

KEY = f"ciuic/{SWARM}/peers"


def soon(seconds=600):
    return round(time.time()) + seconds


async def started(it, *names, **settings):
    """The first, then the others joining it, all discovering."""
    first = await it.started(names[0], **settings)
    others = [await it.started(name, first.network.join_addresses(), **settings) for name in names[1:]]
    for peer in (first, *others):
        peer.discovery.start()
    return first, *others


def test_every_peer_sees_the_records_of_all_others():
    async def run():
        async with swarm() as it:
            peers = await started(it, "a", "b", "c")
            ids = {peer.peer_id for peer in peers}
            for peer in peers:
                await peer.notes.until(lambda peer=peer: set(peer.notes.records) == ids - {peer.peer_id})
            seen = peers[2].notes.records[peers[0].peer_id]
            assert seen.name == "a"
            assert seen.p2p_addresses == peers[0].network.visible_addresses()
            assert {record.name for record in peers[2].discovery.records()} == {"a", "b"}

    within_a_minute(run())


def test_a_change_is_told_and_older_records_are_not_reported_again():
    async def run():
        async with swarm() as it:
            a, b = await started(it, "a", "b")
            await b.notes.until(lambda: a.peer_id in b.notes.records)
            sequence = b.notes.records[a.peer_id].sequence
            a.name = "renamed"
            a.discovery.publish_soon()
            await b.notes.until(lambda: b.notes.records[a.peer_id].name == "renamed")
            assert b.notes.records[a.peer_id].sequence > sequence

    within_a_minute(run())


def test_a_peer_that_leaves_is_lost_at_once_and_one_that_is_silent_after_a_while():
    async def run():
        async with swarm() as it:
            a, b, c = await started(it, "a", "b", "c")
            await a.notes.until(lambda: len(a.notes.records) == 2)
            a.discovery.pace = dataclasses.replace(QUICK, fresh_for_s=1e9)
            await b.discovery.stop()
            await a.notes.until(lambda: a.notes.lost == [b.peer_id])

            a.discovery.pace = dataclasses.replace(QUICK, fresh_for_s=1.0)
            c.discovery._task.cancel()
            await a.notes.until(lambda: a.notes.lost == [b.peer_id, c.peer_id])
            assert a.discovery.records() == ()

    within_a_minute(run())


def test_records_come_back_after_the_child_process_was_killed():
    async def run():
        async with swarm() as it:
            a, b, c = await started(it, "a", "b", "c")
            await c.notes.until(lambda: len(c.notes.records) == 2)
            os.kill(a.network.child_pid, signal.SIGKILL)
            await eventually(lambda: a.network.restarts == 1, "restarted")
            before = c.notes.records[a.peer_id].sequence
            await c.notes.until(lambda: c.notes.records[a.peer_id].sequence > before + 1)
            await eventually(lambda: a.network.contacts() == 2, "everybody found it again")
            a.notes.records.clear()
            await a.notes.until(lambda: len(a.notes.records) == 2)
            assert a.peer_id not in (*b.notes.lost, *c.notes.lost)

    within_a_minute(run())


@pytest.mark.parametrize("wrong_by_s", [-600, 600])
def test_a_clock_that_is_ten_minutes_wrong_hides_nobody(monkeypatch, wrong_by_s):
    class WrongClock:
        """What `time` is to the one peer's discovery."""

        @staticmethod
        def time():
            return time.time() + wrong_by_s

        @staticmethod
        def time_ns():
            return time.time_ns() + wrong_by_s * 10**9

    async def run():
        async with swarm() as it:
            a = await it.started("a")
            b = await it.started("b", a.network.join_addresses())
            await eventually(lambda: a.network.contacts() == 1, "they have met")
            a.discovery.start()
            b.discovery._sequence = 0
            with monkeypatch.context() as patch:
                patch.setattr("ciuic_p2p.net.discovery.time", WrongClock)
                await b.discovery._publish(leaving=False)
            await a.notes.until(lambda: b.peer_id in a.notes.records)

    within_a_minute(run())


def test_a_peer_whose_clock_went_back_numbers_on_from_its_last_record():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            a.discovery.start()
            b = await it.started("b", a.network.join_addresses())
            b.discovery.start()
            await a.notes.until(lambda: b.peer_id in a.notes.records)
            ahead = a.notes.records[b.peer_id].sequence + 10**9
            b.discovery._sequence, b.discovery._expires_at_s = ahead, soon(1500)
            await a.notes.until(lambda: a.notes.records[b.peer_id].sequence > ahead)
            await b.discovery.stop()
            await a.notes.until(lambda: b.peer_id in a.notes.lost)
            await b.network.stop()

            again = it.peer("b", a.network.join_addresses(), identity=b.identity)
            again.name = "again"
            await again.network.start()
            again.discovery.start()
            await a.notes.until(lambda: a.notes.records[b.peer_id].name == "again")
            assert a.notes.records[b.peer_id].sequence > ahead

    within_a_minute(run())


def record_of(peer, identity=None, *, expires_at_s=None, **changes):
    """Signed bytes of a record that says it is `peer`'s."""
    record = dataclasses.replace(peer.describe(), expires_at_s=expires_at_s or soon(), **changes)
    return encode_record(record, SWARM, (identity or peer.identity).sign)


@pytest.mark.parametrize("kind", ["garbage", "foreign signature", "foreign subkey", "other expiry", "too long", "other swarm"])
def test_a_member_cannot_store_a_false_record(kind):
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            hostile = await it.started("hostile", a.network.join_addresses())
            await eventually(lambda: hostile.network.contacts() == 1, "they have met")
            subkey, expires_at = a.peer_id, soon()
            record = dataclasses.replace(a.describe(), expires_at_s=expires_at)
            value = {
                "garbage": lambda: b"garbage",
                "foreign signature": lambda: encode_record(record, SWARM, hostile.identity.sign),
                "foreign subkey": lambda: record_of(hostile, expires_at_s=expires_at),
                "other expiry": lambda: encode_record(record, SWARM, a.identity.sign),
                "too long": lambda: encode_record(
                    dataclasses.replace(record, expires_at_s=soon(LATEST_EXPIRY_S + 60)), SWARM, a.identity.sign
                ),
                "other swarm": lambda: encode_record(record, "another", a.identity.sign),
            }[kind]()
            if kind == "other expiry":
                expires_at += 1
            if kind == "too long":
                expires_at = soon(LATEST_EXPIRY_S + 60)
            # the hostile one checks nothing itself
            hostile.network.set_rule(KEY, lambda subkey, value, expires_at: True)
            key, where = DHTID.generate(source=KEY), PeerID.from_base58(a.peer_id)
            stored = await hostile.network._live.dht._node.protocol.call_store(
                where, [key], [MSGPackSerializer.dumps(value)], float(expires_at), [subkey]
            )
            assert stored == [False]
            assert await a.network.fetch(KEY) == {}
            if kind == "foreign subkey":
                good = await hostile.network._live.dht._node.protocol.call_store(
                    where, [key], [MSGPackSerializer.dumps(value)], float(expires_at), [hostile.peer_id]
                )
                assert good == [True], "the same bytes are taken in their own place"

    within_a_minute(run())


def test_keys_without_a_rule_do_not_exist():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            assert not await a.network.store("ciuic/another/peers", "sub", b"value", soon())
            assert not await a.network.store(KEY + "x", "sub", b"value", soon())

    within_a_minute(run())


def answer_finds_with(peer, values, maxsize=None):
    """`peer` turns hostile: its DHT answers every search with these (subkey, value, expiry), valid for ever, and with
    neighbours that do not exist and are nearest to the key."""
    protocol = peer.network._live.dht._node.protocol
    items = [[subkey, MSGPackSerializer.dumps(value), expiry] for subkey, value, expiry in values]
    lie = msgpack.ExtType(0x50, msgpack.packb([maxsize, float("inf"), items]))  # as DictionaryDHTValue.packb
    nearest = DHTID.generate(source=KEY)
    result = dht_pb2.FindResult(
        type=dht_pb2.FOUND_DICTIONARY,
        value=msgpack.packb(lie),
        expiration_time=float("inf"),
        nearest_node_ids=[DHTID(nearest ^ distance).to_bytes() for distance in range(20)],
        nearest_peer_ids=[PeerID.from_base58(new_identity().peer_id).to_bytes() for _ in range(20)],
    )

    async def answer(data, remote):
        request = dht_pb2.FindRequest.FromString(data)
        return dht_pb2.FindResponse(results=[result] * len(request.keys), peer=protocol.node_info).SerializeToString()

    protocol.p2p._client.control.unary_handlers["DHTProtocol.rpc_find"] = answer


def answer_finds_late(peer, release, asked=None):
    handlers = peer.network._live.control.unary_handlers
    honest = handlers["DHTProtocol.rpc_find"]

    async def answer(data, remote):
        if asked is not None:
            asked.set()
        await release.wait()
        return await honest(data, remote)

    handlers["DHTProtocol.rpc_find"] = answer


@pytest.mark.parametrize("lie", ["nothing", "a false record", "an old record, longer valid", "a size that is none"])
def test_a_member_that_lies_hides_nobody(lie):
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            hostile = await it.started("hostile", a.network.join_addresses())
            b = await it.started("b", a.network.join_addresses())
            await eventually(lambda: b.network.contacts() == 2, "they have met")
            old, new = (
                (expiry, encode_record(dataclasses.replace(a.describe(), expires_at_s=expiry), SWARM, a.identity.sign))
                for expiry in (soon(300), soon(600))
            )
            values = {
                "nothing": [],
                "a false record": [(new_identity().peer_id, b"garbage", 1e12)],
                "an old record, longer valid": [(a.peer_id, old[1], 1e12)],
                "a size that is none": [(a.peer_id, old[1], float(old[0]))],
            }[lie]
            assert await a.network.store(KEY, a.peer_id, new[1], new[0])
            b.network._live.dht._storage.clear()  # as in a swarm too large for every peer to hold every record
            answer_finds_with(hostile, values, "x" if lie == "a size that is none" else None)
            late = asyncio.Event()
            answer_finds_late(a, late)
            control, called = b.network._live.control, set()
            call = control.call_unary_handler

            async def spy(peer_id, proto, data):
                called.add(str(peer_id))
                return await call(peer_id, proto, data)

            control.call_unary_handler = spy
            search = asyncio.ensure_future(b.network.fetch(KEY))
            await asyncio.wait({search}, timeout=0.5)  # the lie arrives first
            late.set()
            assert await search == {a.peer_id: new[1]}
            assert called == {a.peer_id, hostile.peer_id}, "neighbours that it made up are not looked for"

    within_a_minute(run())


def test_a_search_fails_at_once_when_the_child_process_dies():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            b = await it.started("b", a.network.join_addresses())
            await eventually(lambda: b.network.contacts() == 1, "they have met")
            asked = asyncio.Event()
            answer_finds_late(a, asyncio.Event(), asked)
            search = asyncio.ensure_future(b.network.fetch(KEY))
            await asked.wait()
            os.kill(b.network.child_pid, signal.SIGKILL)
            with pytest.raises(P2PDown):
                await search

    within_a_minute(run())


def test_a_member_takes_no_place_in_the_dht_but_its_own():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            hostile = await it.started("hostile", a.network.join_addresses())
            await eventually(lambda: a.network.contacts() == 1, "they have met")
            protocol = hostile.network._live.dht._node.protocol
            for place in range(5):
                protocol.node_info = dht_pb2.NodeInfo(node_id=DHTID(place).to_bytes())
                assert await protocol.call_ping(PeerID.from_base58(a.peer_id)) is not None
            table = a.network._live.dht._node.protocol.routing_table
            assert len(table.uid_to_peer_id) == 1

    within_a_minute(run())


def test_cached_records_of_a_member_do_not_hide_the_others():
    async def run():
        async with swarm() as it:
            a = await it.started("a")
            hostile = await it.started("hostile", a.network.join_addresses())
            await eventually(lambda: hostile.network.contacts() == 1, "they have met")
            a.discovery.start()
            await eventually(lambda: a.discovery._circumstances, "published")
            latest = soon(LATEST_EXPIRY_S - 60)
            value = encode_record(dataclasses.replace(hostile.describe(), expires_at_s=latest), SWARM, hostile.identity.sign)
            stored = await hostile.network._live.dht._node.protocol.call_store(
                PeerID.from_base58(a.peer_id),
                [DHTID.generate(source=KEY)],
                [MSGPackSerializer.dumps(value)],
                float(latest),
                [hostile.peer_id],
                in_cache=True,
            )
            assert stored == [True]
            hostile.network._live.dht._storage.clear()
            assert set(await hostile.network.fetch(KEY)) == {a.peer_id, hostile.peer_id}

    within_a_minute(run())


def test_one_key_holds_only_so_many_bytes(monkeypatch):
    monkeypatch.setattr("ciuic_p2p.net.dht.LARGEST_KEY_BYTES", 2000)

    async def run():
        async with swarm() as it:
            a = await it.started("a")
            a.network.set_rule("key", lambda subkey, value, expires_at: True)
            assert await a.network.store("key", "one", bytes(900), soon())
            assert await a.network.store("key", "two", bytes(900), soon())
            assert not await a.network.store("key", "three", bytes(900), soon())
            assert await a.network.store("key", "two", bytes(1000), soon(900)), "a newer value in the same place"
            assert set(await a.network.fetch("key")) == {"one", "two"}

    within_a_minute(run())
