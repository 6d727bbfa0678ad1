"""The values of one round on one peer: the contribution, the sums of owned parts, the results. Knows no peer's whereabouts.

Called from several lane threads at once; what belongs to one part is guarded by that part's lock.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np
import structlog

from ciuic_p2p.core.messages import Plan
from ciuic_p2p.core.parts import Part, cut_parts
from ciuic_p2p.errors import RoundFailed
from ciuic_p2p.tensors.average import Accumulator
from ciuic_p2p.tensors.codecs.base import Codec, Float32
from ciuic_p2p.tensors.codecs.registry import codec_by_code, codec_by_name

log = structlog.get_logger(__name__)

LOSSLESS = codec_by_name("float32")


class RoundValues:
    """Part by part. `contribution` is None for a listener."""

    def __init__(self, plan: Plan, contribution: Float32 | None) -> None:
        self.parts: tuple[Part, ...] = cut_parts(plan)
        self.results = np.empty(plan.count, np.float32)
        self._contribution = contribution
        self._codec = codec_by_name(plan.codec)
        self._locks: dict[int, threading.Lock] = defaultdict(threading.Lock)
        self._sums: dict[int, Accumulator] = {}
        self._published: dict[int, bytes] = {}
        self._weights: dict[int, int] = {}

    def codec_of(self, part: int) -> Codec:
        return LOSSLESS if self.parts[part].lossless else self._codec

    def give_contribution(self, contribution: Float32) -> None:
        """contribution: [count] float32, the pseudo-gradient; kept unchanged until the round is over."""
        self._contribution = contribution

    def encode_contribution(self, part: int) -> bytes:
        """Raises MalformedPayload for values that the codec cannot carry."""
        return self.codec_of(part).encode(self._own(part))

    def add_own(self, part: int, samples: int) -> None:
        """The own contribution goes through the codec too, so that every peer's is treated alike."""
        codec = self.codec_of(part)
        payload = np.frombuffer(codec.encode(self._own(part)), np.uint8)
        with self._locks[part]:
            self._sum(part).add_encoded(codec, payload, samples)

    def add(self, part: int, payload: memoryview, codec_code: int, samples: int) -> None:
        """Another peer's encoded contribution. Raises MalformedPayload, and adds nothing, when it does not decode."""
        codec = codec_by_code(codec_code)
        with self._locks[part]:
            self._sum(part).add_encoded(codec, np.frombuffer(payload, np.uint8), samples)

    def publish(self, part: int) -> None:
        """Takes the mean, encodes it once, and stores what everybody will decode. Nobody's contribution: zeros."""
        piece, codec = self.parts[part], self.codec_of(part)
        mean = np.zeros(piece.count, np.float32)
        with self._locks[part]:
            summed = self._sums.pop(part, None)
            try:
                self._weights[part] = summed.total_weight if summed is not None else 0
                if summed is not None and summed.total_weight > 0:
                    summed.mean_into(mean)
            except RoundFailed as error:
                log.warning("round.part_without_mean", part=part, reason=error.reason)
                mean[:] = 0
            payload = codec.encode(mean)
            self._published[part] = payload
            codec.decode_into(np.frombuffer(payload, np.uint8), self._result(part))

    def weight_of(self, part: int) -> int:
        """The samples that a part's result stands for; travels with it, so that it is the same everywhere."""
        return self._weights[part]

    def counted_samples(self) -> int:
        """Of the whole round: the fewest of any part, for a contribution may be lost on its way to some."""
        return min(self._weights.values(), default=0)

    def result_payload(self, part: int) -> tuple[int, bytes]:
        """(codec's code, bytes) that decode to exactly the values stored here."""
        payload = self._published.get(part)
        if payload is not None:
            return self.codec_of(part).code, payload
        return LOSSLESS.code, LOSSLESS.encode(self._result(part))

    def store_result(self, part: int, payload: memoryview, codec_code: int, samples: int) -> None:
        """Raises MalformedPayload when it does not decode."""
        codec_by_code(codec_code).decode_into(np.frombuffer(payload, np.uint8), self._result(part))
        self._weights[part] = samples

    def _own(self, part: int) -> Float32:
        assert self._contribution is not None, "a listener has no contribution"
        return self._contribution[self.parts[part].start : self.parts[part].stop]

    def _result(self, part: int) -> Float32:
        return self.results[self.parts[part].start : self.parts[part].stop]

    def _sum(self, part: int) -> Accumulator:
        if part not in self._sums:
            self._sums[part] = Accumulator(self.parts[part].count)
        return self._sums[part]
