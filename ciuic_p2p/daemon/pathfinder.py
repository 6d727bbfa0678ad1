"""Chooses third peers for those that have no direct connection, and says of every path why it is the one.

Lives in the event loop's thread. Knows what neighbours measured; refuses to know how a path is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ciuic_p2p.core.paths import DIRECT, RELAY, Legs, forwarder_of, paths_between
from ciuic_p2p.terms import PeerId

USUAL_BYTES = 1 << 20
"""Third peers are compared by what they take for so much: a part of a round."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A path as people see it."""

    path: str
    """"direct", "relay" or "via NAME"."""
    why: str


class Pathfinder:
    """For all sessions of this peer."""

    def __init__(self, me: PeerId, legs: Callable[[], Legs], name_of: Callable[[PeerId], str]) -> None:
        self._me = me
        self._legs = legs
        self._name_of = name_of

    def order(self, target: PeerId, beside: Collection[PeerId]) -> list[PeerId]:
        """Whom of `beside`, the peers with a direct session, to ask for a way to `target`: the quickest first, then those of
        which nothing says that they have a session with it."""
        paths = paths_between(self._me, target, USUAL_BYTES, self._legs())
        known = [forwarder for path in paths if (forwarder := forwarder_of(path.name)) in beside and forwarder is not None]
        return [*known, *(peer for peer in beside if peer not in known)]

    def show(self, path: str) -> Shown:
        """A path of this peer to another one."""
        forwarder = forwarder_of(path)
        if forwarder is not None:
            name = self._name_of(forwarder)
            return Shown(f"via {name}", f"no direct connection comes about; {name} forwards")
        if path == RELAY:
            return Shown(RELAY, "no direct connection comes about, and no peer forwards")
        return Shown(DIRECT, "a direct connection came about")
