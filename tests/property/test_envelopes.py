"""Whatever a peer sends inside its TLS stream, cut as it may be, ends in envelopes or in an error that names it."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.errors import MalformedMessage, RemoteError
from ciuic_p2p.net.envelopes import (
    LONGEST_NAME,
    Envelope,
    EnvelopeReader,
    Hello,
    Kind,
    SessionName,
    pack_envelope,
    pack_hello,
    unpack_generation,
    unpack_hello,
)
from ciuic_p2p.terms import PeerId

PEER = PeerId("12D3KooWpeer")
envelopes = st.lists(st.builds(Envelope, st.sampled_from(Kind), st.binary(max_size=300)), max_size=8)
names = st.builds(SessionName, st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1))
hellos = st.builds(
    Hello,
    token=st.binary(max_size=400),
    name=st.text(max_size=LONGEST_NAME),
    instance=st.binary(min_size=16, max_size=16),
    ended=st.none() | names,
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(envelopes, st.integers(1, 50))
@settings(max_examples=50)
def test_envelopes_survive_any_cutting(sent: list[Envelope], piece_bytes: int) -> None:
    stream = b"".join(pack_envelope(each.kind, each.body) for each in sent)
    reader, received = EnvelopeReader(1000), []
    for start in range(0, len(stream), piece_bytes):
        reader.feed(stream[start : start + piece_bytes])
        while (envelope := reader.next()) is not None:
            received.append(envelope)
    assert received == sent


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_are_envelopes_or_malformed(data: bytes) -> None:
    reader = EnvelopeReader(100)
    reader.peer = PEER
    reader.feed(data)
    blamed = PEER
    try:
        while (envelope := reader.next()) is not None:
            assert len(envelope.body) <= 100
    except MalformedMessage as error:
        blamed = error.peer
    assert blamed == PEER


def test_an_announced_length_is_refused_before_it_arrives() -> None:
    reader = EnvelopeReader(100)
    reader.feed(b"\xff\xff\xff\xff\x04")
    with pytest.raises(MalformedMessage, match="4294967295 bytes announced"):
        reader.next()


@given(hellos)
@settings(max_examples=50)
def test_hellos_survive(hello: Hello) -> None:
    assert unpack_hello(PEER, pack_hello(hello)) == hello


@given(st.binary(max_size=100) | anything.map(msgpack.packb))
@settings(max_examples=100)
def test_what_is_no_hello_is_named(body: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        unpack_hello(PEER, body)
    assert caught.value.peer == PEER


@given(st.sampled_from(["token", "name", "instance", "ended", "version"]), anything)
@settings(max_examples=100)
def test_a_wrong_field_of_a_hello_is_named(field: str, value: object) -> None:
    true = Hello(token=b"t", name="n", instance=b"i" * 16, ended=None)
    content = msgpack.unpackb(pack_hello(true)) | {field: value}
    try:
        hello = unpack_hello(PEER, msgpack.packb(content))
    except RemoteError:
        return
    assert pack_hello(hello) == msgpack.packb(content)


@given(st.binary(max_size=20).filter(lambda body: len(body) != 8))
@settings(max_examples=20)
def test_a_session_without_its_generation_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack_generation(PEER, body)
