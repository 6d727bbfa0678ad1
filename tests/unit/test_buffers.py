"""Memory that comes back when nobody refers to its holder any more."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from ciuic_p2p.daemon.buffers import Buffers


class Holder:
    """Anything that can be referred to weakly."""


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_comes_back_when_its_holder_is_gone() -> None:
    buffers, holder = Buffers(), Holder()
    first = buffers.lend(holder, 1000)
    assert (first.shape, first.dtype, first.flags.writeable) == ((1000,), np.float32, True)
    first[:] = 7
    lent_at = address(first)
    del first, holder
    gc.collect()
    again = buffers.lend(Holder(), 1000)
    assert address(again) == lent_at


def test_what_is_held_is_nobody_elses() -> None:
    buffers, holders = Buffers(), [Holder() for _ in range(3)]
    lent = [buffers.lend(holder, 1000) for holder in holders]
    for number, array in enumerate(lent):
        array[:] = number
    assert [set(array.tolist()) for array in lent] == [{0.0}, {1.0}, {2.0}]


def test_another_size_makes_a_new_one() -> None:
    buffers = Buffers()
    for count in (1000, 999, 1001, 0, 1000):
        holder = Holder()
        assert len(buffers.lend(holder, count)) == count
        del holder
        gc.collect()


def test_no_more_than_one_is_spare() -> None:
    # Given two arrays, when nobody holds them any more,
    buffers, holders = Buffers(), [Holder(), Holder()]
    lent = [weakref.ref(buffers.lend(holder, 1000)) for holder in holders]
    holders.clear()
    gc.collect()
    # then one is kept, the other goes back to the system.
    assert sum(array() is not None for array in lent) == 1
