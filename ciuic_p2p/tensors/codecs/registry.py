"""Every codec there is, by name (settings, plans) and by code (frames). Chooses none."""

from __future__ import annotations

from ciuic_p2p.errors import ConfigError, MalformedPayload
from ciuic_p2p.tensors.codecs.base import Codec
from ciuic_p2p.tensors.codecs.bfloat16 import Bfloat16
from ciuic_p2p.tensors.codecs.float16 import Float16
from ciuic_p2p.tensors.codecs.float32 import Plain32
from ciuic_p2p.tensors.codecs.int4 import Int4
from ciuic_p2p.tensors.codecs.int8 import Int8
from ciuic_p2p.tensors.codecs.onebit import OneBit
from ciuic_p2p.tensors.codecs.topk import TopK

_CODECS: tuple[Codec, ...] = (Plain32(), Float16(), Bfloat16(), Int8(), Int4(), OneBit(), TopK())
_BY_NAME = {codec.name: codec for codec in _CODECS}
_BY_CODE = {codec.code: codec for codec in _CODECS}


def all_codecs() -> tuple[Codec, ...]:
    """One of each, in the order of their codes."""
    return _CODECS


def codec_by_name(name: str) -> Codec:
    """Raises ConfigError for a name that is none of them."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ConfigError(f"there is no codec {name!r}", f"choose one of {', '.join(_BY_NAME)}") from None


def reply_codec(codec: Codec) -> Codec:
    """Under which the mean of contributions under `codec` is sent to all: nobody keeps what a reply loses.

    The codec itself, but int4 where contributions need feedback: 4 bits a value without a residual lose nothing that could be
    measured, and float16, as in 1-bit SGD (Seide 2014), would make the way back 13 times as long as the way there.
    """
    return _BY_NAME["int4"] if codec.wants_feedback else codec


def codec_by_code(code: int) -> Codec:
    """Raises MalformedPayload for a code that is given to none."""
    try:
        return _BY_CODE[code]
    except KeyError:
        raise MalformedPayload(None, f"there is no codec with code {code}") from None
