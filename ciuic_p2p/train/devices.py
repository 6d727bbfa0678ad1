"""Copies between tensors on any device and the exchange in host memory. Knows no model and no daemon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch
from torch import Tensor

_FOR_ALL_DEVICES = 1
"""cudaHostRegisterPortable: page-locked for every device that the model lies on (CUDA Runtime API, Memory Management)."""


class DeviceCopies:
    """For CUDA: page-locks the exchange and copies on a stream of its own per device; everywhere else plain copies."""

    def __init__(self) -> None:
        self._flat: Tensor | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._tried_to_lock = False
        self._locked = False

    def share_memory(self, flat: Tensor) -> None:
        """flat: [count] float32 over the exchange."""
        self._flat = flat

    def to_exchange(self, tensors: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
        """Returns when the exchange holds the values: another process reads them next."""
        with torch.no_grad(), self._beside_training(tensors):
            for tensor, part in zip(tensors, parts, strict=True):
                part.copy_(tensor, non_blocking=tensor.is_cuda)
        for stream in self._streams.values():
            stream.synchronize()

    def from_exchange(self, parts: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """Returns at once on CUDA: what the device computes next waits for the values, `to_exchange` waits for the reads."""
        with torch.no_grad(), self._beside_training(tensors):
            for part, tensor in zip(parts, tensors, strict=True):
                tensor.copy_(part, non_blocking=tensor.is_cuda)
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)

    def close(self) -> None:
        """Waits for copies under way and unlocks the exchange's pages."""
        for stream in self._streams.values():
            stream.synchronize()
        if self._locked and self._flat is not None:
            torch.cuda.cudart().cudaHostUnregister(self._flat.data_ptr())
            self._locked = False
        self._flat = None

    @contextmanager
    def _beside_training(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Inside, copies of CUDA tensors run on their device's own stream, after all that training has asked for so far."""
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        if devices and not self._tried_to_lock:
            self._tried_to_lock = True
            self._lock_pages(next(iter(devices)))
        with ExitStack() as streams:
            for device in devices:
                stream = self._stream_of(device)
                stream.wait_stream(torch.cuda.current_stream(device))
                streams.enter_context(torch.cuda.stream(stream))
            yield

    def _stream_of(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _lock_pages(self, device: torch.device) -> None:
        """Where the system forbids it (a low memlock limit) copies stay right: the driver stages them, only slower."""
        assert self._flat is not None, "there is nothing to copy before share_memory"
        size_bytes = self._flat.numel() * self._flat.element_size()
        with torch.cuda.device(device):  # the first call of CUDA in a thread takes whichever device is current
            refusal = torch.cuda.cudart().cudaHostRegister(self._flat.data_ptr(), size_bytes, _FOR_ALL_DEVICES)
        self._locked = int(refusal) == 0
        if not self._locked:
            # CUDA keeps the refusal as its last error, which torch would raise at the user's next kernel: spend it on this one.
            with suppress(RuntimeError):
                torch.empty(1, device=device).fill_(1.0)
