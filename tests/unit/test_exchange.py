"""The memory that a trainer shares with its daemon: both see the same values, and the daemon maps nothing that can shrink."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import numpy as np
import pytest

from ciuic_p2p.errors import LocalError, MalformedMessage
from ciuic_p2p.local.exchange import Exchange, map_received

COUNT = 1000
BYTES = 4 * COUNT
BOTH = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    made = Exchange(COUNT)
    yield made
    made.close()


def memory(size_bytes: int, seals: int) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_it_begins_with_zeros_and_both_sides_see_what_either_writes(exchange: Exchange) -> None:
    received = map_received(exchange.descriptor, COUNT)
    assert received.dtype == np.float32
    assert not exchange.values.any()
    exchange.values[:] = np.arange(COUNT)
    np.testing.assert_array_equal(received, np.arange(COUNT, dtype=np.float32))
    received[7] = -1.5
    assert exchange.values[7] == -1.5


def test_neither_side_can_change_its_size(exchange: Exchange) -> None:
    for size_bytes in (BYTES - 4, BYTES + 4):
        with pytest.raises(PermissionError):
            os.ftruncate(exchange.descriptor, size_bytes)
    with pytest.raises(PermissionError):
        fcntl.fcntl(exchange.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_the_daemons_side_outlives_the_trainers(exchange: Exchange) -> None:
    exchange.values[:] = 3.0
    received = map_received(exchange.descriptor, COUNT)
    exchange.close()
    exchange.close()  # may be said twice
    assert exchange.values.size == 0
    assert received.sum() == 3.0 * COUNT


@pytest.mark.parametrize(
    ("size_bytes", "seals", "complaint"),
    [
        (BYTES, 0, "not sealed"),
        (BYTES, fcntl.F_SEAL_SHRINK, "not sealed"),
        (BYTES, fcntl.F_SEAL_GROW, "not sealed"),
        (BYTES, BOTH | fcntl.F_SEAL_WRITE, "against writing"),
        (BYTES - 1, BOTH, "3999 bytes, the layout needs 4000"),
        (BYTES + 4, BOTH, "4004 bytes, the layout needs 4000"),
        (0, BOTH, "0 bytes"),
    ],
)
def test_memory_of_another_kind_is_refused(size_bytes: int, seals: int, complaint: str) -> None:
    descriptor = memory(size_bytes, seals)
    with pytest.raises(MalformedMessage, match=complaint):
        map_received(descriptor, COUNT)
    os.close(descriptor)


def test_what_is_no_memory_is_refused(exchange: Exchange) -> None:
    reading, writing = os.pipe()
    with pytest.raises(MalformedMessage, match="not memory"):
        map_received(reading, COUNT)
    os.close(reading)
    os.close(writing)
    with pytest.raises(MalformedMessage, match="not memory"):
        map_received(reading, COUNT)
    with pytest.raises(MalformedMessage, match="no values"):
        map_received(exchange.descriptor, 0)


def test_without_room_for_it_the_user_is_told() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(LocalError, match="no room for an exchange of"):
        Exchange(1 << 59)
    assert os.listdir("/proc/self/fd") == before
