"""Chooses the path of bulk from what was measured: which third peer to ask for a way, and when lanes of a direct session are
better off through one. Says of every path why it is the one.

Lives in the event loop's thread. Refuses to know how a path is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import structlog

from ciuic_p2p.core.paths import (
    DIRECT,
    FORWARDING_HANDICAP,
    RELAY,
    Leg,
    Legs,
    Path,
    both_ways,
    forwarder_of,
    paths_between,
    predict_s,
    select_path,
)
from ciuic_p2p.daemon.neighbours import Neighbours
from ciuic_p2p.net.sessions import Sessions
from ciuic_p2p.terms import PeerId
from ciuic_p2p.wording import in_bytes

_log = structlog.get_logger(__name__)

USUAL_BYTES = 1 << 20
"""Third peers are compared by what they take for so much: a part of a round."""
LEAST_TIMED_BYTES = 2 << 20
"""A path over which less came says too little: a probe is a quarter of that, and ends before TCP has found its rate."""
SETTLING_S = 6.0
"""So long what others report may still be of the path before."""
DETOUR_S = 300.0
"""Then the direct path is tried again; twice as long each time that it was found no better, at most an hour."""
LONGEST_DETOUR_S = 3600.0
REST_S = 60.0
"""After a detour that failed or was slower than the direct path, none is tried for so long; longer each time, as above."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A path as people see it."""

    path: str
    """"direct", "relay" or "via NAME"."""
    why: str


@dataclass(slots=True)
class _Detour:
    """What is remembered of one peer with a direct session."""

    forwarder: PeerId | None = None
    direct: Leg | None = None
    """As it was when the lanes left it."""
    began_s: float = 0.0
    until_s: float = 0.0
    """On a detour: when the direct path is looked at again; else when the next one may begin."""
    lasts_s: float = DETOUR_S
    rests_s: float = REST_S
    why: str = ""

    def begin(self, forwarder: PeerId, direct: Leg, now: float, why: str) -> None:
        self.forwarder, self.direct, self.why = forwarder, direct, why
        self.began_s = now
        self.until_s, self.lasts_s = now + self.lasts_s, min(2 * self.lasts_s, LONGEST_DETOUR_S)

    def end(self, now: float, *, failed: bool) -> None:
        self.forwarder = self.direct = None
        self.until_s = now + self.rests_s if failed else now
        self.rests_s = min(2 * self.rests_s, LONGEST_DETOUR_S) if failed else REST_S


class Pathfinder:
    """For all sessions of this peer."""

    def __init__(
        self,
        me: PeerId,
        sessions: Sessions,
        neighbours: Neighbours,
        name_of: Callable[[PeerId], str],
        limit_of: Callable[[PeerId], float | None],
    ) -> None:
        """limit_of: what the direct path to a peer could carry, None where it is not what limits the transfers there."""
        self._me = me
        self._limit_of = limit_of
        self._sessions = sessions
        self._neighbours = neighbours
        self._name_of = name_of
        self._detours: dict[PeerId, _Detour] = {}

    def order(self, target: PeerId, beside: Collection[PeerId]) -> list[PeerId]:
        """Whom of `beside`, the peers with a direct session, to ask for a way to `target`: the quickest first, then those of
        which nothing says that they have a session with it."""
        paths = paths_between(self._me, target, USUAL_BYTES, self._neighbours.legs())
        known = [forwarder for path in paths if (forwarder := forwarder_of(path.name)) in beside and forwarder is not None]
        return [*known, *(peer for peer in beside if peer not in known)]

    def tick(self, now: float) -> None:
        """Once in a while: lanes that are better off elsewhere are steered there."""
        legs = both_ways(self._neighbours.legs())
        for peer in self._sessions.connected():
            if self._sessions.may_steer(peer):
                self._consider(peer, self._detours.setdefault(peer, _Detour()), legs, now)
        for peer in self._detours.keys() - self._sessions.connected():
            del self._detours[peer]

    def show(self, path: str, peer: PeerId | None = None) -> Shown:
        """A path of this peer to another one."""
        forwarder = forwarder_of(path)
        detour = self._detours.get(peer) if peer is not None else None
        if forwarder is not None:
            name = self._name_of(forwarder)
            is_chosen = detour is not None and detour.forwarder == forwarder
            return Shown(f"via {name}", detour.why if is_chosen and detour is not None else self._why_forwarded(name, peer))
        if path == RELAY:
            return Shown(RELAY, "no direct connection comes about, and no peer forwards")
        return Shown(DIRECT, "a direct connection came about")

    def _why_forwarded(self, name: str, peer: PeerId | None) -> str:
        if peer is not None and self._sessions.is_direct(peer):
            return f"the other peer found it quicker; messages go directly, {name} forwards frames"
        return f"no direct connection comes about; {name} forwards"

    def _consider(self, peer: PeerId, detour: _Detour, legs: Legs, now: float) -> None:
        forwarder = forwarder_of(self._neighbours.path(self._me, peer))
        if forwarder is None:
            if detour.forwarder is not None:  # the lanes came back by themselves
                detour.end(now, failed=True)
            self._look_for(peer, detour, legs, now)
        elif now - detour.began_s > SETTLING_S and self._is_worse(peer, detour):
            self._return(peer, detour, now, failed=True)
        elif now >= detour.until_s:
            self._return(peer, detour, now, failed=False)

    def _look_for(self, peer: PeerId, detour: _Detour, legs: Legs, now: float) -> None:
        transfer = self._neighbours.transfer(peer)
        direct, limit_mbps = legs.get((self._me, peer)), self._limit_of(peer)
        if direct is None or now < detour.until_s or transfer.timed_bytes < LEAST_TIMED_BYTES:
            return
        if limit_mbps is None or direct.goodput_mbps == 0:
            return  # what comes over it says what a round has to send, not what it carries; or nobody has timed it
        direct = replace(direct, goodput_mbps=max(direct.goodput_mbps, limit_mbps))
        legs = {**legs, (self._me, peer): direct}
        found = select_path(self._me, peer, transfer.burst_bytes, legs, DIRECT)
        forwarder = forwarder_of(found.name) if found is not None else None
        if found is not None and forwarder is not None:
            detour.begin(forwarder, direct, now, self._reason(found, direct, transfer.burst_bytes))
            _log.info("path.detour", peer=peer, forwarder=forwarder, why=detour.why)
            self._sessions.steer(peer, forwarder)

    def _is_worse(self, peer: PeerId, detour: _Detour) -> bool:
        """What really came over the detour was less than over the direct path before."""
        if detour.direct is None or self._neighbours.transfer(peer).timed_bytes < LEAST_TIMED_BYTES:
            return False
        links = self._neighbours.links()
        found = [links[pair].goodput_mbps for pair in ((self._me, peer), (peer, self._me)) if pair in links]
        measured = [mbps for mbps in found if mbps > 0]
        return bool(measured) and min(measured) < detour.direct.goodput_mbps

    def _return(self, peer: PeerId, detour: _Detour, now: float, *, failed: bool) -> None:
        _log.info("path.direct_again", peer=peer, failed=failed)
        detour.end(now, failed=failed)
        self._sessions.steer(peer, None)

    def _reason(self, found: Path, direct: Leg, size_bytes: int) -> str:
        direct_s = predict_s(direct.rtt_ms, direct.goodput_mbps, size_bytes)
        return (
            f"{in_bytes(size_bytes)} take {direct_s:.2f} s directly ({direct.goodput_mbps:.1f} Mbit/s), "
            f"{found.predicted_s:.2f} s this way ({found.goodput_mbps:.1f} Mbit/s, counted as 1/{FORWARDING_HANDICAP:g}); "
            "messages go directly"
        )
