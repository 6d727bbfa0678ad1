"""A leader's roll call in a round: who holds which results, who gets the parts of the lost, who is to blame for a standstill.

Pure functions over the members' reports. Knows no messages under way and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ciuic_p2p.core.messages import Assignment, Report
from ciuic_p2p.core.reduction import Reduction
from ciuic_p2p.terms import PeerId


@dataclass(slots=True)
class RollCall:
    """A fence was sent: who still owes a report, and what the others said."""

    waiting: set[PeerId]
    deadline_s: float
    reports: dict[PeerId, Report] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Culprit:
    """A member without which the round could go on. `only_excused`: it may stay as owner and listener."""

    peer: PeerId
    only_excused: bool


def pack_parts(parts: Collection[int], count: int) -> bytes:
    """Part numbers below `count` as the bits of Report.resolved."""
    bits = bytearray(-(-count // 8))
    for part in parts:
        bits[part >> 3] |= 1 << (part & 7)
    return bytes(bits)


def holds(report: Report, part: int) -> bool:
    """Whether the reporter has the result of `part`."""
    byte = part >> 3
    return byte < len(report.resolved) and bool(report.resolved[byte] >> (part & 7) & 1)


def count_progress(reports: Mapping[PeerId, Report]) -> int:
    """Grows with every result stored and every contribution added, anywhere."""
    return sum(int.from_bytes(r.resolved, "big").bit_count() - len(r.missing) for r in reports.values())


def reassign(
    owner: Sequence[PeerId],
    lost: Collection[PeerId],
    cut_off: Collection[int],
    excused: Collection[PeerId],
    reports: Mapping[PeerId, Report],
) -> list[Assignment]:
    """New owners for the parts of the lost, and for those whose ways are cut off; `reports` in the order of succession.

    Who holds the lost owner's result passes it on; else those who contribute reduce the part again, each an equal share. An
    owner that lives stays it. A part whose result only a finished member holds gets nobody: the others take that one's state.
    """
    holding = {peer: report for peer, report in reports.items() if not report.finished}
    able = [peer for peer in holding if peer not in excused]
    someone_finished = len(holding) < len(reports)
    cut = set(cut_off)
    assignments = []
    for part, before in enumerate(owner):
        if before not in lost and part not in cut:
            continue
        holders = [peer for peer, report in holding.items() if holds(report, part)]
        if len(holders) == len(reports):
            continue
        if holders:
            assignments.append(Assignment(part=part, owner=before if before in holders else holders[0], held=True))
        elif not someone_finished and before in holding:
            assignments.append(Assignment(part=part, owner=before, held=False))
        elif not someone_finished and able:
            assignments.append(Assignment(part=part, owner=able[part % len(able)], held=False))
    return assignments


def name_culprit(reduction: Reduction, reports: Mapping[PeerId, Report]) -> Culprit | None:
    """Who holds the round up: the one for whose payloads most wait; else the one whose results most members lack.

    Who itself waits for others' payloads or for a result is not to blame for what it has not sent on.
    """
    waiting = {(reporter, part) for reporter, report in reports.items() for part, _ in report.missing}
    missing = Counter(
        (peer, reduction.carries(part, peer))
        for report in reports.values()
        for part, peer in report.missing
        if peer != reduction.me and (peer, part) not in waiting
    )
    if missing:
        peer, carries = missing.most_common(1)[0][0]
        return Culprit(peer, only_excused=not carries)
    lacking = Counter(
        _bringer(reduction, part, peer, reports)
        for peer, report in reports.items()
        for part in range(len(reduction.parts))
        if not has(report, part)
    )
    del lacking[reduction.me]
    return Culprit(lacking.most_common(1)[0][0], only_excused=False) if lacking else None


def has(report: Report, part: int) -> bool:
    """Whether the reporter needs nothing of `part` any more."""
    return report.finished or holds(report, part)


def _bringer(reduction: Reduction, part: int, peer: PeerId, reports: Mapping[PeerId, Report]) -> PeerId:
    """The nearest one on the way from the owner that has the part's result, or the owner."""
    above = reduction.parent_of(part, peer)
    while above is not None and above in reports and not has(reports[above], part):
        above = reduction.parent_of(part, above)
    return reduction.owner[part] if above is None else above
