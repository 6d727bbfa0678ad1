"""Memory for shards, and what was just put: used again only when nobody refers to it, forgotten in time."""

from __future__ import annotations

import numpy as np
import pytest

from ciuic_p2p.store import buffers, fresh
from ciuic_p2p.store.buffers import BUFFER_BYTES, LEAST_BYTES, take_buffer
from ciuic_p2p.store.fresh import FRESH_S, FreshShards
from ciuic_p2p.terms import ShardId

FIRST, SECOND = ShardId("a" * 64), ShardId("b" * 64)


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.fixture(autouse=True)
def no_idle_memory():
    buffers._idle.clear()


@pytest.mark.parametrize("size_bytes", [0, 1, LEAST_BYTES, BUFFER_BYTES, BUFFER_BYTES + 1])
def test_memory_has_the_size_that_was_asked_for(size_bytes: int) -> None:
    view = take_buffer(size_bytes)
    assert len(view) == size_bytes
    assert not view.readonly
    if size_bytes >= LEAST_BYTES:
        assert address_of(view) % 4096 == 0


def test_memory_is_used_again_when_no_view_of_it_is_left() -> None:
    view = take_buffer(BUFFER_BYTES)
    address, part = address_of(view), view[5:10].toreadonly()
    del view
    other = take_buffer(BUFFER_BYTES)  # a part is still referred to
    assert address_of(other) != address
    del part
    assert address_of(take_buffer(LEAST_BYTES)) == address


def test_idle_memory_goes_back_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    del_now = [take_buffer(BUFFER_BYTES) for _ in range(3)]
    del_now.clear()
    assert len(buffers._idle) == 3
    buffers.trim()
    assert len(buffers._idle) == 3
    monkeypatch.setattr(buffers, "IDLE_S", -1.0)
    buffers.trim()
    assert not buffers._idle


def test_no_more_is_kept_idle_than_a_few() -> None:
    held = [take_buffer(BUFFER_BYTES) for _ in range(buffers.MOST_IDLE + 3)]
    held.clear()
    assert len(buffers._idle) == buffers.MOST_IDLE


def test_what_was_put_is_there_for_each_who_was_expected() -> None:
    shards = FreshShards(readers=2)
    shards.keep(FIRST, b"first")
    assert shards.take(SECOND) is None
    assert [shards.take(FIRST) for _ in range(3)] == [b"first", b"first", None]


def test_nothing_is_kept_when_nobody_is_expected() -> None:
    shards = FreshShards(readers=0)
    shards.keep(FIRST, b"first")
    assert shards.take(FIRST) is None


def test_what_nobody_asked_for_is_forgotten_and_its_room_is_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(fresh, "MOST_BYTES", 8)
    shards = FreshShards(readers=1, clock=lambda: now)
    shards.keep(FIRST, b"12345")
    shards.keep(SECOND, b"6789")  # finds no room
    assert shards.take(SECOND) is None
    now = FRESH_S
    shards.keep(SECOND, b"6789")
    assert shards.take(FIRST) is None
    assert shards.take(SECOND) == b"6789"
    shards.keep(FIRST, b"12345678")
    assert shards.take(FIRST) == b"12345678"
