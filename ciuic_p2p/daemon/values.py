"""The values of one round on one peer: the sums of owned parts, and the results, in one array. Knows no peer's whereabouts.

A part that this peer adds up, as owner or on the way to the owner, is added up where its result will be. Called from several
lane threads at once; what belongs to one part is guarded by that part's lock.
"""

from __future__ import annotations

import math
import os
import threading
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import structlog

from ciuic_p2p.core.messages import HIERARCHICAL, RING, Plan
from ciuic_p2p.core.parts import Part, cut_parts
from ciuic_p2p.daemon.buffers import Buffers
from ciuic_p2p.daemon.contribution import Contribution
from ciuic_p2p.daemon.packing import Packing
from ciuic_p2p.daemon.reports import Reports
from ciuic_p2p.errors import RoundFailed
from ciuic_p2p.tensors.average import Accumulator
from ciuic_p2p.tensors.codecs.base import Codec, Float32
from ciuic_p2p.tensors.codecs.registry import codec_by_code, codec_by_name, reply_codec
from ciuic_p2p.tensors.kernels import kernels
from ciuic_p2p.terms import PeerId

log = structlog.get_logger(__name__)

LOSSLESS = codec_by_name("float32")

COMPUTING = threading.BoundedSemaphore(max(1, min(len(os.sched_getaffinity(0)) // 2, 4)))
"""So many threads of this process compute at a time. numpy and torch let go of the interpreter's lock for every operation:
with a thread for each lane more time would go into handing it to each other than into work."""

_UNGATED = nullcontext()
_NOBODY = PeerId("")


def computing(codec: Codec) -> AbstractContextManager[object]:
    """To be held while a part is computed. No gate where a compiled loop does it in one turn: to wait for the gate takes two
    switches of threads more, for work that is over in less."""
    return _UNGATED if codec.has_kernels and kernels() is not None else COMPUTING


class RoundValues:
    """Part by part. `contribution` is None for a listener, and before the trainer is ready."""

    def __init__(self, plan: Plan, buffers: Buffers, me: PeerId = _NOBODY) -> None:
        self._me = me
        self.reports = Reports()
        self.parts: tuple[Part, ...] = cut_parts(plan)
        self.results = buffers.lend(self, plan.count)
        self.contribution: Contribution | None = None
        self.packing = Packing(plan.lossless_level)
        self._codec = codec_by_name(plan.codec)
        self._locks: dict[int, threading.Lock] = defaultdict(threading.Lock)
        self._passes_on = plan.topology in (HIERARCHICAL, RING)
        self._sums: dict[int, Accumulator] = {}
        self._terms: dict[int, float] = defaultdict(lambda: -math.inf)
        """Under which term each sum was begun; infinite once the result is there, so that nothing enters it any more."""
        self._published: dict[int, memoryview] = {}
        self._weights: dict[int, int] = {}

    def codec_of(self, part: int) -> Codec:
        """Of contributions."""
        return LOSSLESS if self.parts[part].lossless else self._codec

    def contribution_payload(self, part: int) -> memoryview | None:
        """This thread's until it asks for another; None when the contribution is over.

        Raises MalformedPayload for values that the codec cannot carry.
        """
        assert self.contribution is not None, "a listener has no contribution"
        codec = self.codec_of(part)
        with computing(codec):
            payload = self.contribution.payload(part, self.parts[part], codec)
            return payload if payload is None or self.parts[part].is_report else self.packing.pack(payload, codec)

    def may_come_under(self, part: int, codec_code: int) -> bool:
        """A contribution under the plan's codec, or a mean of several as it is passed on to the owner."""
        return codec_code in (self.codec_of(part).code, reply_codec(self.codec_of(part)).code)

    def add_own(self, part: int, samples: int, term: int) -> None:
        """The own contribution goes through the codec too, so that every peer's is treated alike."""
        payload = self.contribution_payload(part)
        if payload is not None:
            self.add(part, payload, self.codec_of(part).code, samples, term, packed=self.packing.is_wanted, sender=self._me)

    def add(
        self,
        part: int,
        payload: memoryview,
        codec_code: int,
        samples: int,
        term: int,
        *,
        packed: bool,
        sender: PeerId = _NOBODY,
    ) -> None:
        """Another peer's encoded contribution. Raises RemoteError, and adds nothing, when it does not decode.

        term: a later one begins the sum anew, and nothing of an earlier one enters it any more.
        """
        if self.parts[part].is_report:
            self.reports.add(sender, payload, samples, term)
            return
        codec = codec_by_code(codec_code)
        with self._locks[part], computing(codec):
            payload = self.packing.unpack(payload, codec, self.parts[part].count, packed=packed)
            if term >= self._terms[part]:
                self._sum(part, term).add_encoded(codec, np.frombuffer(payload, np.uint8), samples)

    def weight_under(self, part: int, term: int) -> int:
        """The samples of all that was added under this term."""
        with self._locks[part]:
            return self._sums[part].total_weight if self._terms[part] == term else 0

    def partial_payload(self, part: int, term: int) -> memoryview | None:
        """The mean of what was added under this term, as it is passed on; None when another term or the result has come."""
        codec, mean = reply_codec(self.codec_of(part)), np.empty(self.parts[part].count, np.float32)
        with self._locks[part], computing(codec):
            if self._terms[part] != term:
                return None
            self._mean_into(mean, part, self._sums[part])
            if codec.is_plain:
                return self.packing.pack(mean.astype("<f4", copy=False).data.cast("B"), codec)
            payload = np.empty(codec.encoded_bytes(len(mean)), np.uint8)
            codec.encode_into(mean, payload)
            return self.packing.pack(payload.data, codec)

    def publish(self, part: int, term: int) -> None:
        """Takes the mean, encodes it once, and stores what everybody will decode. Nobody's contribution: zeros."""
        if self.parts[part].is_report:
            data, self._weights[part] = self.reports.publish(term)
            self._published[part] = memoryview(data)
            return
        codec, mean = reply_codec(self.codec_of(part)), self._result(part)
        with self._locks[part], computing(codec):
            summed = self._sums.pop(part, None) if self._terms[part] == term else None
            self._terms[part] = math.inf
            self._weights[part] = summed.total_weight if summed is not None else 0
            self._mean_into(mean, part, summed)
            if not codec.is_plain:
                payload = np.empty(codec.encoded_bytes(len(mean)), np.uint8)
                codec.encode_into(mean, payload)
                codec.decode_into(payload, mean)
                self._published[part] = self.packing.pack(payload.data, codec)

    def weight_of(self, part: int) -> int:
        """The samples that a part's result stands for; travels with it, so that it is the same everywhere."""
        return self._weights[part]

    def counted_samples(self) -> int:
        """Of the whole round: the fewest of any part, for a contribution may be lost on its way to some."""
        return min(self._weights.values(), default=0)

    def result_payload(self, part: int) -> tuple[int, memoryview]:
        """(codec's code, bytes) that decode to exactly the values stored here. Valid while this object is referred to."""
        payload = self._published.get(part)
        if payload is not None:
            return reply_codec(self.codec_of(part)).code, payload
        plain = self._result(part).astype("<f4", copy=False).data.cast("B")
        return LOSSLESS.code, self.packing.pack(plain, LOSSLESS)

    def store_result(self, part: int, payload: memoryview, codec_code: int, samples: int, *, packed: bool) -> None:
        """Raises RemoteError when it does not decode."""
        if self.parts[part].is_report:
            self.reports.store(payload)
            self._weights[part] = samples
            return
        codec = codec_by_code(codec_code)
        with self._locks[part], computing(codec):
            plain = self.packing.unpack(payload, codec, self.parts[part].count, packed=packed)
            codec.decode_into(np.frombuffer(plain, np.uint8), self._result(part))
            self._terms[part] = math.inf
            if self._passes_on and not codec.is_plain:
                self._published[part] = memoryview(bytes(payload))
        self._weights[part] = samples

    def _result(self, part: int) -> Float32:
        return self.results[self.parts[part].start : self.parts[part].stop]

    def _sum(self, part: int, term: int) -> Accumulator:
        if self._terms[part] < term:
            self._sums[part] = Accumulator(self.parts[part].count, self._result(part))
            self._terms[part] = term
        return self._sums[part]

    def _mean_into(self, mean: Float32, part: int, summed: Accumulator | None) -> None:
        try:
            if summed is None or summed.total_weight == 0:
                mean[:] = 0
            else:
                summed.mean_into(mean)
        except RoundFailed as error:
            log.warning("round.part_without_mean", part=part, reason=error.reason)
            mean[:] = 0
