"""A leader's roll call in a round: who holds which results, who gets the parts of the lost, who is to blame for a standstill.

Pure functions over the members' reports. Knows no messages under way and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ciuic_p2p.core.messages import Assignment, Report
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
    owner: Sequence[PeerId], lost: Collection[PeerId], excused: Collection[PeerId], reports: Mapping[PeerId, Report]
) -> list[Assignment]:
    """New owners for the parts of the lost; `reports` in the order of succession.

    Who holds the lost owner's result passes it on; else those who contribute reduce the part again, each an equal share. A part
    whose result only a finished member holds gets nobody: the others take over that member's state.
    """
    holding = {peer: report for peer, report in reports.items() if not report.finished}
    able = [peer for peer in holding if peer not in excused]
    someone_finished = len(holding) < len(reports)
    assignments = []
    for part, before in enumerate(owner):
        if before not in lost:
            continue
        holders = [peer for peer, report in holding.items() if holds(report, part)]
        if len(holders) == len(reports):
            continue
        if holders:
            assignments.append(Assignment(part=part, owner=holders[0], held=True))
        elif not someone_finished and able:
            assignments.append(Assignment(part=part, owner=able[part % len(able)], held=False))
    return assignments


def name_culprit(owner: Sequence[PeerId], me: PeerId, reports: Mapping[PeerId, Report]) -> Culprit | None:
    """Who holds the round up: the contributor that most owners miss; else the owner whose results most members lack."""
    missing = Counter(peer for report in reports.values() for _, peer in report.missing if peer != me)
    if missing:
        return Culprit(missing.most_common(1)[0][0], only_excused=True)
    lacking = Counter(
        before for report in reports.values() for part, before in enumerate(owner) if not holds(report, part) and before != me
    )
    return Culprit(lacking.most_common(1)[0][0], only_excused=False) if lacking else None
