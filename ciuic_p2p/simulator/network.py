"""Frames on their way: a queue for each ordered pair of peers, lines and cables that all queues share. Pure, virtual time.

Each pair's queue is served in order; what is urgent has a queue of its own. The queues that have something share each line up,
each line down, each cable (one for each ordered pair of regions) and each processor max-min fairly by weight (sharing.py). A
frame is there one delay after its last byte has left. What is left out: losses, the growth of congestion windows, queues
inside of the network, headers.

With `tick_s` above 0 queues are looked at only at its multiples: a frame is at most one tick late, and what a queue that ran
empty leaves is the others' from the next tick on. For many peers that is the difference between minutes and days.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

import numpy as np

from ciuic_p2p.simulator.sharing import Floats, fair_rates
from ciuic_p2p.simulator.world import World

Token = TypeVar("Token")

BYTES_PER_S_PER_MBPS = 125_000
ROUNDING_BYTES = 1e-3
ROUNDING_S = 1e-9
"""What is through in less than that, or lacks no more than those bytes, is through."""
UNLIMITED_BYTES_PER_S = 1e15
"""Stands for the rate of what nothing limits."""
HOPS = 5
"""Up, down, cable, the sender's processor, the receiver's."""
URGENT_WEIGHT = 100.0
"""Of a pair's urgent queue, where other queues weigh 1 or so: as good as first."""


class SharedNetwork(Generic[Token]):
    """`send` frames, ask `next_s`, `advance` to it, get what arrives and when. Peers are numbers, as in the world."""

    def __init__(self, world: World, tick_s: float = 0.0) -> None:
        self.now = 0.0
        self.tick_s = tick_s
        self.ocean_bytes: Floats = np.zeros(world.cable_mbps.shape)  # [m, m]
        """Sent so far from each region to each other one, or within it."""
        self._world = world
        self._capacities = _capacities(world)
        self._slots: dict[int, int] = {}
        self._queues: list[deque[tuple[float, Token]]] = []
        """Of each slot: (how much the slot will have moved when the frame is through, the frame)."""
        self._ends: list[float] = []
        """How much each slot will have moved when its queue is empty."""
        self._routes = np.zeros((64, HOPS), np.intp)
        self._weights = np.ones(64)
        self._rates = np.zeros(64)
        self._moved = np.zeros(64)
        self._next_ends = np.full(64, math.inf)
        """When the first frame of each queue is through, in bytes moved; infinite for an empty queue."""
        self._busy: set[int] = set()
        self._flowing = np.zeros(0, np.intp)
        """Busy slots when rates were set last."""
        self._changed_s: float | None = None
        """Since when the rates are not right any more."""
        self._through_s = math.inf
        """When the next frame will be through, at these rates."""

    def weigh(self, source: int, target: int, weight: float) -> None:
        """The share of what the pair's queue shares with others; 1 until it is said."""
        slot = self._slot(source, target)
        self._weights[slot] = weight

    def send(self, source: int, target: int, size_bytes: float, token: Token, now: float, *, urgent: bool = False) -> None:
        """Puts a frame at the end of the pair's queue, or of its urgent one."""
        slot = self._slot(source, target, urgent=urgent)
        end = self._ends[slot] = self._ends[slot] + size_bytes
        queue = self._queues[slot]
        queue.append((end, token))
        if len(queue) == 1:
            self._next_ends[slot] = end
            self._busy.add(slot)
            self._note_change(now)
        regions = self._world.region_of
        self.ocean_bytes[regions[source], regions[target]] += size_bytes

    def next_s(self) -> float | None:
        """When to `advance` next; None while nothing is on its way."""
        due_s = self._through_s if self._changed_s is None else min(self._through_s, self._changed_s)
        if not math.isfinite(due_s):
            return None
        return due_s if self.tick_s == 0 else max(math.ceil(due_s / self.tick_s - 1e-9) * self.tick_s, self.now)

    def advance(self, now: float) -> list[tuple[float, Token]]:
        """Time has come to `now`, no later than `next_s`: (when it arrives, frame) of what is through."""
        flowing = self._flowing
        self._moved[flowing] += self._rates[flowing] * (now - self.now)
        self.now = now
        through = flowing[self._next_ends[flowing] <= self._moved[flowing] + _rounding_bytes(self._rates[flowing])]
        arriving = [arrival for slot in through.tolist() for arrival in self._pop(slot, now)]
        if self._changed_s is not None:
            self._share()
        self._through_s = now + self._least_left_s()
        return arriving

    def _least_left_s(self) -> float:
        """Until the next frame is through."""
        if not len(self._flowing):
            return math.inf
        left = self._next_ends[self._flowing] - self._moved[self._flowing]
        return max(float((left / self._rates[self._flowing]).min()), 0.0)

    def _pop(self, slot: int, now: float) -> list[tuple[float, Token]]:
        queue, moved = self._queues[slot], self._moved[slot] + _rounding_bytes(self._rates[slot])
        source, target = self._routes[slot, 0], self._routes[slot, 1] - len(self._world.peers)
        arrives_s = now + float(self._world.delay_s[source, target])
        arriving = []
        while queue and queue[0][0] <= moved:
            arriving.append((arrives_s, queue.popleft()[1]))
        if queue:
            self._next_ends[slot] = queue[0][0]
        else:  # counted anew, so that sums stay small
            self._next_ends[slot], self._moved[slot], self._ends[slot], self._rates[slot] = math.inf, 0.0, 0.0, 0.0
            self._busy.discard(slot)
            self._note_change(now)
        return arriving

    def _note_change(self, now: float) -> None:
        if self._changed_s is None:
            self._changed_s = now

    def _share(self) -> None:
        self._changed_s = None
        self._flowing = np.fromiter(self._busy, np.intp, len(self._busy))
        self._flowing.sort()  # a set's order is nobody's decision
        rates = fair_rates(self._routes[self._flowing], self._weights[self._flowing], self._capacities)
        self._rates[self._flowing] = np.minimum(rates, UNLIMITED_BYTES_PER_S)

    def _slot(self, source: int, target: int, *, urgent: bool = False) -> int:
        queue = 2 * (source * len(self._world.peers) + target) + urgent
        slot = self._slots.setdefault(queue, len(self._slots))
        if slot == len(self._queues):
            self._queues.append(deque())
            self._ends.append(0.0)
            if slot == len(self._rates):
                self._grow()
            self._routes[slot] = _route(self._world, source, target)
            self._weights[slot] = URGENT_WEIGHT if urgent else 1.0
        return slot

    def _grow(self) -> None:
        more = len(self._rates)
        self._routes = np.concatenate([self._routes, np.zeros((more, HOPS), np.intp)])
        self._weights = np.concatenate([self._weights, np.ones(more)])
        self._rates = np.concatenate([self._rates, np.zeros(more)])
        self._moved = np.concatenate([self._moved, np.zeros(more)])
        self._next_ends = np.concatenate([self._next_ends, np.full(more, math.inf)])


def _rounding_bytes(rates: Floats) -> Floats:
    return ROUNDING_BYTES + ROUNDING_S * rates


def _capacities(world: World) -> Floats:
    """Bytes/s of: lines up, lines down, cables by row, processors."""
    processors = 1 if world.is_one_machine else len(world.peers)
    rates = [world.up_mbps, world.down_mbps, world.cable_mbps.ravel(), np.full(processors, world.processor_mbps)]
    return np.concatenate(rates) * BYTES_PER_S_PER_MBPS


def _route(world: World, source: int, target: int) -> tuple[int, int, int, int, int]:
    peers, regions = len(world.peers), len(world.regions)
    cables, processors = 2 * peers, 2 * peers + regions * regions
    cable = cables + int(world.region_of[source]) * regions + int(world.region_of[target])
    mine, theirs = (0, 0) if world.is_one_machine else (source, target)
    return source, peers + target, cable, processors + mine, processors + theirs
