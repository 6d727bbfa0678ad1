"""Whatever a hostile peer sends as a layout or a manifest: the object, or MalformedMessage."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.tensors.layout import Entry, Layout
from ciuic_p2p.tensors.state import StateManifest

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8) | st.binary(max_size=70)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=4), max_leaves=12
)
rows = st.lists(
    st.tuples(
        st.text(max_size=6) | anything,
        st.lists(st.integers(-2, 2**45), max_size=20) | anything,
        st.sampled_from(["float32", "bfloat16", "int8"]) | anything,
        st.sampled_from(["parameter", "buffer", "other"]) | anything,
    ).map(list),
    max_size=5,
)
entries = st.builds(
    Entry,
    name=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20),
    shape=st.lists(st.integers(0, 30), max_size=4).map(tuple),
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
    role=st.sampled_from(["parameter", "buffer"]),
)


hashes = st.sampled_from(["", "0" * 64, "a" * 63, "A" * 64])


@given(message=anything | st.fixed_dictionaries({"entries": rows | anything}, optional={"frozen": hashes | anything}))
@settings(max_examples=100, deadline=None)
def test_layout_of_a_hostile_peer(message: Any) -> None:
    try:
        layout = Layout.from_wire(message)
    except MalformedMessage:
        return
    assert Layout.from_wire(layout.to_wire()) == layout
    assert 0 <= layout.parameter_count <= layout.count <= 1 << 40


@given(entries=st.lists(entries, min_size=1, max_size=12, unique_by=lambda entry: entry.name))
@settings(max_examples=50, deadline=None)
def test_layout_survives_the_wire(entries: list[Entry]) -> None:
    layout = Layout.arrange(entries)
    received = Layout.from_wire(layout.to_wire())
    assert received == layout
    assert received.fingerprint == layout.fingerprint
    sizes = [entry.count for entry in layout.entries]
    assert [offset + size for offset, size in zip(layout.offsets, sizes, strict=True)] == [*layout.offsets[1:], layout.count]


@given(
    message=anything
    | st.fixed_dictionaries(
        {
            "epoch": st.integers(-1, 2**33) | anything,
            "count": st.integers(-1, 2**19) | anything,
            "parameter_count": st.integers(-1, 2**19) | anything,
            "piece_values": st.just(1 << 18) | anything,
            "piece_hashes": st.binary(max_size=32 * 5) | st.integers(0, 5).map(lambda pieces: bytes(32 * pieces)) | anything,
        }
    )
)
@settings(max_examples=100, deadline=None)
def test_manifest_of_a_hostile_peer(message: Any) -> None:
    try:
        manifest = StateManifest.from_wire(message)
    except MalformedMessage:
        return
    assert StateManifest.from_wire(manifest.to_wire()) == manifest
    assert not any(manifest.verify_piece(index, b"") for index in range(len(manifest.piece_hashes)))
