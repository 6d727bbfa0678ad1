"""The local pseudo-gradient of one round: the anchor that the trainer started from minus the values it left in its exchange.

Never laid out as a whole: a part is computed when it is to be sent. What a codec loses is kept for the next round, where the
codec wants that. Knows no peers.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from ciuic_p2p.core.parts import Part
from ciuic_p2p.tensors.codecs.base import Codec, Float32
from ciuic_p2p.tensors.feedback import Feedback
from ciuic_p2p.tensors.tiles import tiles

LARGEST_VALUE = np.float32(2.0**126)
"""Differences of values within ± this are finite."""


class Contribution:
    """Valid until the exchange is given back to the trainer."""

    def __init__(self, base: Float32, local: Float32, feedback: Callable[[], Feedback], report: bytes = b"") -> None:
        """base, local: [count] float32, not written to meanwhile. feedback: asked for when a codec wants it.

        report: what was used of leases for it, as it travels."""
        self._report = report
        self._base = base
        self._local = local
        self._feedback = feedback
        self._sent: dict[int, tuple[Codec, Part, memoryview]] = {}
        self._over = False
        self._locks: dict[int, threading.Lock] = defaultdict(threading.Lock)

    def is_finite(self) -> bool:
        """Whether every difference is. Reads the local values once; the base is a state, which is finite."""
        return all(
            bool(self._local[tile].max() < LARGEST_VALUE and self._local[tile].min() > -LARGEST_VALUE)  # false for a NaN
            for tile in tiles(len(self._local))
        )

    def values(self, part: Part) -> Float32:
        """[part.count] float32; this thread's, until it asks for another part."""
        out = _THREAD.space(part.count)
        np.subtract(self._base[part.start : part.stop], self._local[part.start : part.stop], out=out)
        return out

    def payload(self, number: int, part: Part, codec: Codec) -> memoryview | None:
        """The part as it is sent; this thread's, until it asks for another. Asked for twice, the same bytes. None when over.

        Raises MalformedPayload for values that the codec cannot carry.
        """
        if self._over:  # nor may it leave a trace in what is kept for later rounds
            return None
        made = self._make_payload(number, part, codec)
        return None if self._over else made

    def end(self) -> None:
        """From now on nobody gets a payload: base or local values are about to change."""
        self._over = True

    def _make_payload(self, number: int, part: Part, codec: Codec) -> memoryview:
        if part.is_report:
            return memoryview(self._report)
        if codec.wants_feedback:
            return self._payload_with_feedback(number, part, codec)
        values = self.values(part)
        if codec.is_plain:
            return values.astype("<f4", copy=False).data.cast("B")
        out = np.empty(codec.encoded_bytes(part.count), np.uint8)
        codec.encode_into(values, out)
        return out.data

    def forget(self) -> None:
        """It is in a result: what was kept to send it again is not needed."""
        self._sent.clear()

    def take_back(self) -> None:
        """No result holds it: what was sent is made up for in a later round."""
        for codec, part, payload in self._sent.values():
            self._feedback().take_back(codec, np.frombuffer(payload, np.uint8), part.start, part.count)
        self._sent.clear()

    def _payload_with_feedback(self, number: int, part: Part, codec: Codec) -> memoryview:
        with self._locks[number]:
            known = self._sent.get(number)
            if known is None:
                out = np.empty(codec.encoded_bytes(part.count), np.uint8)
                self._feedback().encode_into(codec, self.values(part), part.start, out)
                known = self._sent[number] = (codec, part, out.data)
            return known[2]


class _Scratch(threading.local):
    """Room for one part in each thread that sends."""

    _space: Float32 | None = None

    def space(self, count: int) -> Float32:
        if self._space is None or len(self._space) < count:
            self._space = np.empty(count, np.float32)
        return self._space[:count]


_THREAD = _Scratch()
