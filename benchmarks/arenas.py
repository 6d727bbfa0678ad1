"""Where contestants meet: loopback or the lab, with one swarm of daemons each, kept up until the benchmark ends.

`compare` lets contestants run turn and turn about over the same tensor, and gives the laps of each.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contestants.drivers import Contestant, gloo, hivemind, ours
from benchmarks.laps import Lap
from benchmarks.pings import Ping, read_pings
from benchmarks.report import progress
from benchmarks.swarms import Peer, Place, swarm
from ciuic_p2p.errors import LocalError
from ciuic_p2p.lab.lab import Lab
from ciuic_p2p.lab.topology import Topology

PAUSE_S = 0.5
"""Between two turns: what the one before left to do is done, and the plan of the next round is made."""
MOST_PARTIAL_LAPS = 10
"""In which not all took part, while they find each other."""
ANSWERS_S = 30.0
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a figure is taken."""

    laps: int
    """That count, after those that warm up."""
    limit_s: float
    """For all laps of one figure."""
    warm_up_s: float = 0.0
    """Turns warm up for as long, the first one in any case: loops are loaded, lines and cables are found."""


class Arena:
    """One place for each peer. To be used as a context."""

    def __init__(self, find_places: Callable[[ExitStack], list[Place]]) -> None:
        """find_places: called when the arena is first used; what it enters is left when the arena closes."""
        self._find_places = find_places
        self._places: list[Place] = []
        self._stack = ExitStack()
        self._peers: list[Peer] = []

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all that runs in it. It starts afresh when it is used again."""
        self._stack.close()
        self._peers = []

    def compare(self, names: Sequence[str], count: int, terms: Terms) -> dict[str, list[Lap]]:
        """names: "gloo", "hivemind", and codecs, which are ours. Raises LocalError when one cannot run or takes too long."""
        try:
            with ExitStack() as stack:
                self._open()
                contestants = {name: stack.enter_context(self._contestant(name, count)) for name in names}
                return take_turns(contestants, terms)
        except BaseException:
            self.close()
            raise

    def pings(self) -> list[Ping]:
        """All that the daemons sent until now, when they are answered; after a while also those that are not."""
        asked_at = time.time()
        deadline_s = time.monotonic() + ANSWERS_S
        while True:
            found = [ping for peer in self._peers for ping in read_pings(peer.log) if ping.sent_at <= asked_at]
            if all(ping.is_answered for ping in found) or time.monotonic() > deadline_s:
                return found
            time.sleep(POLL_S)

    def _open(self) -> None:
        if self._peers:
            return
        self._places = self._find_places(self._stack)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ciuic-arena-")))
        progress(f"{len(self._places)} daemons start")
        self._peers = self._stack.enter_context(swarm(self._places, folder))

    def _contestant(self, name: str, count: int) -> AbstractContextManager[Contestant]:
        progress(f"{name} starts with {4 * count / 1e6:g} MB a peer")
        match name:
            case "gloo":
                return gloo(self._places, count)
            case "hivemind":
                return hivemind(self._places, count)
            case codec:
                return ours(self._peers, count, codec)


def loopback(peers: int) -> Arena:
    return Arena(lambda _stack: [Place(f"local{number}", "127.0.0.1") for number in range(peers)])


def wide_area(topology: Topology) -> Arena:
    """In a lab of its own."""

    def find_places(stack: ExitStack) -> list[Place]:
        lab = stack.enter_context(Lab(topology))
        return [Place(name, address, lab) for name, address in lab.addresses.items()]

    return Arena(find_places)


def take_turns(
    contestants: Mapping[str, Contestant], terms: Terms, pause: Callable[[float], None] = time.sleep
) -> dict[str, list[Lap]]:
    """A whole round of one, of the next and so on, as many times as there are to be laps; the first turns warm up."""
    began_s = time.monotonic()
    deadline_s = began_s + terms.limit_s
    laps: dict[str, list[Lap]] = {name: [] for name in contestants}
    warms_up = True
    while warms_up or any(len(found) < terms.laps for found in laps.values()):
        for name, race in contestants.items():
            lap = _whole_lap(name, race, deadline_s, terms, pause)
            progress(f"{name}: {lap.seconds:.3f} s" + (", which warms up" if warms_up else ""))
            if not warms_up:
                laps[name].append(lap)
        warms_up = warms_up and time.monotonic() - began_s < terms.warm_up_s
    return laps


def _whole_lap(name: str, race: Contestant, deadline_s: float, terms: Terms, pause: Callable[[float], None]) -> Lap:
    for _ in range(MOST_PARTIAL_LAPS):
        pause(PAUSE_S)
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            break
        lap = race(left_s)
        if lap is not None:
            return lap
        progress(f"{name}: not all took part")
    else:
        raise LocalError(f"{name}: not all took part in {MOST_PARTIAL_LAPS} rounds one after the other")
    raise LocalError(f"{name} was not done when the {terms.limit_s:.0f} s of this figure were over")


def median_parts(laps: Mapping[str, Sequence[Lap]]) -> dict[str, float]:
    """Seconds of each contestant, and what else its laps tell: {"gloo_s", "float32_s", "float32_trainer_s", …}."""
    parts: dict[str, float] = {}
    for name, found in laps.items():
        parts[f"{name}_s"] = statistics.median(lap.seconds for lap in found)
        for part in found[0].parts:
            parts[f"{name}_{part}"] = statistics.median(lap.parts[part] for lap in found)
    return parts
