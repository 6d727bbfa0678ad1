"""How a plan's spans are cut into parts, the pieces that travel as one frame each. Knows no values, only positions."""

from __future__ import annotations

from dataclasses import dataclass

from ciuic_p2p.core.messages import Plan
from ciuic_p2p.terms import PeerId

LARGEST_PART_VALUES = 1 << 18
"""1 MiB as float32: large enough that per-frame cost vanishes, small enough that a round's stages overlap."""

SMALLEST_PART_VALUES = 1 << 14
PARTS_PER_SPAN = 16
"""A span of a small model is cut so that reducing it overlaps with receiving it."""
PART_S = 0.05
"""What a slow line carries of one peer's contribution in this time is one part: several lanes share the rest."""
MOST_PARTS = 1 << 14


@dataclass(frozen=True, slots=True)
class Part:
    """The values [start, stop) of the flat tensor; `lossless` for buffers, which no lossy codec may touch."""

    start: int
    stop: int
    owner: PeerId
    lossless: bool
    is_report: bool = False
    """Holds no values: in it travels what each contributor used of the run's datasets (core/ledgers.py)."""

    @property
    def count(self) -> int:
        return self.stop - self.start


def choose_part_values(count: int, owners: int, values_per_s: float) -> int:
    """Values per part for a tensor of `count` values reduced by `owners` peers: a multiple of 256.

    values_per_s: what one pair of peers moves, one way.
    """
    wanted = min(-(-count // (owners * PARTS_PER_SPAN)), int(values_per_s * PART_S))
    least = max(SMALLEST_PART_VALUES, -(-count // MOST_PARTS))
    return -(-min(max(wanted, least), LARGEST_PART_VALUES) // 256) * 256


def cut_parts(plan: Plan) -> tuple[Part, ...]:
    """Every peer gets the same parts from the same plan; none crosses a span's or the parameters' edge. The last one is for
    reports, where the plan grants leases: its owner is the leader, to whom each sends its own."""
    parts = []
    for span in plan.spans:
        start = span.start
        while start < span.stop:
            edge = plan.parameter_count if start < plan.parameter_count else plan.count
            stop = min(start + plan.part_values, span.stop, edge)
            parts.append(Part(start, stop, span.owner, lossless=start >= plan.parameter_count))
            start = stop
    if plan.grants:
        parts.append(Part(plan.count, plan.count, plan.contributors[0], lossless=True, is_report=True))
    return tuple(parts)
