"""Messages between the daemon and the processes on its machine: they survive the wire, and no bytes get past the checks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.errors import LocalError, MalformedMessage
from ciuic_p2p.local import checks
from ciuic_p2p.local.framing import LARGEST_LOCAL_MESSAGE_BYTES, MessageSplitter, decode, encode
from ciuic_p2p.local.protocol import (
    FROM_DAEMON,
    LONGEST_READ_BYTES,
    TO_DAEMON,
    Advanced,
    AskLease,
    AskPosition,
    AskView,
    Attach,
    Attached,
    GetObject,
    Invite,
    Leased,
    Leave,
    ListObjects,
    Message,
    Moved,
    Position,
    Progress,
    PutObject,
    ReadObject,
    Ready,
    Refused,
    RemoveObject,
    SnapshotOrder,
    StatObject,
    Stop,
    Stopping,
    StrategySettings,
    View,
    Waiting,
)

HASH = "0f" * 32
SETTINGS = StrategySettings(name="DiLoCo", inner_steps=25, codec="int4", outer_learning_rate=0.7, outer_momentum=0.6)
LAYOUT = {"entries": [["weight", [2, 3], "float32", "parameter"]]}
ATTACH = Attach(run="mnist", layout=LAYOUT, strategy=SETTINGS, pid=7)
ADVANCED = Advanced(
    epoch=3,
    state_hash=HASH,
    peers=("node-us", "node-eu"),
    bytes_sent=5,
    bytes_received=6,
    seconds=0.5,
    counted=True,
    saving=True,
)
ATTACHED = Attached(epoch=2, state_hash=HASH, fresh=False, bytes_sent=1, bytes_received=2)
TO: list[Message] = [
    ATTACH,
    Progress(samples=64, steps=2, loss=0.25),
    Ready(samples=800, steps=25, loss=None),
    Ready(samples=800, steps=25, loss=None, used={"data": [[0, 5, 805]]}),
    AskLease(dataset="data", count=60_000, samples=864, waits=True),
    AskPosition(),
    Leave(),
    AskView(what="peers", options={"all": True}),
    Invite(options={"for": "anna"}),
    SnapshotOrder(what="save", options={"run": "mnist"}),
    PutObject(path="/data/file", address="ciuic://data/file"),
    GetObject(address="ciuic://data/file", path="/data/copy"),
    ReadObject(address="ciuic://data/file", offset=7, length=1000, etag=HASH),
    ListObjects(prefix="ciuic://data", after="ciuic://data/file"),
    RemoveObject(address="ciuic://data/file"),
    StatObject(address="ciuic://data/file"),
    Stop(),
]
FROM: list[Message] = [
    Waiting(why="for the others"),
    ATTACHED,
    ADVANCED,
    Position(index=1, count=3, epoch=4),
    Leased(slots=[[0, 5, 805], [1, 0, 12]], open_pass=1),
    Refused(kind="NoDaemon", what="none", remedy="start one"),
    View(value={"peers": [{"name": "node-us", "rtt_ms": None}]}),
    Moved(done_bytes=1, total_bytes=2),
    Stopping(),
]

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def whole_bodies(data: bytes) -> list[bytes]:
    splitter = MessageSplitter()
    splitter.feed(data)
    return list(splitter.bodies())


def test_there_is_an_example_of_every_message() -> None:
    assert {type(message) for message in TO} == set(TO_DAEMON.values())
    assert {type(message) for message in FROM} == set(FROM_DAEMON.values())


@given(cuts=st.lists(st.integers(0, 1500), max_size=12))
@settings(max_examples=50)
def test_messages_survive_the_wire_however_it_is_cut(cuts: list[int]) -> None:
    for messages, kinds in ((TO, TO_DAEMON), (FROM, FROM_DAEMON)):
        data = b"".join(encode(message) for message in messages)
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        splitter, arrived = MessageSplitter(), []
        for start, end in pairwise(edges):
            splitter.feed(data[start:end])
            arrived += [decode(body, kinds) for body in splitter.bodies()]
        assert arrived == messages
        assert not splitter.inside_message


@given(data=st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    for kinds in (TO_DAEMON, FROM_DAEMON):
        with pytest.raises(MalformedMessage):
            raise_unless_message(data, kinds)


def raise_unless_message(data: bytes, kinds: dict[str, type[Message]]) -> None:
    """Raises MalformedMessage in the end, so that any other exception fails the test."""
    for body in [data, *whole_bodies(data)]:
        decode(body, kinds)
    raise MalformedMessage(None, "all of it was a message")


@given(message=st.sampled_from([*TO, *FROM]), field=st.integers(0, 8), value=plain)
@settings(max_examples=200)
def test_a_field_of_any_value_gives_an_equal_message_or_a_malformed_one(message: Message, field: int, value: Any) -> None:
    kinds = TO_DAEMON if message in TO else FROM_DAEMON
    wire = msgpack.unpackb(encode(message)[4:])
    wire[sorted(wire)[field % len(wire)]] = value
    try:
        changed = decode(msgpack.packb(wire), kinds)
    except MalformedMessage:
        return
    assert type(changed) in kinds.values()
    assert whole_bodies(encode(changed)), "what passes the checks can be said again"


@pytest.mark.parametrize("length", [LARGEST_LOCAL_MESSAGE_BYTES + 1, 0xFFFFFFFF])
def test_a_huge_length_is_refused_before_anything_more_is_read(length: int) -> None:
    with pytest.raises(MalformedMessage, match="bytes, at most"):
        whole_bodies(length.to_bytes(4, "big"))


def test_part_of_a_message_is_waited_for() -> None:
    splitter = MessageSplitter()
    splitter.feed(encode(ATTACH)[:-1])
    assert list(splitter.bodies()) == []
    assert splitter.inside_message


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not a msgpack map"),
        (msgpack.packb([1, 2]), "not a msgpack map"),
        (b"\x91" * 5000, "not a msgpack map"),
        (msgpack.packb({"type": ["attach"]}), "unknown message"),
        (msgpack.packb({"type": "attached"}), "unknown message 'attached'"),
        (msgpack.packb({"type": "stop", "now": 1}), "unknown fields"),
        (msgpack.packb({"type": "ready", "samples": 1}), "missing"),
        (msgpack.packb({"type": "attach", "strategy": 3}), "StrategySettings is not a map"),
        (msgpack.packb({"type": "stop", "x": msgpack.ExtType(5, b"12")}), "not a msgpack map"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        decode(body, TO_DAEMON)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (ATTACH, {"run": ""}),
        (ATTACH, {"run": " mnist"}),
        (ATTACH, {"run": "two\nlines"}),
        (ATTACH, {"run": "m" * 129}),
        (ATTACH, {"pid": 0}),
        (ATTACH, {"layout": {1: 2}}),
        (ATTACH, {"strategy": {}}),
        (SETTINGS, {"inner_steps": 0}),
        (SETTINGS, {"inner_steps": 1.0}),
        (SETTINGS, {"inner_steps": True}),
        (SETTINGS, {"outer_learning_rate": float("nan")}),
        (SETTINGS, {"outer_learning_rate": 10**400}),
        (SETTINGS, {"outer_momentum": 1.1}),
        (SETTINGS, {"codec": "int 4"}),
        (Ready(samples=1, steps=1, loss=None), {"samples": -1}),
        (Ready(samples=1, steps=1, loss=None), {"loss": float("inf")}),
        (Position(index=1, count=3, epoch=4), {"index": 3}),
        (Position(index=1, count=3, epoch=4), {"count": 0}),
        (ATTACHED, {"state_hash": HASH.upper()}),
        (ATTACHED, {"fresh": 1}),
        (ADVANCED, {"peers": ["node-us"]}),
        (ADVANCED, {"peers": ("x" * 4097,)}),
        (ADVANCED, {"seconds": -0.1}),
        (Refused(kind="LocalError", what=""), {"kind": "os.system"}),
        (PutObject(path="/data/file", address=""), {"path": "data/file"}),
        (GetObject(path="/data/file", address=""), {"path": "/data/\0"}),
        (ReadObject(address="", offset=0, length=1), {"offset": -1}),
        (ReadObject(address="", offset=0, length=1), {"length": LONGEST_READ_BYTES + 1}),
        (Moved(done_bytes=1, total_bytes=2), {"done_bytes": 3}),
    ],
)
def test_an_illegal_message_cannot_be_made(message: Any, change: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        replace(message, **change)


@pytest.mark.parametrize("value", [object(), 1 << 65, {"set": {1}}])
def test_a_view_that_is_not_plain_data_is_our_own_fault(value: object) -> None:
    with pytest.raises(LocalError, match="does not encode"):
        encode(View(value=value))


def test_a_view_that_is_too_large_is_our_own_fault() -> None:
    with pytest.raises(LocalError, match="at most"):
        encode(View(value=bytes(LARGEST_LOCAL_MESSAGE_BYTES)))


@given(value=plain)
@settings(max_examples=100)
def test_a_check_lets_a_value_pass_or_names_the_field(value: Any) -> None:
    for check in (checks.whole, checks.number, checks.word, checks.text, checks.texts, checks.run_name, checks.state_hash):
        try:
            check("the field", value)
        except MalformedMessage as error:
            assert "the field" in str(error)  # noqa: PT017  # that nothing else is raised is what is tested
