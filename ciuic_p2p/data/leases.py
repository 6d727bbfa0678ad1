"""Who trains on which samples: every sample once a pass over all peers, without a coordinator. Pure: no clock, no I/O.

At each epoch every peer computes the same `Ledger` from the same facts: the ledger of the epoch before, the trainers there are
with their measured speeds, and what each reported as used along with its contribution. A lease stays with its trainer until it
is used, so a slow one that missed an epoch is given no sample twice; when a trainer is gone, what it had not reported goes
back and is the next to be given out. A report counts only for what its sender holds: what it trained on without a report
before it was lost is in no contribution, and is trained on again by another.

After a swarm fell in two and each half went on, the half whose state goes on has the positions that count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ciuic_p2p.data.positions import Positions, plain_fields, slots_from_plain, slots_to_plain
from ciuic_p2p.data.slots import NO_SLOTS, Slots
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId

LARGEST_TRAINERS = 1 << 12
"""Holders of leases in a ledger from elsewhere."""
MOST_PASSES = 256
"""That are given out at once: a round that uses a tiny dataset more often is cut short, and no ledger grows large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """One that takes leases."""

    peer: PeerId
    samples_per_s: float
    """As measured over the last epochs; any positive number before, such as the mean of the others."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.samples_per_s) and self.samples_per_s > 0):
            raise ValueError(f"{self.samples_per_s} samples a second")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What is used, and who holds what of the rest."""

    positions: Positions
    held: tuple[tuple[PeerId, Slots], ...] = ()
    """Leases by peer id, in ascending order, none of them empty. They overlap neither one another nor what is used."""

    def __post_init__(self) -> None:
        before = ""
        for peer, lease in self.held:
            if peer <= before or not lease.count:
                raise ValueError(f"the lease of {peer} after that of {before or 'none'} is out of order, or empty")
            if any(stop > self.positions.count for _, _, stop in lease.stretches()):
                raise ValueError(f"the lease of {peer} goes past the dataset's {self.positions.count} samples")
            before = peer
        taken = _union(lease for _, lease in self.held)  # all at once: thousands of holders take no seconds
        if taken.count != sum(lease.count for _, lease in self.held) or self.positions.unused(taken) != taken:
            raise ValueError("a lease holds samples that are used or another's")

    def lease_of(self, peer: PeerId) -> Slots:
        """What this peer is to train on, lowest slot first; empty for one that holds nothing."""
        return dict(self.held).get(peer, Slots())

    def to_plain(self) -> dict[str, Any]:
        """As whole numbers, lists and words: what a newcomer is given."""
        return {"positions": self.positions.to_plain(), "held": [[peer, slots_to_plain(slots)] for peer, slots in self.held]}

    @classmethod
    def from_plain(cls, value: Any) -> Ledger:
        """What `to_plain` gave, from anyone. Raises MalformedMessage."""
        fields = plain_fields(value, ("positions", "held"))
        entries = fields["held"]
        if not isinstance(entries, list) or len(entries) > LARGEST_TRAINERS:
            raise MalformedMessage(None, f"leases are a list of at most {LARGEST_TRAINERS}")
        held = []
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
                raise MalformedMessage(None, "a lease is [peer id, slots]")
            held.append((PeerId(entry[0]), slots_from_plain(entry[1])))
        try:
            return cls(positions=Positions.from_plain(fields["positions"]), held=tuple(held))
        except ValueError as error:
            raise MalformedMessage(None, f"ledger: {error}") from None


def settle(
    ledger: Ledger, trainers: Iterable[Trainer], reports: Mapping[PeerId, Slots], ahead: int, ended: Slots = NO_SLOTS
) -> Ledger:
    """The ledger of the next epoch.

    trainers: all that are there now, in any order. reports: what each used since it was given its lease; one that leaves
    reports once more and is no trainer any more. A trainer that was lost and is back must forget what it used before.
    ahead: samples that all together shall hold, in proportion to their speeds; with twice what an epoch takes, nobody runs
    dry before the next. ended: of a stream of UNBOUNDED slots, those from its end on, whoever found it; nobody need hold them.
    A lease that is larger than its trainer's part by now is left alone: it may be in use.
    """
    return grant(use(ledger, reports, ended), divide(ahead, trainers))


def use(ledger: Ledger, reports: Mapping[PeerId, Slots], ended: Slots = NO_SLOTS) -> Ledger:
    """The same leases without what their holders report as used, and what lies behind a stream's end."""
    accepted, rest = Slots(), {}
    for peer, lease in ledger.held:
        used = reports.get(peer, NO_SLOTS) & lease
        accepted |= used
        rest[peer] = lease - used
    positions = ledger.positions.using(accepted | ended)
    return _ledger(positions, {peer: positions.unused(lease) for peer, lease in rest.items()})


def coarsen(ledger: Ledger, most_stretches: int) -> Ledger:
    """What is used in so many stretches at most (see `Positions.coarser`); what counts as used now is nobody's."""
    positions = ledger.positions.coarser(most_stretches)
    return _ledger(positions, {peer: positions.unused(lease) for peer, lease in ledger.held})


def grant(ledger: Ledger, targets: Mapping[PeerId, int], part: int = 1) -> Ledger:
    """Each of these comes to hold as many slots, or keeps what it holds where that is more; the leases of all others go back.

    What is left of a pass that does not suffice for all is divided among them, and then the next pass begins; so every trainer
    has its share of each pass, also of a small dataset. Nobody is given more than MOST_PASSES passes at once.
    part: only one in so many of what is wanting is given out, and about one slot to each at least.
    """
    positions, held = ledger.positions, dict(ledger.held)
    leases = {peer: held.get(peer, NO_SLOTS) for peer in sorted(targets)}
    missing = {peer: targets[peer] - lease.count for peer, lease in leases.items() if targets[peer] > lease.count}
    wanted = min(sum(missing.values()), MOST_PASSES * positions.count)
    wanted = max(wanted // part, min(wanted, len(missing)))
    gained: dict[PeerId, list[tuple[int, int, int]]] = {peer: [] for peer in leases}
    for number, free in positions.next_unused(wanted, _union(leases.values())).passes:
        for peer, count in _apportion(free.count, missing).items():
            given = free.first(count)
            free -= given
            gained[peer] += ((number, start, stop) for start, stop in given.bounds)
            missing[peer] -= count
    leases = {peer: lease | Slots.of(gained[peer]) for peer, lease in leases.items()}
    return _ledger(positions, leases)


def _ledger(positions: Positions, leases: Mapping[PeerId, Slots]) -> Ledger:
    return Ledger(positions=positions, held=tuple((peer, lease) for peer, lease in sorted(leases.items()) if lease.count))


def _apportion(count: int, missing: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """`count` in proportion to what each lacks, none given more than that; whole numbers only, so the same on every machine."""
    total = sum(missing.values())
    if count >= total:
        return dict(missing)
    parts = {peer: count * lacks // total for peer, lacks in missing.items()}
    left = count - sum(parts.values())
    for peer in sorted(missing, key=lambda peer: (-(count * missing[peer] % total), peer))[:left]:
        parts[peer] += 1
    return parts


def divide(samples: int, trainers: Iterable[Trainer]) -> dict[PeerId, int]:
    """`samples` in proportion to speed, by largest remainders, and at least one for each. The same on every machine."""
    there = sorted(trainers, key=lambda trainer: trainer.peer)
    total = math.fsum(trainer.samples_per_s for trainer in there)
    exact = {trainer.peer: samples * (trainer.samples_per_s / total) for trainer in there}
    parts = {peer: int(share) for peer, share in exact.items()}
    left = max(0, samples - sum(parts.values()))
    for peer in sorted(exact, key=lambda peer: (parts[peer] - exact[peer], peer))[:left]:
        parts[peer] += 1
    return {peer: max(1, part) for peer, part in parts.items()}


def _union(leases: Iterable[Slots]) -> Slots:
    return Slots.of(stretch for lease in leases for stretch in lease.stretches())
