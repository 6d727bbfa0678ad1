"""Which trainer uses which samples of a run's datasets, as a part of the run's state: what changes at each plan and each round.

A plan says how much each trainer shall hold; what each used goes with its contribution and comes back with the result of the
round. Both are the same for all that finish the round, so all come to the same ledgers without a word more. Pure; the sets of
slots themselves are `data/leases.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mode

import msgpack

from ciuic_p2p.core.wire import from_wire, to_wire, unpack
from ciuic_p2p.data.leases import Ledger, Trainer, coarsen, divide, grant, use
from ciuic_p2p.data.naming import name_of
from ciuic_p2p.data.positions import UNBOUNDED, Positions
from ciuic_p2p.data.slots import NO_SLOTS, Slots
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import PeerId

MOST_DATASETS = 16
"""Of one run."""
LONGEST_NAME = 128
LARGEST_REPORT_BYTES = 8 << 10
"""Some hundred stretches of slots; a lease has a few."""
LARGEST_LEDGERS_BYTES = 64 << 10
"""They travel beside the hashes of a state's pieces, in one message."""
MOST_STRETCHES = 1 << 10
"""Used ones, of all datasets together: half of LARGEST_LEDGERS_BYTES at most, so that there is room for leases."""
LATEST_PASS = 1 << 48
"""In ledgers from elsewhere: what follows from them is a number that can be written too."""
PARTS = (1, 4, 1 << 5, 1 << 10, 1 << 15, 1 << 25, 1 << 40)
"""One in so many of what is wanted is given out, the first of them with which the leases are not too many stretches."""
MOST_HELD = 1 << 40
"""Slots that a plan may let one trainer hold."""
ROUNDS_AHEAD = 2
"""What all together hold would do for so many rounds: nobody runs dry before the next plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A dataset that a trainer reads."""

    dataset: str
    count: int
    """Slots in a pass; the same for all trainers of the run."""
    samples: int
    """How many slots this trainer needs for one round."""

    def __post_init__(self) -> None:
        _require_dataset(self.dataset, self.count)
        if not 1 <= self.samples <= MOST_HELD:
            raise ValueError("a trainer that needs no samples, or more than there are")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The leader's word on one dataset: how many slots each trainer that reads it shall hold. Others' leases go back."""

    dataset: str
    count: int
    shares: tuple[tuple[PeerId, int], ...]

    def __post_init__(self) -> None:
        _require_dataset(self.dataset, self.count)
        if not self.shares or len({peer for peer, _ in self.shares}) != len(self.shares):
            raise ValueError("a dataset that nobody reads, or one peer twice")
        if not all(1 <= samples <= MOST_HELD for _, samples in self.shares):
            raise ValueError("a share of no samples, or of more than there are")


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Of one dataset: what a trainer used for its contribution."""

    dataset: str
    slots: Slots


UseReport = tuple[Used, ...]
"""What goes with one contribution: one entry for each dataset that was used."""


def _require_dataset(name: str, count: int) -> None:
    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable() or not 1 <= count <= UNBOUNDED:
        raise ValueError("a dataset without a name, or of no samples")


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Of all datasets of a run, by name in ascending order."""

    of: tuple[tuple[str, Ledger], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.of]
        if names != sorted(set(names)) or len(names) > MOST_DATASETS:
            raise ValueError("ledgers out of order, twice of one dataset, or of too many")
        for name, ledger in self.of:
            _require_dataset(name, ledger.positions.count)

    def find(self, dataset: str) -> Ledger | None:
        return dict(self.of).get(dataset)

    def called(self, name: str) -> str | None:
        """The dataset that has this name, whatever its contents."""
        return next((dataset for dataset, _ in self.of if name_of(dataset) == name), None)

    def lease_of(self, dataset: str, peer: PeerId) -> Slots:
        ledger = self.find(dataset)
        return NO_SLOTS if ledger is None else ledger.lease_of(peer)

    def granted(self, grants: Iterable[Grant]) -> Ledgers:
        """From a plan until its round ends. What the plan does not speak of stays as it is.

        Where that would be over LARGEST_LEDGERS_BYTES, less is given out, on every peer alike: at first beside the leases there
        are, then after all of those went back.
        """
        there, wanted = self._coarsened(), tuple(grants)
        for before in (there, there._without_leases()):
            for part in PARTS:
                found = before._granted(wanted, part)
                if len(found.to_bytes()) <= LARGEST_LEDGERS_BYTES:
                    return found
        return there._without_leases()

    def _granted(self, grants: Iterable[Grant], part: int) -> Ledgers:
        found = dict(self.of)
        for each in grants:
            ledger = found.get(each.dataset) or Ledger(positions=Positions(count=each.count))
            if ledger.positions.count == each.count and (each.dataset in found or len(found) < MOST_DATASETS):
                found[each.dataset] = grant(ledger, dict(each.shares), part)
        return Ledgers(tuple(sorted(found.items())))

    def settled(self, reports: Mapping[PeerId, UseReport], grants: Iterable[Grant]) -> Ledgers:
        """After the round of a plan with these grants; `self` is what was granted then. A report counts only for what its
        sender holds."""
        used: dict[str, dict[PeerId, Slots]] = {}
        for peer, report in reports.items():
            for each in report:
                used.setdefault(each.dataset, {})[peer] = each.slots
        return Ledgers(tuple((name, use(ledger, used.get(name, {}))) for name, ledger in self.of)).granted(grants)

    def covers(self, peer: PeerId, report: UseReport) -> bool:
        """Whether it used only what it holds."""
        return all(not (each.slots - self.lease_of(each.dataset, peer)).count for each in report)

    def to_bytes(self) -> bytes:
        """Equal ledgers give equal bytes; those of no dataset give none."""
        return bytes(msgpack.packb(to_wire(self))) if self.of else b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Ledgers:
        """What `to_bytes` gave, from anyone. Raises MalformedMessage."""
        if not data:
            return NO_LEDGERS
        found: Ledgers = from_wire(cls, unpack(data, LARGEST_LEDGERS_BYTES))
        if any(_last_pass(ledger) > LATEST_PASS for _, ledger in found.of):
            raise MalformedMessage(None, "a ledger of a pass that nobody can have come to")
        return found

    def _coarsened(self) -> Ledgers:
        """What somebody used in shreds, every second slot, would otherwise be kept for ever."""
        if not self.of:
            return self
        return Ledgers(tuple((name, coarsen(ledger, MOST_STRETCHES // len(self.of))) for name, ledger in self.of))

    def _without_leases(self) -> Ledgers:
        return Ledgers(tuple((name, Ledger(positions=ledger.positions)) for name, ledger in self.of))


def _last_pass(ledger: Ledger) -> int:
    slots = (ledger.positions.beyond, *(lease for _, lease in ledger.held))
    return max(ledger.positions.finished, *(number for each in slots for number, _ in each.passes[-1:]), 0)


NO_LEDGERS = Ledgers()


def share_out(
    wanted: Mapping[PeerId, tuple[Wanted, ...]], speeds: Mapping[PeerId, float], ledgers: Ledgers
) -> tuple[Grant, ...]:
    """What the leader lets each hold, `wanted` in its order: by measured speed, and never less than a round takes.

    speeds: samples a second, 0 where none was measured yet; then that of the others is taken. Of more datasets than there may
    be, those that most read: nobody keeps the others' from them by names of its own. Of datasets with one name and other
    contents, the one that the run knows is divided, or the one that most read.
    """
    called: dict[str, list[str]] = {}
    for datasets in wanted.values():
        for each in datasets:
            called.setdefault(name_of(each.dataset), []).append(each.dataset)
    meant = {ledgers.called(name) or mode(several) for name, several in called.items()}
    by_dataset: dict[str, dict[PeerId, Wanted]] = {}
    for peer, datasets in wanted.items():
        for each in datasets:
            if each.dataset in meant:
                by_dataset.setdefault(each.dataset, {})[peer] = each
    grants = []
    chosen = sorted(by_dataset.items(), key=lambda each: _urgency(each[0], each[1], ledgers))[:MOST_DATASETS]
    for dataset, readers in sorted(chosen):
        known = ledgers.find(dataset)
        count = known.positions.count if known is not None else mode(each.count for each in readers.values())
        agreeing = {peer: each for peer, each in readers.items() if each.count == count}
        if agreeing:
            grants.append(Grant(dataset=dataset, count=count, shares=_shares(agreeing, speeds)))
    return tuple(grants)


def _urgency(dataset: str, readers: Mapping[PeerId, Wanted], ledgers: Ledgers) -> tuple[int, bool, str]:
    """Most read first, then what was trained on already."""
    ledger = ledgers.find(dataset)
    is_used = ledger is not None and ledger.positions != Positions(count=ledger.positions.count)
    return -len(readers), not is_used, dataset


def _shares(readers: Mapping[PeerId, Wanted], speeds: Mapping[PeerId, float]) -> tuple[tuple[PeerId, int], ...]:
    measured = [speeds[peer] for peer in readers if speeds.get(peer, 0.0) > 0]
    usual = sum(measured) / len(measured) if measured else 1.0
    trainers = [Trainer(peer=peer, samples_per_s=speeds.get(peer, 0.0) or usual) for peer in readers]
    by_speed = divide(ROUNDS_AHEAD * sum(each.samples for each in readers.values()), trainers)
    return tuple((peer, min(MOST_HELD, max(each.samples, by_speed[peer]))) for peer, each in sorted(readers.items()))


# -- reports on the wire ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Report:
    datasets: UseReport


@dataclass(frozen=True, slots=True)
class _Reports:
    of: tuple[tuple[PeerId, UseReport], ...]


def encode_report(report: UseReport) -> bytes:
    """One peer's, beside its contribution."""
    return bytes(msgpack.packb(to_wire(_Report(report))))


def decode_report(data: bytes) -> UseReport:
    """From anyone. Raises MalformedMessage."""
    found: _Report = from_wire(_Report, unpack(data, LARGEST_REPORT_BYTES))
    return _checked(found.datasets)


def encode_reports(reports: Mapping[PeerId, UseReport]) -> bytes:
    """Those of all whose contributions are in the result."""
    return bytes(msgpack.packb(to_wire(_Reports(tuple(sorted(reports.items()))))))


def decode_reports(data: bytes, largest_bytes: int) -> dict[PeerId, UseReport]:
    """From anyone. Raises MalformedMessage."""
    found: _Reports = from_wire(_Reports, unpack(data, largest_bytes))
    return {peer: _checked(report) for peer, report in found.of}


def _checked(report: UseReport) -> UseReport:
    names = [each.dataset for each in report]
    if len(names) != len(set(names)) or len(names) > MOST_DATASETS:
        raise MalformedMessage(None, "a report of one dataset twice, or of too many")
    return report
