"""What bursts of frames say of a link."""

from __future__ import annotations

import pytest

from ciuic_p2p.core.measuring import GoodputMeter


def test_goodput_is_known_while_one_burst_follows_the_other_without_a_gap() -> None:
    meter = GoodputMeter()
    for frame in range(600):
        meter.add(50_000, frame * 0.01)
    assert meter.read(6.0) == pytest.approx(40.0, rel=0.02)
