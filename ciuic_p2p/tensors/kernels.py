"""Where the compiled loops are ready, and until when numpy and torch do their work. Knows no frame and no round.

Both give the same bits, so it does not matter who was quicker where: one peer of a swarm may have numba and another not.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

log = structlog.get_logger(__name__)

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

WORTH_VALUES = 1 << 20
"""For smaller models the seconds of compiling are not worth it."""
BLOCK_VALUES = 256


class Kernels:
    """Arrays are contiguous; `total` and `out` are written to. Threads may call at the same time for different arrays."""

    def __init__(self, compiled: ModuleType) -> None:
        self._compiled: Any = compiled
        self._record_bytes = {127: compiled.ROW_8, 7: compiled.ROW_4}
        self._code_type = {127: np.int8, 7: np.uint8}
        self._encode = {127: compiled.encode_8, 7: compiled.encode_4}
        self._decode = {127: compiled.decode_8, 7: compiled.decode_4}
        self._weigh = {127: compiled.weigh_8, 7: compiled.weigh_4}
        self._add = {127: compiled.add_weighted_8, 7: compiled.add_weighted_4}

    def is_finite(self, values: Float32) -> bool:
        """values: [count] float32."""
        return bool(self._compiled.all_finite(_only_read(values, np.int32)))

    def add(self, values: Float32, weight: int, total: Float32, *, is_first: bool) -> None:
        """total += weight × values, or = where they are the first; [count] float32 both."""
        _require(len(values) == len(total))
        loop = self._compiled.weigh if is_first else self._compiled.add_weighted
        loop(_only_read(values, np.float32), np.float32(weight), total)

    def divide(self, total: Float32, divisor: int) -> None:
        """total ÷= divisor; total: [count] float32."""
        self._compiled.divide(total, np.float32(divisor))

    def encode(self, levels: int, values: Float32, out: Bytes) -> bool:
        """levels: 127 for int8, 7 for int4. values: [blocks × 256] float32; out: [blocks × the record's size] uint8.

        False when a value is too large for the codec or not finite; `out` is then undefined.
        """
        self._require_records(levels, len(values), out)
        scales = out.view(np.float32)
        return bool(self._encode[levels](_only_read(values, np.float32), _only_read(values, np.int32), out, scales))

    def decode(self, levels: int, payload: Bytes, out: Float32) -> None:
        """payload: as `encode` wrote it, scales checked; out: [blocks × 256] float32, overwritten."""
        self._require_records(levels, len(out), payload)
        self._decode[levels](*self._records(levels, payload), out)

    def add_encoded(self, levels: int, payload: Bytes, weight: int, total: Float32, *, is_first: bool) -> None:
        """total += weight × what `decode` gives, or = where it is the first; total: [blocks × 256] float32."""
        self._require_records(levels, len(total), payload)
        loop = self._weigh[levels] if is_first else self._add[levels]
        loop(*self._records(levels, payload), np.float32(weight), total)

    def _records(self, levels: int, payload: Bytes) -> tuple[NDArray[Any], Float32]:
        return _only_read(payload, self._code_type[levels]), _only_read(payload, np.float32)

    def _require_records(self, levels: int, count: int, payload: Bytes) -> None:
        _require(count % BLOCK_VALUES == 0 and len(payload) == count // BLOCK_VALUES * self._record_bytes[levels])


def can_take(*arrays: NDArray[Any]) -> bool:
    """Whether the loops may be given these: they know no others than contiguous ones at addresses divisible by 4."""
    return all(array.flags.c_contiguous and array.ctypes.data % 4 == 0 for array in arrays)


def kernels() -> Kernels | None:
    """None until they are ready."""
    return _ready


def prepare() -> bool:
    """Loads or compiles them now. False where numba is not installed, or cannot run."""
    global _ready
    try:
        from ciuic_p2p.tensors import compiled
    except Exception as error:  # whatever numba cannot do here: all goes on without it
        log.info("kernels.missing", error=str(error))
        return False
    _ready = Kernels(compiled)
    log.info("kernels.ready")
    return True


def prepare_soon(count: int) -> None:
    """In a thread of its own, once, for a model of so many values."""
    global _asked
    if count >= WORTH_VALUES and not _asked:
        _asked = True
        threading.Thread(target=prepare, name="kernels", daemon=True).start()


def _only_read(array: NDArray[Any], kind: Any) -> NDArray[Any]:
    seen: NDArray[Any] = array.view(kind)
    seen.flags.writeable = False
    return seen


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError("arrays whose sizes do not belong together")


_ready: Kernels | None = None
_asked = False
