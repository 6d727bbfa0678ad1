"""Tests here need a lab; where none can be brought up they are skipped with the reason."""

from __future__ import annotations

import pytest

from ciuic_p2p.lab.system import lab_available


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = lab_available()
    for item in items:
        if reason and item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.skip(reason=reason))
