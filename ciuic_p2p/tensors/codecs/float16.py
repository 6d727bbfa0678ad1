"""IEEE 754 half precision: 11 bits of mantissa, from 6e-8 to 65504."""

from __future__ import annotations

import torch

from ciuic_p2p.tensors.codecs.half import HalfCodec


class Float16(HalfCodec):
    """Relative error at most 2⁻¹¹ from 6.1e-5 on, absolute error at most 3e-8 below."""

    name = "float16"
    code = 2
    largest_magnitude = 65504.0
    dtype = torch.float16
    infinity_bits = 0x7C00
