"""The contents of a checkpoint come from other peers: read as they were written, or refused, whatever the bytes are."""

from __future__ import annotations

import copy
import json
import math
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.errors import CheckpointUnreadable
from ciuic_p2p.train.boxes import Box, check_filled
from ciuic_p2p.train.contents import (
    Contents,
    RankFile,
    SavedChunk,
    SavedTensor,
    encode_contents,
    file_name,
    parse_contents,
)
from ciuic_p2p.train.plain_data import dump_json, from_json, load_json, to_json
from ciuic_p2p.train.tensor_bytes import ITEM_BYTES

SCALARS = st.none() | st.booleans() | st.integers(-(1 << 64) + 1, (1 << 64) - 1) | st.floats() | st.text(max_size=8)
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=3)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


@st.composite
def cuts(draw: Any, size: int) -> list[tuple[int, int]]:
    """Start and length of slices that follow each other."""
    edges = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))})
    return [(start, stop - start) for start, stop in pairwise(edges)] or [(0, size)]


@st.composite
def grids(draw: Any) -> tuple[tuple[int, ...], list[Box]]:
    """A shape and boxes that fill it."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    slices = product(*(draw(cuts(size)) for size in shape))
    return shape, [(tuple(start for start, _ in box), tuple(size for _, size in box)) for box in slices]


@st.composite
def checkpoints(draw: Any) -> Contents:
    files = draw(st.integers(1, 3))
    ends = [8] * files
    tensors, names = {}, draw(st.lists(st.text(max_size=6), unique=True, max_size=5))
    for name in names:
        (shape, boxes), dtype = draw(grids()), draw(st.sampled_from(sorted(ITEM_BYTES)))
        chunks = []
        for offsets, sizes in boxes:
            file = draw(st.integers(0, files - 1))
            start = -(-ends[file] // 8) * 8
            ends[file] = start + math.prod(sizes) * ITEM_BYTES[dtype]
            chunks.append(SavedChunk(file, start, offsets, sizes))
        tensors[name] = SavedTensor(dtype, shape, tuple(chunks))
    values = draw(st.dictionaries(st.text(max_size=6).filter(lambda name: name not in tensors), PLAIN, max_size=3))
    paths = {name: tuple(name.split(".")) for name in [*tensors, *values]} if draw(st.booleans()) else None
    described = tuple(RankFile(file_name(i, f"{i:016x}"), end, f"{i:064x}") for i, end in enumerate(ends))
    return Contents(files=described, tensors=tensors, values=values, paths=paths)


def coverage(shape: tuple[int, ...], boxes: list[Box]) -> list[int]:
    """How many boxes each place is in."""
    inside = [set(product(*(range(start, start + size) for start, size in zip(*box, strict=True)))) for box in boxes]
    return [sum(place in each for each in inside) for place in product(*map(range, shape))]


def is_filled(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    try:
        check_filled(shape, boxes)
    except ValueError:
        return False
    return True


@given(checkpoints())
def test_what_is_written_is_read(contents: Contents) -> None:
    data = encode_contents(contents)
    found = parse_contents(data, "here")
    assert repr(found) == repr(contents)  # a number that is none is not equal to itself
    assert encode_contents(found) == data


@given(PLAIN)
def test_plain_data_stays_as_it_is(value: Any) -> None:
    assert repr(from_json(load_json(dump_json(to_json(value))))) == repr(value)


@given(grids())
def test_grids_fill_their_shape(grid: tuple[tuple[int, ...], list[Box]]) -> None:
    assert is_filled(*grid)


@given(grids(), st.data())
def test_boxes_fill_a_shape_when_each_place_is_in_one(grid: tuple[tuple[int, ...], list[Box]], data: st.DataObject) -> None:
    shape, boxes = grid
    numbers = st.tuples(*(st.integers(0, size) for size in shape))
    extra = data.draw(st.lists(st.tuples(numbers, numbers), max_size=3))
    kept = [box for box in boxes if data.draw(st.integers(0, 3))]
    fits = [box for box in extra if all(start + size <= whole for start, size, whole in zip(*box, shape, strict=True))]
    assert is_filled(shape, kept + fits) == all(count == 1 for count in coverage(shape, kept + fits))
    assert fits == extra or not is_filled(shape, kept + extra)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointUnreadable, match=r"^here does not describe a checkpoint: "):
        parse_contents(data, "here")


@given(checkpoints(), JSON, st.data())
def test_what_was_tampered_with_holds_together_or_is_refused(contents: Contents, other: Any, data: st.DataObject) -> None:
    document = copy.deepcopy(json.loads(encode_contents(contents)))
    places = list(places_of(document))
    parent, key = data.draw(st.sampled_from(places))
    small = st.integers(-2, 40)
    parent[key] = data.draw(small) if data.draw(st.booleans()) else other
    try:
        found = parse_contents(json.dumps(document).encode(), "here")
    except CheckpointUnreadable as error:
        assert "\n" not in str(error)  # noqa: PT017  # it need not be raised
        return
    assert repr(parse_contents(encode_contents(found), "here")) == repr(found)
    for tensor in found.tensors.values():
        boxes = [(chunk.offsets, chunk.sizes) for chunk in tensor.chunks]
        assert all(count == 1 for count in coverage(tensor.shape, boxes))
        for chunk in tensor.chunks:
            if chunk.count:
                assert chunk.start + tensor.bytes_of(chunk) <= found.files[chunk.file].size_bytes


def places_of(document: Any) -> Any:
    """Each place in it, as a container and a key."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield document, key
        if isinstance(value, dict | list):
            yield from places_of(value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d | {"format": True}, "not of a format that this version knows"),
        (lambda d: d | {"more": 1}, "its fields are not"),
        (lambda d: d | {"files": [["../secrets", 64, "0" * 64]]}, "the name of a rank file is none"),
        (lambda d: d | {"files": d["files"] * 2}, "a rank file is there twice"),
        (lambda d: d | {"tensors": {"x": ["F32", [4], []]}}, "'x': its chunks do not have as many values"),
        (lambda d: d | {"tensors": {"x": ["F32", [4], [[0, 8, [0], [2]], [0, 16, [1], [2]]]]}}, "its chunks overlap"),
        (lambda d: d | {"tensors": {"x": ["F32", [4], [[0, 8, [1], [4]]]]}}, "a chunk reaches beyond it"),
        (lambda d: d | {"tensors": {"x": ["F32", [4], [[1, 8, [0], [4]]]]}}, "in a file that is not there"),
        (lambda d: d | {"tensors": {"x": ["F32", [4], [[0, 52, [0], [4]]]]}}, "beyond the end of rank-00000"),
        (lambda d: d | {"tensors": {"x": ["F32", [4], [[0, 9, [0], [4]]]]}}, "not aligned"),
        (lambda d: d | {"tensors": {"x": ["Q4", [4], [[0, 8, [0], [4]]]]}}, "no known dtype"),
        (lambda d: d | {"tensors": {"x": ["F32", [1] * 65, [[0, 8, [0] * 64, [1] * 64]]]}}, "more than 64 dimensions"),
        (lambda d: d | {"tensors": {name: ["F32", [4], [[0, 8, [0], [4]]]] for name in "xy"}}, "two chunks share bytes"),
        (lambda d: d | {"values": {"x": {"pickle": "gASVBAAAAAAAAABLAS4="}}}, "does not say what it is"),
        (lambda d: d | {"paths": {"x": ["y"]}}, "there is a path to nothing"),
        (lambda d: d | {"values": {"x.1": 1}, "paths": {"x.1": ["x.1", ""]}}, "a path does not make its name"),
        (lambda d: d | {"values": {"x.2000000": 1}, "paths": {"x.2000000": ["x", 2000000]}}, "from 0 to 1000000"),
        (lambda d: d | {"values": {"": 1}, "paths": {"": []}}, "a path without keys"),
    ],
)
def test_what_is_wrong_is_named(change: Any, why: str) -> None:
    file = RankFile(file_name(0, "0" * 16), 64, "0" * 64)
    document = json.loads(encode_contents(Contents(files=(file,), tensors={}, values={}, paths=None)))
    with pytest.raises(CheckpointUnreadable, match=why):
        parse_contents(json.dumps(change(document)).encode(), "here")


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"format":1,"format":1}', b'{"format":NaN}', b'{"format":1' + b"0" * 9999 + b"}"]
)
def test_json_that_is_made_to_hurt_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointUnreadable):
        parse_contents(data, "here")


def test_many_chunks_are_checked_without_comparing_each_with_each() -> None:
    """That would take an hour."""
    side = 300
    boxes = [((0, i, j), (2, 1, 1)) for i in range(side) for j in range(side)]
    check_filled((2, side, side), boxes)
    with pytest.raises(ValueError, match="overlap"):
        check_filled((2, side, side), [*boxes[:-1], boxes[0]])
