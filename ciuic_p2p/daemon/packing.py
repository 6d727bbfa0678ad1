"""Packs the payloads of one round without loss, where the plan asks for it and the first payload of a kind gains by it.

Knows neither parts nor peers.
"""

from __future__ import annotations

from ciuic_p2p.errors import MalformedPayload
from ciuic_p2p.tensors.codecs.base import Codec
from ciuic_p2p.tensors.lossless import LEAST_GAIN, pack_known, sampled_gain, unpack


class Packing:
    """Thread-safe: two threads that both ask first find the same."""

    def __init__(self, level: int) -> None:
        """level: of the plan; 0 packs nothing."""
        self.is_wanted = level > 0
        self._gains: dict[str, bool] = {}

    def pack(self, payload: memoryview, codec: Codec) -> memoryview:
        if not self.is_wanted:
            return payload
        if codec.name not in self._gains:
            self._gains[codec.name] = sampled_gain(payload, codec.item_bytes) >= LEAST_GAIN
        return memoryview(pack_known(payload, codec.item_bytes, gains=self._gains[codec.name]))

    def unpack(self, payload: memoryview, codec: Codec, count: int, *, packed: bool) -> memoryview:
        """The encoding of `count` values. Raises MalformedPayload, also when it was packed against the plan."""
        if packed != self.is_wanted:
            raise MalformedPayload(None, "a payload that is packed where the plan says it is not, or the other way round")
        if not packed:
            return payload
        return memoryview(unpack(payload, codec.encoded_bytes(count)))
