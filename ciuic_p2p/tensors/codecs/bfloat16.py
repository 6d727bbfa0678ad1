"""The upper half of a float32: 8 bits of mantissa, the range of float32."""

from __future__ import annotations

import torch

from ciuic_p2p.tensors.codecs.half import HalfCodec


class Bfloat16(HalfCodec):
    """Relative error at most 2⁻⁸ over the range of normal float32 numbers."""

    name = "bfloat16"
    code = 3
    largest_magnitude = (2.0 - 2.0**-7) * 2.0**127
    dtype = torch.bfloat16
    infinity_bits = 0x7F80
