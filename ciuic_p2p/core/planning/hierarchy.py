"""A hierarchy: each region sums up what its peers have of a span at one carrier, and only the sum crosses an ocean.

The cable from region g to h carries the sums for what h's peers own and the results of what g's peers own: (x_g + x_h) of the
tensor, x being the regions' shares. A carrier i of a region of m peers that carries c_i of the tensor and owns o_i of it sends
1 + c_i (m - 1) + o_i (G - 2) of the tensor, and receives as much. With r_i = T b_i / S - 1 for a line of rate b_i that is
possible in the time T just when the r_i of the region's carriers sum up to (m - 1) + x_g (G - 2). So the least T and the
shares are a linear programme of G + 1 variables.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ciuic_p2p.core.messages import HIERARCHICAL
from ciuic_p2p.core.planning.draft import Draft, Piece, cut
from ciuic_p2p.core.planning.network import Ground
from ciuic_p2p.core.planning.simplex import maximise

EDGE_SHARE = 0.25
"""A peer whose line is under so much of its region's middle one carries nothing: it is an edge of the swarm, not its core."""

MOST_GROUPS = 16
MOST_SPANS = 1024
LEAST_FINER, MOST_FINER = 2, 8
FINE_SPANS = 64
"""Of small swarms of unlike peers the pieces are so many that each gets as much as its line allows."""

TIME_COST = 1e-9
"""Of the whole tensor's share in the objective: the least that keeps the time from being longer than it must."""
SLACK = 1 + 1e-9
EVEN_ROOM = 1.0
"""Of what a carrier would have to carry if all carried alike: with so much left, unlike lines are as good as alike ones."""
LEAST_SHARE = 1e-3
"""Of a region; less is not worth the spans."""


@dataclass(frozen=True, slots=True)
class Region:
    """One group. Rates in tensors a second."""

    number: int
    members: tuple[int, ...]
    carriers: tuple[int, ...]
    rates: tuple[float, ...]
    """Of the carriers."""
    least_s: float
    """Its slowest member needs so long for its own contribution and the results."""

    @property
    def total_rate(self) -> float:
        return sum(self.rates)

    @property
    def fixed_load(self) -> int:
        """Tensors that its carriers send whoever owns what: own contributions, and results to each other member."""
        return len(self.carriers) + len(self.members) - 1

    def budgets(self, seconds: float, owned: float) -> list[float]:
        """What each carrier's line has left after its own contribution and results, in tensors; alike where each has enough.

        owned: what the region has to carry beside that for what it owns. Even carriers have the fewest flows, and over cables
        all of them end at once.
        """
        left = [max(seconds * rate - 1, 1e-12) for rate in self.rates]
        even = (len(self.members) - 1 + owned) / len(self.carriers)
        return [even] * len(left) if even > 0 and min(left) >= EVEN_ROOM * even else left


def draft_hierarchy(ground: Ground, count: int, encoded_bytes: float) -> Draft | None:
    """None where contributors are in one region only, or in more than MOST_GROUPS."""
    tensor_mbit = max(encoded_bytes, 1.0) * 8e-6
    regions = survey_regions(ground, tensor_mbit)
    if not 1 < len(regions) <= MOST_GROUPS:
        return None
    cables = {pair: mbps / tensor_mbit for pair, mbps in ground.cables_mbps.items()}
    shares, seconds = share_regions(ground, regions, cables)
    return _assign(ground, count, regions, shares, seconds)


def survey_regions(ground: Ground, tensor_mbit: float) -> list[Region]:
    """Those that have contributors."""
    return [_survey_region(ground, number, tensor_mbit) for number, members in enumerate(ground.members) if members]


def _survey_region(ground: Ground, number: int, tensor_mbit: float) -> Region:
    members = ground.members[number]
    lines = [ground.planned_mbps[peer] for peer in members]
    middle = statistics.median(lines)
    carriers = tuple(peer for peer in members if ground.planned_mbps[peer] >= EDGE_SHARE * middle)
    rates = tuple(ground.planned_mbps[peer] / tensor_mbit for peer in carriers)
    return Region(number, members, carriers, rates, least_s=tensor_mbit / min(lines))


# -- shares ------------------------------------------------------------------------------------------------------------


def share_regions(ground: Ground, regions: Sequence[Region], cables: dict[tuple[int, int], float]) -> tuple[list[float], float]:
    """Each region's share of the tensor, and the least seconds. cables: tensors a second."""
    owning = len(regions) - 2 + ground.listener_count
    least_s = max(max(r.least_s, r.fixed_load / r.total_rate) for r in regions)
    rows, limits, slopes = _constraints(ground, regions, cables, owning, least_s)
    # The time is the last variable, counted from least_s in units of it.
    found = maximise(
        [*([1.0] * len(regions)), -TIME_COST],
        [[*row, -slope] for row, slope in zip(rows, slopes, strict=True)],
        limits,
    )
    stretch = found[-1] * SLACK
    limits = [limit + stretch * slope for limit, slope in zip(limits, slopes, strict=True)]
    return _even_out(regions, rows, limits), least_s * (1 + stretch)


def _constraints(
    ground: Ground, regions: Sequence[Region], cables: dict[tuple[int, int], float], owning: int, least_s: float
) -> tuple[list[list[float]], list[float], list[float]]:
    """Rows over the shares, their limits at least_s, and how much a limit grows when the time is twice as long."""
    rows, limits, slopes = [[1.0] * len(regions)], [1.0], [0.0]
    for place, region in enumerate(regions):
        row = [0.0] * len(regions)
        row[place] = float(owning)
        rows.append(row)
        limits.append(max(least_s * region.total_rate - region.fixed_load, 0.0))
        slopes.append(least_s * region.total_rate)
    place_of = {region.number: place for place, region in enumerate(regions)}
    for (source, target), rate in cables.items():
        row = [0.0] * len(regions)
        if source in place_of:
            row[place_of[source]] = float((target in place_of) + ground.listeners[target])
        if target in place_of and source in place_of:
            row[place_of[target]] = 1.0
        if any(row):
            rows.append(row)
            limits.append(least_s * rate)
            slopes.append(least_s * rate)
    return rows, limits, slopes


def _even_out(regions: Sequence[Region], rows: Sequence[Sequence[float]], limits: Sequence[float]) -> list[float]:
    """Of all shares that take no longer, those in which even the worst-off region has most of what its lines call for."""
    total_rate = sum(region.total_rate for region in regions)
    wanted = [region.total_rate / total_rate for region in regions]
    # x_g = (the common part) × wanted_g + more_g
    widened = [[*row, sum(a * w for a, w in zip(row, wanted, strict=True))] for row in rows]
    found = maximise([*([1.0] * len(regions)), 1.0 + 1e-3], widened, limits)
    shares = [more + found[-1] * w for more, w in zip(found, wanted, strict=False)]
    shares = [share if share >= LEAST_SHARE else 0.0 for share in shares]
    total = sum(shares)
    return [share / total for share in shares]


# -- carriers ----------------------------------------------------------------------------------------------------------


def _assign(ground: Ground, count: int, regions: Sequence[Region], shares: Sequence[float], seconds: float) -> Draft:
    owning = len(regions) - 2 + ground.listener_count
    pieces = _count_pieces(regions, shares, owning, seconds)
    sizes = [share / pieces for share in shares for _ in range(pieces)]
    columns = [_share_out(region, place, shares, pieces, owning, seconds) for place, region in enumerate(regions)]
    carriers = list(zip(*columns, strict=True))
    found = tuple(
        Piece(start, stop, owner=carriers[slot][slot // pieces], carriers=carriers[slot])
        for slot, (start, stop) in enumerate(cut(count, sizes))
        if stop > start
    )
    return Draft(HIERARCHICAL, found, tuple(region.members for region in regions))


def _count_pieces(regions: Sequence[Region], shares: Sequence[float], owning: int, seconds: float) -> int:
    """Of each region's share: as many as the largest region has carriers, more where these would be unlike in load."""
    sizes = [len(region.carriers) for region in regions]
    largest, owners = max(sizes), sum(share > 0 for share in shares)
    budgets = [region.budgets(seconds, owning * share) for region, share in zip(regions, shares, strict=True)]
    are_alike = all(max(each) <= 1.01 * min(each) for each in budgets)
    finer = 1
    if not are_alike or any(largest % size for size in sizes):
        finer = min(max(FINE_SPANS // (owners * largest), LEAST_FINER), MOST_FINER)
    return max(min(largest * finer, MOST_SPANS // owners), 1)


def _share_out(region: Region, place: int, shares: Sequence[float], pieces: int, owning: int, seconds: float) -> list[int]:
    """The region's carrier for each piece of each region's share: always the one that then is least in demand."""
    budgets = region.budgets(seconds, owning * shares[place])
    loads = [0.0] * len(budgets)
    found: list[list[int]] = [[] for _ in shares]
    own_first = sorted(range(len(shares)), key=lambda other: (other != place, other))
    for other in own_first:
        weight = len(region.members) - 1 + (owning if other == place else 0)
        added = max(weight, 1e-9) * shares[other] / pieces
        line = [((load + added) / budget, number) for number, (load, budget) in enumerate(zip(loads, budgets, strict=True))]
        heapq.heapify(line)
        for _ in range(pieces):
            _, number = line[0]
            found[other].append(region.carriers[number])
            loads[number] += added
            heapq.heapreplace(line, ((loads[number] + added) / budgets[number], number))
    return [carrier for carriers in found for carrier in carriers]
