"""Plans on the wire: what a leader decided arrives, and what no leader would decide is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.core.messages import Plan, Span, decode, encode
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId, StateHash

ME = PeerId("me")
PLAN = Plan(
    run="run",
    epoch=3,
    term=1,
    base_hash=StateHash("0" * 64),
    contributors=(ME,),
    listeners=(),
    spans=(Span(owner=ME, start=0, stop=1024),),
    count=1024,
    parameter_count=1000,
    part_values=1024,
    codec="int4",
    lossless_level=3,
    reason="auto: at 18 Mbit/s from us to eu int4 is 1.96 times as fast as int8",
    outer_learning_rate=0.7,
    outer_momentum=0.6,
    predicted_s=0.1,
    patience_s=3.0,
)
FIELDS = [field.name for field in dataclasses.fields(Plan)]


@given(st.integers(0, 22), st.text(min_size=1, max_size=20), st.text(max_size=200))
def test_what_was_chosen_and_why_arrives(level: int, codec: str, reason: str) -> None:
    plan = dataclasses.replace(PLAN, lossless_level=level, codec=codec, reason=reason)
    assert decode(encode(plan)) == plan


@pytest.mark.parametrize("level", [-1, 23, 1 << 40, 3.0, True, None, "3"])
def test_a_lossless_level_that_zstd_has_not_is_refused(level: Any) -> None:
    version, number, fields = msgpack.unpackb(encode(PLAN))
    fields[FIELDS.index("lossless_level")] = level
    with pytest.raises(MalformedMessage):
        decode(msgpack.packb([version, number, fields]))
