"""What a peer may say of its line."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from ciuic_p2p.core.messages import Line, decode, encode
from ciuic_p2p.errors import MalformedMessage

GOOD: dict[str, Any] = {
    "line_mbps": 20.0,
    "down_mbps": 100.0,
    "spare_mbps": 3.0,
    "sent_at_ms": 12.5,
    "queued_ms": 1.0,
    "up_queued_ms": 0.0,
    "down_queued_ms": 0.0,
    "loses": False,
}


def test_a_line_comes_as_it_was_sent() -> None:
    assert decode(encode(Line(**GOOD))) == Line(**GOOD)
    assert decode(encode(Line(**GOOD | {"line_mbps": 0.0}))) == Line(**GOOD | {"line_mbps": 0.0})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, bad) for name in GOOD if name != "loses" for bad in (float("nan"), float("inf"))),
        *((name, -1.0) for name in GOOD if name not in ("loses", "sent_at_ms")),
        ("down_mbps", 0.0),
        ("line_mbps", 1e-9),
        ("spare_mbps", 1e30),
    ],
)
def test_what_no_line_has_is_refused(field: str, value: float) -> None:
    version, number, fields = msgpack.unpackb(encode(Line(**GOOD)))
    place = list(GOOD).index(field)
    fields = {**fields, field: value} if isinstance(fields, dict) else [*fields[:place], value, *fields[place + 1 :]]
    with pytest.raises(MalformedMessage):
        decode(msgpack.packb([version, number, fields]))
