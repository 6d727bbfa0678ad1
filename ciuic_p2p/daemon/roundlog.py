"""What the rounds of one run took and gave, for people: counted while they run, kept for a while after. Knows no values."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ciuic_p2p.core.events import FinishRound
from ciuic_p2p.core.messages import Plan, Transcript
from ciuic_p2p.terms import PeerId, StateHash

MOST_ROUNDS = 256


@dataclass(slots=True)
class RoundEntry:
    """One epoch."""

    plan: Plan
    opened_s: float
    began_s: float | None = None
    """When the local contribution was ready; a listener's round begins when it is opened."""
    seconds: float | None = None
    contributors: tuple[tuple[PeerId, int], ...] = ()
    lost: tuple[PeerId, ...] = ()
    repaired: int = 0
    counted: bool = False
    took_s: float = 0.0
    """Since everyone was ready."""
    state_hash: StateHash | None = None
    """Of the state after the round."""
    bytes_sent: int = 0
    bytes_received: int = 0
    transcript: Transcript | None = None

    @property
    def counted_from_s(self) -> float:
        return self.began_s if self.began_s is not None else self.opened_s


class RoundLog:
    """Thread-safe."""

    def __init__(self) -> None:
        self.bytes_sent = 0
        """For this run in all, states for others among them; the same for `bytes_received`."""
        self.bytes_received = 0
        self._entries: OrderedDict[int, RoundEntry] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, plan: Plan, now: float) -> None:
        with self._lock:
            self._entries[plan.epoch] = RoundEntry(plan, now)
            self._entries.move_to_end(plan.epoch)
            while len(self._entries) > MOST_ROUNDS:
                self._entries.popitem(last=False)

    def begin(self, epoch: int, now: float) -> None:
        entry = self._entries.get(epoch)
        if entry is not None and entry.began_s is None:
            entry.began_s = now

    def count_sent(self, epoch: int | None, size_bytes: int) -> None:
        """epoch: of the round that it belongs to, None outside of rounds."""
        with self._lock:
            self.bytes_sent += size_bytes
            if epoch is not None and epoch in self._entries:
                self._entries[epoch].bytes_sent += size_bytes

    def count_received(self, epoch: int | None, size_bytes: int) -> None:
        """epoch: as in count_sent."""
        with self._lock:
            self.bytes_received += size_bytes
            if epoch is not None and epoch in self._entries:
                self._entries[epoch].bytes_received += size_bytes

    def finish(self, action: FinishRound, now: float) -> None:
        entry = self._entries.get(action.epoch)
        if entry is not None:
            entry.seconds = now - entry.counted_from_s
            entry.contributors, entry.lost = action.contributors, action.lost
            entry.repaired, entry.counted, entry.took_s = action.repaired, action.counted, action.took_s

    def stepped(self, epoch: int, state_hash: StateHash) -> None:
        if epoch in self._entries:
            self._entries[epoch].state_hash = state_hash

    def record(self, transcript: Transcript) -> None:
        entry = self._entries.get(transcript.epoch)
        if entry is not None:
            entry.transcript = transcript

    def entry(self, epoch: int) -> RoundEntry | None:
        return self._entries.get(epoch)

    def last(self) -> RoundEntry | None:
        """The newest finished one."""
        with self._lock:
            return next((e for e in reversed(self._entries.values()) if e.seconds is not None), None)

    def view(self, name_of: dict[PeerId, str]) -> list[dict[str, Any]]:
        """Finished rounds, oldest first, as `ciuic-peer rounds --json` prints them."""
        with self._lock:
            entries = [entry for entry in self._entries.values() if entry.seconds is not None]
        return [_describe(entry, name_of) for entry in entries]


def _describe(entry: RoundEntry, name_of: dict[PeerId, str]) -> dict[str, Any]:
    def name(peer: PeerId) -> str:
        return name_of.get(peer, peer)

    plan = entry.plan
    return {
        "run": plan.run,
        "epoch": plan.epoch,
        "members": [name(peer) for peer, _ in entry.contributors],
        "samples": {name(peer): samples for peer, samples in entry.contributors},
        "leader": name(plan.contributors[0]),
        "plan": _describe_plan(plan),
        "topology": plan.topology,
        "codec": plan.codec,
        "reason": plan.reason,
        "began_at": round(_wall_clock_s(entry.counted_from_s), 4),
        "seconds": round(entry.seconds or 0.0, 4),
        "predicted_s": round(plan.predicted_s, 4),
        "model_error": round(entry.took_s / plan.predicted_s, 3) if plan.predicted_s > 0 else None,
        "bytes_sent": entry.bytes_sent,
        "bytes_received": entry.bytes_received,
        "lost": [name(peer) for peer in entry.lost],
        "repaired": entry.repaired,
        "counted": entry.counted,
        "state_hash": entry.state_hash,
        "signed": entry.transcript is not None,
    }


def _describe_plan(plan: Plan) -> str:
    groups = f" in {len(plan.groups)} groups" if len(plan.groups) > 1 else ""
    return f"{plan.topology} of {len(plan.contributors)}{groups}, {len(plan.listeners)} listening"


def _wall_clock_s(monotonic_s: float) -> float:
    return time.time() - time.monotonic() + monotonic_s
