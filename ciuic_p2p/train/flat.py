"""The user's model as one flat float32 vector: which tensors are shared, in which order, and the copies both ways.

Knows no daemon. Tensors keep their own dtype and device; the vector lies in the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ciuic_p2p.errors import LocalError
from ciuic_p2p.tensors.layout import Entry, Layout
from ciuic_p2p.train.devices import DeviceCopies
from ciuic_p2p.train.frozen import frozen_fingerprint

SHARED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COARSE_DTYPES = (torch.float16, torch.bfloat16)
Role = Literal["parameter", "buffer"]

_COMPILED = "_orig_mod."  # what torch.compile puts before the names of a module that it wraps


class FlatModel:
    """Trained parameters, then floating buffers; a tensor that is used twice is there once.

    Frozen parameters do not travel: the layout has their fingerprint, so that peers with others are refused. Whole-number
    tensors and buffers that are not saved stay with each peer. Raises LocalError for a model that has nothing to share, or
    tensors that cannot be shared.
    """

    def __init__(self, model: nn.Module) -> None:
        names = [*_trained_parameters(model), *_saved_buffers(model)]
        if not any(role == "parameter" for _, role in names):
            raise LocalError("the model has no floating-point parameter that requires a gradient", "nothing could be trained")
        self._owners = [_owner_of(name, model) for name, _ in names]
        self.layout = Layout(
            tuple(_entry(name, tensor, role) for (name, role), tensor in zip(names, self._tensors(), strict=True)),
            frozen_fingerprint(model),
        )
        self._copies = DeviceCopies()

    def share_memory(self, exchange: NDArray[np.float32]) -> None:
        """exchange: [layout.count] float32. From now on `write` and `load` copy to and from it."""
        flat = torch.from_numpy(exchange)
        parts = flat.split([tensor.numel() for tensor in self._tensors()])
        self._parts = [part.view(tensor.shape) for part, tensor in zip(parts, self._tensors(), strict=True)]
        self._copies.share_memory(flat)

    def is_finite(self) -> bool:
        """Whether every shared value is a number that float32 can hold."""
        extremes: dict[torch.device, list[Tensor]] = {}
        with torch.no_grad():
            for tensor in self._tensors():
                extremes.setdefault(tensor.device, []).append(torch.stack(torch.aminmax(tensor)).float())
        return all(bool(torch.stack(those).isfinite().all()) for those in extremes.values())  # one wait for each device

    def write(self) -> None:
        """Tensors → exchange. Raises LocalError when a tensor has another shape than when the model joined."""
        self._copies.to_exchange(self._checked_tensors(), self._parts)

    def write_trained(self) -> None:
        """Tensors → exchange, which still holds the anchor that was loaded. Raises LocalError as `write` does.

        A float16 or bfloat16 tensor holds the anchor rounded. What rounding took off is added again, so that the difference to
        the anchor is what training did, and small outer steps are not lost round after round.
        """
        coarse = [
            (part, tensor.dtype)
            for part, tensor in zip(self._parts, self._checked_tensors(), strict=True)
            if tensor.dtype in _COARSE_DTYPES
        ]
        rounded_off = [part - part.to(dtype).float() for part, dtype in coarse]
        self.write()
        for (part, _), lost in zip(coarse, rounded_off, strict=True):
            part += lost

    def load(self) -> None:
        """Exchange → tensors, in place. Raises LocalError as `write` does."""
        self._copies.from_exchange(self._parts, self._checked_tensors())

    def _tensors(self) -> list[Tensor]:
        """As they are now: moving a model to another device makes new buffers."""
        return [getattr(owner, name) for owner, name in self._owners]

    def _checked_tensors(self) -> list[Tensor]:
        tensors = self._tensors()
        for tensor, part, entry in zip(tensors, self._parts, self.layout.entries, strict=True):
            if tensor.shape != part.shape:
                what = f"{entry.name} has shape {tuple(tensor.shape)}, it joined with {tuple(part.shape)}"
                raise LocalError(what, "join again after changing a model")
        return tensors

    def close(self) -> None:
        """Lets go of the exchange."""
        self._copies.close()
        self._parts = []


def _trained_parameters(model: nn.Module) -> Iterator[tuple[str, Role]]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            _check_shareable(name, parameter)
            yield name, "parameter"


def _saved_buffers(model: nn.Module) -> Iterator[tuple[str, Role]]:
    saved = {
        id(buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }
    for name, buffer in model.named_buffers():
        if id(buffer) in saved and (buffer.is_floating_point() or buffer.is_complex()):
            _check_shareable(name, buffer)
            yield name, "buffer"


def _owner_of(name: str, model: nn.Module) -> tuple[nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute


def _check_shareable(name: str, tensor: Tensor) -> None:
    if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
        raise LocalError(f"{name} has no shape yet", "run one batch through the model before joining")
    if tensor.dtype not in SHARED_DTYPES:
        raise LocalError(f"{name} is {tensor.dtype}, which cannot be averaged", "freeze it, or use float16 to float64")
    if tensor.is_meta:
        raise LocalError(f"{name} has no values (it is on the meta device)", "give the model memory before joining")
    if tensor.layout != torch.strided or hasattr(tensor, "to_local"):
        raise LocalError(f"{name} is not a plain dense tensor", "join with a model whose parameters are plain tensors")
    if tensor.numel() == 0:
        raise LocalError(f"{name} holds no values (shape {tuple(tensor.shape)})", "take it out of the model")


def _entry(name: str, tensor: Tensor, role: Role) -> Entry:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Entry(name=name.replace(_COMPILED, ""), shape=tuple(tensor.shape), dtype=dtype, role=role)
