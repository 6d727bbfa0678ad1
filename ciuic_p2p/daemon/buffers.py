"""One spare array, so that a round need not ask the system for fresh pages (0.25 s a GB). Knows not what it is for."""

from __future__ import annotations

import weakref

import numpy as np

from ciuic_p2p.tensors.codecs.base import Float32


class Buffers:
    """Thread-safe: a list's append and pop are."""

    def __init__(self) -> None:
        self._spare: list[Float32] = []

    def lend(self, holder: object, count: int) -> Float32:
        """[count] float32, content not set. It comes back when nothing refers to `holder` any more."""
        try:
            array = self._spare.pop()
        except IndexError:
            array = np.empty(0, np.float32)
        if len(array) != count:
            array = np.empty(count, np.float32)
        weakref.finalize(holder, self._take_back, array).atexit = False
        return array

    def _take_back(self, array: Float32) -> None:
        if not self._spare:
            self._spare.append(array)
