"""The shared network as a part of a simulation: what is given to it arrives, when the agenda has come to that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from ciuic_p2p.simulator.agenda import Act, Agenda
from ciuic_p2p.simulator.network import SharedNetwork
from ciuic_p2p.simulator.world import World


class Carrier:
    """Lets an agenda move the frames of a network. Peers are numbers, as in the world."""

    def __init__(self, world: World, agenda: Agenda) -> None:
        self.network: SharedNetwork[Act] = SharedNetwork(world)
        self._world, self._agenda = world, agenda
        self._armed_s = math.inf

    def carry(self, source: int, target: int, size_bytes: float, arrive: Act, *, urgent: bool = False) -> None:
        """Behind what goes the same way already, and beside all else."""
        self.network.send(source, target, size_bytes, arrive, self._agenda.now, urgent=urgent)
        self._arm()

    def hurry(self, source: int, target: int, arrive: Act) -> None:
        """What is too small to take any time but the delay."""
        self._agenda.after(float(self._world.delay_s[source, target]), arrive)

    def hurry_to(self, source: int, targets: Iterable[int], arrive: Callable[[Iterable[int]], None]) -> None:
        """The same to many; arrive: is told of all that are equally far at once."""
        delays = self._world.delay_s[source]
        together: dict[float, list[int]] = {}
        for target in targets:
            together.setdefault(float(delays[target]), []).append(target)
        for delay_s, equally_far in together.items():
            self._agenda.after(delay_s, partial(arrive, equally_far))

    def _arm(self) -> None:
        due_s = self.network.next_s()
        if due_s is not None and due_s < self._armed_s:
            self._armed_s = due_s
            self._agenda.at(due_s, self._move)

    def _move(self) -> None:
        due_s, self._armed_s = self.network.next_s(), math.inf
        if due_s is not None and due_s <= self._agenda.now:
            together: dict[float, list[Act]] = {}
            for arrives_s, arrive in self.network.advance(self._agenda.now):
                together.setdefault(arrives_s, []).append(arrive)
            for arrives_s, acts in together.items():
                self._agenda.at(arrives_s, partial(_do_all, acts))
        self._arm()


def _do_all(acts: Iterable[Act]) -> None:
    for act in acts:
        act()
