"""From measured lines to spans and patience, and from spans to parts."""

from __future__ import annotations

import pytest
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
from ciuic_p2p.core.topology import (
    ALIGNMENT_VALUES,
    ALIKE,
    LEAST_PATIENCE_S,
    PATIENCE_FACTOR,
    UNMEASURED_MBPS,
    Butterfly,
    Link,
    plan_butterfly,
)
from ciuic_p2p.terms import PeerId

PEERS = tuple(PeerId(f"peer-{index}") for index in range(4))
COUNT = 10_000_000
ENCODED_BYTES = 40_000_000


def plan(
    lines_mbps: list[float | None], listeners: int = 0, links: dict[tuple[PeerId, PeerId], Link] | None = None
) -> Butterfly:
    peers = PEERS[: len(lines_mbps)]
    lines = {peer: mbps for peer, mbps in zip(peers, lines_mbps, strict=True) if mbps is not None}
    return plan_butterfly(peers, COUNT, ENCODED_BYTES, links or {}, lines, listeners)


def sizes(butterfly: Butterfly) -> list[int]:
    return [span.stop - span.start for span in butterfly.spans]


# -- lines ------------------------------------------------------------------------------------------------------------------


def test_a_line_that_was_not_measured_is_taken_for_a_good_one() -> None:
    # The middle one of those that were,
    assert plan([160.0, 640.0, 2560.0, None]) == plan([160.0, 640.0, 2560.0, 640.0])
    assert plan([None, 640.0, None, None]) == plan([640.0] * 4)
    # but no slower than what is assumed while nothing was measured.
    assert plan([1.0, 4.0, 16.0, None]) == plan([1.0, 4.0, 16.0, UNMEASURED_MBPS])


def test_lines_like_the_middle_one_get_equal_spans() -> None:
    alike = plan([64 / ALIKE + 0.1, 64.0, 64.0, 64 * ALIKE - 0.1])
    assert max(sizes(alike)) - min(sizes(alike)) <= ALIGNMENT_VALUES
    assert alike == plan([64.0] * 4)


@pytest.mark.parametrize("factor", [1 / ALIKE - 0.02, ALIKE + 0.02])
def test_a_line_unlike_the_middle_one_gets_another_span(factor: float) -> None:
    unlike = sizes(plan([64.0, 64.0, 64.0, 64 * factor]))
    assert unlike != sizes(plan([64.0] * 4))
    assert (unlike[3] > unlike[0]) == (factor > 1)


def test_noise_does_not_move_spans() -> None:
    assert plan([16.0, 62.0, 68.0, 250.0]) == plan([16.4, 66.0, 63.0, 260.0])


def test_a_quicker_line_reduces_more() -> None:
    found = sizes(plan([32.0, 64.0, 128.0, 256.0]))
    assert found == sorted(found)
    assert found[0] < found[3]


def test_measured_lines_go_before_pairs() -> None:
    links = {(PEERS[0], PEERS[1]): Link(rtt_ms=0.0, goodput_mbps=1000.0)}
    assert plan([8.0, 8.0, 8.0], links=links) == plan([8.0, 8.0, 8.0])


def test_without_measured_lines_all_are_as_quick_as_the_quickest_pair() -> None:
    links = {(PEERS[0], PEERS[1]): Link(goodput_mbps=1024.0), (PEERS[1], PEERS[2]): Link(goodput_mbps=2.0)}
    assert plan([None] * 3, links=links) == plan([1024.0] * 3)
    nothing = plan([None] * 3)
    assert max(sizes(nothing)) - min(sizes(nothing)) <= ALIGNMENT_VALUES
    # Each sends its contribution to two spans, and its result to two others: 4/3 of the tensor.
    assert nothing.predicted_s == pytest.approx(4 / 3 * ENCODED_BYTES * 8 / (UNMEASURED_MBPS * 1e6), rel=1e-3)


# -- seconds ----------------------------------------------------------------------------------------------------------------


def test_listeners_prolong_a_round() -> None:
    alone = plan([64.0] * 4)
    # Each of four equal owners sends each listener a quarter of the tensor.
    to_one_s = ENCODED_BYTES * 8 / 4 / 64e6
    for listeners in (1, 3):
        heard = plan([64.0] * 4, listeners)
        assert heard.spans == alone.spans
        assert heard.predicted_s == pytest.approx(alone.predicted_s + listeners * to_one_s, rel=1e-3)
        assert heard.patience_s > alone.patience_s


def test_a_peer_alone_needs_time_for_its_listeners_only() -> None:
    assert plan([64.0]).predicted_s == 0
    assert plan([64.0], listeners=2).predicted_s == pytest.approx(2 * ENCODED_BYTES * 8 / 64e6)


def test_patience_is_for_the_predicted_time_the_path_and_its_jitter() -> None:
    links = {(PEERS[0], PEERS[1]): Link(rtt_ms=200.0, jitter_ms=50.0), (PEERS[1], PeerId("stranger")): Link(rtt_ms=9000.0)}
    near, far = plan([64.0, 64.0]), plan([64.0, 64.0], links=links)
    assert far.predicted_s == pytest.approx(near.predicted_s + 0.4)
    assert far.patience_s == pytest.approx(PATIENCE_FACTOR * far.predicted_s + 0.3)
    assert plan([100_000.0] * 2).patience_s == LEAST_PATIENCE_S


def test_a_pairs_values_are_those_of_the_slowest_line() -> None:
    # 4 bytes a value: 32 Mbit/s for three others are a third of a million values a second each.
    assert plan([32.0, 512.0, 512.0, 512.0]).values_per_s == pytest.approx(1e6 / 3)


@given(
    lines=st.lists(st.none() | st.floats(0.5, 1e4), min_size=1, max_size=4),
    listeners=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_whatever_the_lines_spans_cover_the_tensor_on_block_borders(lines: list[float | None], listeners: int) -> None:
    found = plan(lines, listeners)
    assert [span.owner for span in found.spans] == list(PEERS[: len(lines)])
    edges = [span.start for span in found.spans] + [found.spans[-1].stop]
    assert edges == sorted(edges)
    assert (edges[0], edges[-1]) == (0, COUNT)
    assert all(span.stop == following.start for span, following in zip(found.spans, found.spans[1:], strict=False))
    assert all(edge % ALIGNMENT_VALUES == 0 or edge == COUNT for edge in edges)
    assert found.patience_s >= max(LEAST_PATIENCE_S, found.predicted_s)


# -- parts ------------------------------------------------------------------------------------------------------------------


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
