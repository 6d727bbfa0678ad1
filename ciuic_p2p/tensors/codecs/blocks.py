"""Codecs whose encoding is one record after the other, each for a block of values; the last record may be cut short.

Knows where a record lies and how the last block is padded; what a record holds is the codec's.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ciuic_p2p.tensors.codecs.base import Bytes, Float32
from ciuic_p2p.tensors.codecs.tiled import TiledCodec, Workspace

Records = NDArray[np.void]


class BlockCodec(TiledCodec[Workspace]):
    """`record` is the packed little-endian layout of one encoded block of `block_values` values."""

    record: np.dtype[Any]

    @abstractmethod
    def last_record_bytes(self, count: int) -> int:
        """Bytes kept of the record of a last block that has only `count` values, 0 < count < block_values."""

    @abstractmethod
    def encode_blocks(self, values: Float32, records: Records) -> None:
        """values: [blocks × block_values] float32; records: [blocks]. Raises MalformedPayload when a value is not finite."""

    @abstractmethod
    def decode_blocks(self, records: Records, out: Float32) -> None:
        """records: [blocks], checked; out: [blocks × block_values] float32, overwritten."""

    @abstractmethod
    def check_records(self, records: Records) -> None:
        """Raises MalformedPayload when a record would decode to a value that is not finite, or is no record at all."""

    def padding(self, values: Float32) -> float:
        """What fills up the last block, here called with its values."""
        return 0.0

    def encoded_bytes(self, count: int) -> int:
        blocks, rest = divmod(count, self.block_values)
        return blocks * self.record.itemsize + (self.last_record_bytes(rest) if rest else 0)

    def encode_tile(self, values: Float32, out: Bytes) -> None:
        blocks = len(values) // self.block_values
        whole = blocks * self.block_values
        if blocks:
            self.encode_blocks(values[:whole], self._records(out, blocks))
        if whole < len(values):
            self._encode_last(values[whole:], out[self.encoded_bytes(whole) :])

    def decode_tile(self, payload: Bytes, out: Float32) -> None:
        blocks = len(out) // self.block_values
        whole = blocks * self.block_values
        if blocks:
            self.decode_blocks(self._records(payload, blocks), out[:whole])
        if whole < len(out):
            block = np.empty(self.block_values, np.float32)
            self.decode_blocks(self._last_record(payload[self.encoded_bytes(whole) :]), block)
            out[whole:] = block[: len(out) - whole]

    def check(self, payload: Bytes, count: int) -> None:
        self.require_size(payload, count)
        blocks, rest = divmod(count, self.block_values)
        if blocks:
            self.check_records(self._records(payload, blocks))
        if rest:
            self.check_records(self._last_record(payload[blocks * self.record.itemsize :]))

    def _records(self, payload: Bytes, blocks: int) -> Records:
        """The whole records at the front of `payload`, which may lie at any address. A view."""
        return payload[: blocks * self.record.itemsize].view(self.record)

    def _last_record(self, payload: Bytes) -> Records:
        """[1] record: the bytes that were kept of it, then zeros. A copy."""
        whole = np.zeros(self.record.itemsize, np.uint8)
        whole[: len(payload)] = payload
        return whole.view(self.record)

    def _encode_last(self, values: Float32, out: Bytes) -> None:
        block = np.full(self.block_values, self.padding(values), np.float32)
        block[: len(values)] = values
        record = np.zeros(1, self.record)
        self.encode_blocks(block, record)
        out[:] = record.view(np.uint8)[: len(out)]
