"""What a model holds that is not trained, as one fingerprint: it does not travel, and must be the same bytes on every peer.

Knows no layout and no daemon.
"""

from __future__ import annotations

from collections.abc import Iterator

import blake3
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ciuic_p2p.errors import LocalError

_DOMAIN = "ciuic frozen 1"
_COMPILED = "_orig_mod."  # what torch.compile puts before the names of a module that it wraps


def frozen_fingerprint(model: nn.Module) -> str:
    """64 hexadecimal digits over names, dtypes, shapes and bytes of all parameters without a gradient; "" when all have one.

    Reads each of them once, wherever it lies. Raises LocalError for one whose bytes cannot be read.
    """
    frozen = [(name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if not frozen:
        return ""
    digest = blake3.blake3(_DOMAIN.encode(), max_threads=blake3.blake3.AUTO)
    for name, parameter in frozen:
        for tensor in _plain(parameter.detach()):
            shape = "x".join(map(str, tensor.shape))
            digest.update(f"\n{name.replace(_COMPILED, '')} {tensor.dtype} {shape}\n".encode())
            digest.update(_bytes_of(name, tensor))
    return str(digest.hexdigest())


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """A quantised or sharded tensor is made of several: each of them counts."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    inner, _ = tensor.__tensor_flatten__()
    for attribute in inner:
        yield from _plain(getattr(tensor, attribute))


def _bytes_of(name: str, tensor: Tensor) -> memoryview:
    if tensor.is_meta:
        raise LocalError(f"{name} has no values (it is on the meta device)", "give the model memory before joining")
    try:
        return memoryview(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    except (RuntimeError, TypeError) as error:
        what = f"the frozen {name} cannot be read, so that nobody could tell whether all peers have the same: {error}"
        raise LocalError(what, "keep frozen parameters as dense tensors") from None
