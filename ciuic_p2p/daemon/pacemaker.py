"""Sets how fast this peer sends to each other one: reads the lanes twice a second, tells the others, applies core/pacing.py.

Lives in the event loop's thread, but for `round_opened`, `round_closed` and `state_asked`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from ciuic_p2p.core.messages import Line, Plan, encode
from ciuic_p2p.core.pacing import (
    FIRST_GUESS_MBPS,
    LEAST_MBPS,
    Capacity,
    Demand,
    FlowWindow,
    blame_own_line,
    demand_of,
    lanes_for,
    pair_rates,
)
from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.sessions import Sessions
from ciuic_p2p.net.tcpinfo import TcpInfo
from ciuic_p2p.terms import PeerId

WINDOW_S = 0.5
LEAST_WINDOW_BYTES = 64 << 10
"""A flow that moved less says nothing of its path."""
NEAR_MS = 2.0
"""Peers so near share a switch, not an access line: nothing is paced between them."""
FETCH_SHARE = 0.25
"""Of the line up, for newcomers that take the state while a round is under way."""
IDLE_SHARE = 0.5
"""Of the slower line, for what no plan foresaw: probes, a round's rest."""


@dataclass(slots=True)
class _Flow:
    """What is known of the lanes to one peer."""

    infos: dict[int, TcpInfo] = field(default_factory=dict)
    received_bytes: int = 0
    path: Capacity | None = None
    """Only where the path itself, not a line, was congested."""
    down_mbps: float = FIRST_GUESS_MBPS
    """Of the peer's line, as it says."""
    up_mbps: float = 0.0
    is_measured: bool = False
    blames_me: bool = False
    """In its last window what it sent here was congested, and its own line was not to blame."""


class Pacemaker:
    """For all runs of this peer."""

    def __init__(self, sessions: Sessions, rtt_ms: Callable[[PeerId], float], up: Capacity, down: Capacity) -> None:
        """rtt_ms: of a peer as probed, 0 while unknown."""
        self._sessions = sessions
        self._rtt_ms = rtt_ms
        self._up, self._down = up, down
        self._loop = asyncio.get_running_loop()
        self._flows: dict[PeerId, _Flow] = {}
        self._demands: dict[tuple[str, int], Demand] = {}
        self._fetches: dict[PeerId, int] = {}
        """Peers that take a state here → how many donors they asked."""

    # -- what is to be sent: from any thread ---------------------------------------------------------------------------

    def round_opened(self, plan: Plan, me: PeerId) -> None:
        self._demands[plan.run, plan.epoch] = demand_of(plan, me)
        self._apply_soon()

    def round_closed(self, run: str, epoch: int) -> None:
        if self._demands.pop((run, epoch), None) is not None:
            self._apply_soon()

    def state_asked(self, peer: PeerId, donors: int) -> None:
        self._fetches[peer] = max(donors, 1)
        self._apply_soon()

    def _apply_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the daemon ends
            self._loop.call_soon_threadsafe(self._apply)

    # -- what others say, and what they may know ------------------------------------------------------------------------

    def line_told(self, peer: PeerId, line: Line) -> None:
        flow = self._flows.setdefault(peer, _Flow())
        flow.down_mbps, flow.up_mbps = max(line.down_mbps, LEAST_MBPS), line.up_mbps
        flow.is_measured, flow.blames_me = line.is_measured, line.congested
        self._apply()

    def lines_mbps(self, me: PeerId) -> dict[PeerId, float]:
        """What each peer's line carries in its slower direction, where that was measured."""
        found = {peer: min(f.up_mbps, f.down_mbps) for peer, f in self._flows.items() if f.is_measured and f.up_mbps > 0}
        if self._is_measured:
            found[me] = min(self._up.mbps, self._down.mbps)
        return found

    def introduce(self, peer: PeerId) -> None:
        """To a peer that has just come."""
        self._tell(peer, congested=False)

    def forget(self, peer: PeerId) -> None:
        self._flows.pop(peer, None)
        self._fetches.pop(peer, None)

    @property
    def _is_measured(self) -> bool:
        return self._up.is_measured and self._down.is_measured

    # -- twice a second -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        windows = {peer: self._read(peer) for peer in self._sessions.connected()}
        far = {peer: window for peer, window in windows.items() if not self._is_near(peer)}
        sending = {peer: window for peer, window in far.items() if window.sent_bytes >= LEAST_WINDOW_BYTES}
        receiving = {peer: window for peer, window in far.items() if window.received_bytes >= LEAST_WINDOW_BYTES}
        mine = blame_own_line(sending)
        if sending:
            self._up.add(sum(window.sent_mbps for window in sending.values()), is_congested=mine)
        for peer, window in sending.items():
            self._judge_path(self._flows[peer], window, is_congested=window.is_congested and not mine)
        if receiving:
            blaming = sum(self._flows[peer].blames_me for peer in receiving)
            received_mbps = sum(window.received_bytes for window in receiving.values()) * 8e-6 / WINDOW_S
            self._down.add(received_mbps, is_congested=2 * blaming > len(receiving))
        for peer in {*sending, *receiving}:
            self._tell(peer, congested=peer in sending and sending[peer].is_congested and not mine)
        for peer in [peer for peer in self._fetches if peer not in sending and not self._sessions.waits_for(peer)]:
            del self._fetches[peer]
        self._apply()

    def _read(self, peer: PeerId) -> FlowWindow:
        flow = self._flows.setdefault(peer, _Flow())
        before, flow.infos = flow.infos, self._sessions.read_lanes(peer)
        received_before, flow.received_bytes = flow.received_bytes, self._sessions.traffic_with(peer).bytes_received
        pairs = [(before.get(number), now) for number, now in flow.infos.items()]
        active = [now for old, now in pairs if old is None or now.acked_bytes > old.acked_bytes]
        return FlowWindow(
            seconds=WINDOW_S,
            sent_bytes=sum(now.acked_bytes - (old.acked_bytes if old else 0) for old, now in pairs),
            retransmitted_bytes=sum(now.retransmitted_bytes - (old.retransmitted_bytes if old else 0) for old, now in pairs),
            rtt_ms=max((now.rtt_ms for now in active), default=0.0),
            least_rtt_ms=min((now.least_rtt_ms for now in flow.infos.values()), default=0.0),
            received_bytes=flow.received_bytes - received_before,
        )

    def _judge_path(self, flow: _Flow, window: FlowWindow, *, is_congested: bool) -> None:
        if flow.path is None and is_congested:
            flow.path = Capacity(window.sent_mbps)
        if flow.path is not None:
            flow.path.add(window.sent_mbps, is_congested=is_congested)

    def _tell(self, peer: PeerId, *, congested: bool) -> None:
        line = Line(up_mbps=self._up.mbps, down_mbps=self._down.mbps, is_measured=self._is_measured, congested=congested)
        with contextlib.suppress(PeerUnreachable):
            self._sessions.send_message(peer, encode(line))

    def _is_near(self, peer: PeerId) -> bool:
        return 0.0 < self._rtt_ms(peer) < NEAR_MS

    # -- rates ------------------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        connected = self._sessions.connected()
        downs = {peer: self._flows.setdefault(peer, _Flow()).down_mbps for peer in connected}
        paths = {peer: flow.path.mbps for peer, flow in self._flows.items() if flow.path is not None}
        fetching = {peer: donors for peer, donors in self._fetches.items() if peer in connected}
        demands = [_among(demand, connected) for demand in list(self._demands.values())]
        for_rounds = self._up.mbps * (1 - FETCH_SHARE) if fetching else self._up.mbps
        rates = pair_rates(demands, for_rounds, downs, paths)
        for peer, donors in fetching.items():
            for_fetches = self._up.mbps * (FETCH_SHARE if rates else 1.0)
            rates[peer] = rates.get(peer, 0.0) + min(for_fetches / len(fetching), downs[peer] / donors)
        for peer in connected:
            if self._is_near(peer):
                self._sessions.pace(peer, None)
                continue
            mbps = rates.get(peer, IDLE_SHARE * min(self._up.mbps, downs[peer]))
            self._sessions.pace(peer, mbps)
            self._sessions.resize(peer, lanes_for(mbps, self._rtt_ms(peer)))


def _among(demand: Demand, connected: frozenset[PeerId]) -> Demand:
    return Demand({peer: values for peer, values in demand.sent.items() if peer in connected}, demand.received_by)
