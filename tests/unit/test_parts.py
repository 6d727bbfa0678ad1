"""From spans to parts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.parts import (
    LARGEST_PART_VALUES,
    MOST_PARTS,
    PART_S,
    PARTS_PER_SPAN,
    SMALLEST_PART_VALUES,
    choose_part_values,
)
from ciuic_p2p.core.planning.draft import ALIGNMENT_VALUES


@given(st.integers(0, 1 << 34), st.integers(1, 64), st.floats(0, 1e10))
@settings(max_examples=200, deadline=None)
def test_parts_are_blocks_within_the_limits(count: int, owners: int, values_per_s: float) -> None:
    found = choose_part_values(count, owners, values_per_s)
    assert found % ALIGNMENT_VALUES == 0
    assert SMALLEST_PART_VALUES <= found <= LARGEST_PART_VALUES
    if count <= MOST_PARTS * LARGEST_PART_VALUES:
        assert -(-count // found) <= MOST_PARTS


def test_a_large_model_over_quick_lines_has_the_largest_parts() -> None:
    assert choose_part_values(1_000_000_000, 4, 1e9) == LARGEST_PART_VALUES


def test_a_small_model_is_cut_so_that_stages_overlap() -> None:
    assert choose_part_values(64 * 256 * 2 * PARTS_PER_SPAN * 3, 2, 1e9) == 64 * 256 * 3
    assert choose_part_values(1000, 2, 1e9) == SMALLEST_PART_VALUES


def test_a_slow_line_has_parts_that_do_not_occupy_it_long() -> None:
    assert choose_part_values(100_000_000, 4, 2e6) == -(-int(2e6 * PART_S) // 256) * 256
    assert choose_part_values(100_000_000, 4, 1.0) == SMALLEST_PART_VALUES


def test_a_huge_model_over_a_slow_line_still_has_no_more_parts_than_allowed() -> None:
    count = MOST_PARTS * 3 * SMALLEST_PART_VALUES
    assert choose_part_values(count, 8, 1.0) == 3 * SMALLEST_PART_VALUES
