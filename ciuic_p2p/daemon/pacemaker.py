"""Sets how fast this peer sends to each other one: reads the lanes twice a second, tells the others, applies core/pacing.py.

Lives in the event loop's thread, but for `round_opened`, `round_closed` and `state_asked`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from ciuic_p2p.core.cables import Cables, CrossingFlow, Crossings, crossings_of, is_region, sum_of_shares
from ciuic_p2p.core.messages import Line, Plan, Way, encode
from ciuic_p2p.core.pacing import (
    FIRST_GUESS_MBPS,
    LEAST_MBPS,
    LEAST_WINDOW_BYTES,
    Capacity,
    DelayMeter,
    Demands,
    FlowWindow,
    common_queue_ms,
    demand_of,
    is_near,
    lanes_for,
    least_window_bytes,
    most,
    pair_rates,
    total_sent_mbps,
)
from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.sessions import Sessions
from ciuic_p2p.net.tcpinfo import TcpInfo
from ciuic_p2p.terms import UNKNOWN_REGION, PeerId

log = structlog.get_logger(__name__)

WINDOW_S = 0.5
BUSY_SHARE = 1.25
"""A window that lasted so much longer was not ended in time: what waited, waited for this process."""
FETCH_SHARE = 0.25
"""Of the line up, for newcomers that take the state while a round is under way."""
FORWARD_SHARE = 0.5
"""Of its own measured line, for what it carries between others while it takes part in a round itself; else all of it."""
IDLE_SHARE = 0.5
"""Of the slower line, for what no plan foresaw, such as probes."""
HELD_SHARE = 0.5
"""Of its pace: a flow that moves less of it while frames wait is held back by its path."""
HELD_WINDOWS = 4
"""In a row: slow start and a busy processor last shorter."""


@dataclass(slots=True)
class _Flow:
    """What is known of the lanes to one peer."""

    infos: dict[int, TcpInfo] = field(default_factory=dict)
    down_mbps: float = FIRST_GUESS_MBPS
    """Of the peer's line, as it says."""
    line_mbps: float = 0.0
    """0: not known."""
    spare_mbps: float = 0.0
    """Of its line down, for this peer to take."""
    sent_mbps: float = 0.0
    """In the last window."""
    delay: DelayMeter = field(default_factory=DelayMeter)
    """Of what it sends here."""
    sent_queued_ms: float = 0.0
    """Of what is sent to it, as it says."""
    up_queued_ms: float = 0.0
    down_queued_ms: float = 0.0
    loses: bool = False
    """Much of what it sends here is lost."""
    ways: tuple[Way, ...] = ()
    """What it found between its region and others."""
    pace_mbps: float | None = None
    held_windows: int = 0
    """In a row, in which frames waited and yet much less was moved than the pace allows."""


class Pacemaker:
    """For all runs of this peer."""

    def __init__(
        self,
        sessions: Sessions,
        me: PeerId,
        rtt_ms: Callable[[PeerId], float],
        region_of: Callable[[PeerId], str],
        up: Capacity,
        down: Capacity,
    ) -> None:
        """rtt_ms: of a peer as probed, 0 while unknown. region_of: any peer, this one too."""
        self._sessions = sessions
        self._me = me
        self._region_of = region_of
        self._cables = Cables()
        self._rtt_ms = rtt_ms
        self._up, self._down = up, down
        self._loop = asyncio.get_running_loop()
        self._flows: dict[PeerId, _Flow] = {}
        self._demands = Demands()
        self._crossings: Crossings = {}
        """Of the newest round, of whichever run: shares that were divided by several plans in turn would not add up."""
        self._read_at_s = self._loop.time()
        self._up_queued_ms = self._down_queued_ms = 0.0
        self._spare_mbps = 0.0
        self._carried_bytes = 0
        self._forwarded_mbps = 0.0
        """Carried between others in the last window: up as much as down."""
        self._fetches: dict[PeerId, int] = {}
        """Peers that take a state here → how many donors they asked."""

    # -- what is to be sent: from any thread ---------------------------------------------------------------------------

    def round_opened(self, plan: Plan, me: PeerId) -> None:
        self._crossings = crossings_of(plan, self._region_of(me), self._region_of)
        self._demands.open(plan.run, plan.epoch, demand_of(plan, me))
        self._apply_soon()

    def round_closed(self, run: str, epoch: int) -> None:
        if self._demands.close(run, epoch):
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
        flow.down_mbps, flow.line_mbps = max(line.down_mbps, LEAST_MBPS), line.line_mbps
        flow.loses, flow.spare_mbps, flow.ways = line.loses, line.spare_mbps, line.ways
        flow.sent_queued_ms, flow.up_queued_ms, flow.down_queued_ms = line.queued_ms, line.up_queued_ms, line.down_queued_ms
        flow.delay.add(line.sent_at_ms, self._loop.time())
        self._apply()

    def lines_mbps(self, me: PeerId) -> dict[PeerId, float]:
        """What each peer's line carries in its slower direction, where that was measured."""
        found = {peer: flow.line_mbps for peer, flow in self._flows.items()} | {me: self._line_mbps()}
        return {peer: mbps for peer, mbps in found.items() if mbps > 0}

    def cables_mbps(self) -> dict[tuple[str, str], float]:
        """(from region, to region) → what lies between carries, where that is less than the lines do."""
        ways = {peer: flow.ways for peer, flow in self._flows.items()} | {self._me: self._cables.ways()}
        return sum_of_shares(ways, self._region_of)

    def introduce(self, peer: PeerId) -> None:
        """To a peer that has just come."""
        self._tell(peer, loses=False)

    def forget(self, peer: PeerId) -> None:
        self._flows.pop(peer, None)
        self._fetches.pop(peer, None)

    def _line_mbps(self) -> float:
        return min((line.mbps for line in (self._up, self._down) if line.is_measured), default=0.0)

    # -- twice a second -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        now = self._loop.time()
        seconds, self._read_at_s = now - self._read_at_s, now
        windows = {peer: self._read(peer, seconds) for peer in self._sessions.connected()}
        for peer, window in windows.items():
            self._note_sent(self._flows[peer], window)
        carried_bytes = self._sessions.forwarding().carried_bytes
        self._forwarded_mbps = (carried_bytes - self._carried_bytes) * 8e-6 / seconds
        self._carried_bytes = carried_bytes
        far = {peer: window for peer, window in windows.items() if not self._is_near(peer)}
        if seconds > BUSY_SHARE * WINDOW_S:
            for flow in self._flows.values():
                flow.delay.queued_ms = flow.sent_queued_ms = 0.0
        least_up_bytes, least_down_bytes = (least_window_bytes(line.mbps, WINDOW_S) for line in (self._up, self._down))
        sending = {peer: window for peer, window in far.items() if window.offered_bytes >= least_up_bytes}
        self._judge_up(sending)
        self._judge_down({peer: window for peer, window in far.items() if window.received_bytes >= least_down_bytes})
        self._judge_cables(sending)
        self._log(far)
        for peer, window in windows.items():
            self._tell(peer, loses=window.loses)
        for peer in [peer for peer in self._fetches if not self._sessions.waits_for(peer)]:
            del self._fetches[peer]
        self._demands.forget_rests(self._sessions.waits_for)
        self._apply()

    def _note_sent(self, flow: _Flow, window: FlowWindow) -> None:
        flow.sent_mbps = window.sent_mbps
        if window.is_busy:
            is_held = flow.pace_mbps is not None and flow.sent_mbps < HELD_SHARE * flow.pace_mbps
            flow.held_windows = flow.held_windows + 1 if is_held else 0

    def path_limit_mbps(self, peer: PeerId) -> float | None:
        """What the path to a peer could carry, where it is the path that limits what is sent there; None where it is not."""
        share = next((way.mbps for way in self._cables.ways() if way.region == self._crosses_to(peer)), None)
        if share is not None:
            return share
        flow = self._flows.get(peer)
        return flow.sent_mbps if flow is not None and flow.held_windows >= HELD_WINDOWS else None

    def _read(self, peer: PeerId, seconds: float) -> FlowWindow:
        flow = self._flows.setdefault(peer, _Flow())
        before, flow.infos = flow.infos, self._sessions.read_lanes(peer)
        pairs = [(before.get(number), now) for number, now in flow.infos.items()]
        return FlowWindow(
            seconds=seconds,
            sent_bytes=sum(now.acked_bytes - (old.acked_bytes if old else 0) for old, now in pairs),
            retransmitted_bytes=sum(now.retransmitted_bytes - (old.retransmitted_bytes if old else 0) for old, now in pairs),
            busy_s=max((now.busy_s - (old.busy_s if old else 0.0) for old, now in pairs), default=0.0),
            received_bytes=sum(now.received_bytes - (old.received_bytes if old else 0) for old, now in pairs),
        )

    def _judge_up(self, sending: Mapping[PeerId, FlowWindow]) -> None:
        behind_cables = {way.region for way in self._cables.ways()}
        flows = [self._flows[peer] for peer in sending if self._crosses_to(peer) not in behind_cables]  # others wait there
        self._up_queued_ms = common_queue_ms([flow.sent_queued_ms for flow in flows])
        alone_ms = flows[0].sent_queued_ms - flows[0].down_queued_ms if len(flows) == 1 else 0.0
        if sending:
            moved_mbps = total_sent_mbps(sending.values()) + self._forwarded_mbps
            loses = bool(flows) and most([window.loses for window in sending.values()])
            self._up.add(moved_mbps, max(self._up_queued_ms, alone_ms), loses=loses)

    def _judge_down(self, receiving: Mapping[PeerId, FlowWindow]) -> None:
        here = self._region_of(self._me)
        all_flows = [self._flows[peer] for peer in receiving]
        flows = [flow for flow in all_flows if all(way.region != here for way in flow.ways)]
        self._down_queued_ms = common_queue_ms([max(flow.delay.queued_ms - flow.up_queued_ms, 0.0) for flow in flows])
        moved_mbps = sum(window.received_mbps for window in receiving.values()) + self._forwarded_mbps
        if receiving:
            loses = len(flows) > 1 and most([flow.loses for flow in flows])
            self._down.add(moved_mbps, self._down_queued_ms, loses=loses)
        self._spare_mbps = max(0.0, self._down.mbps - moved_mbps) / max(len(receiving), 1)

    def _judge_cables(self, sending: Mapping[PeerId, FlowWindow]) -> None:
        here, crossing = self._region_of(self._me), dict[str, list[CrossingFlow]]()
        for peer, window in sending.items():
            flow, region = self._flows[peer], self._crosses_to(peer)
            if is_region(here) and is_region(region) and region != here:
                queued_ms = flow.sent_queued_ms - self._up_queued_ms - flow.down_queued_ms
                crossing.setdefault(region, []).append(CrossingFlow(window, max(queued_ms, 0.0)))
        used_mbps = total_sent_mbps(sending.values()) if sending else 0.0
        for region, flows in crossing.items():
            self._cables.judge(region, flows, self._up.mbps, used_mbps)
        for region in crossing:  # who sends nothing there has found nothing new to divide
            self._cables.settle(region, self._crossings.get(region, {}), self._told_of(region), self._me)

    def _told_of(self, region: str) -> dict[PeerId, float]:
        return {peer: way.mbps for peer, flow in self._flows.items() for way in flow.ways if way.region == region}

    def _tell(self, peer: PeerId, *, loses: bool) -> None:
        line = Line(
            line_mbps=self._line_mbps(),
            down_mbps=self._down.mbps,
            spare_mbps=self._spare_mbps,
            sent_at_ms=self._loop.time() * 1000,
            queued_ms=self._flows.setdefault(peer, _Flow()).delay.queued_ms,
            up_queued_ms=self._up_queued_ms,
            down_queued_ms=self._down_queued_ms,
            loses=loses,
            ways=self._cables.ways(),
        )
        with contextlib.suppress(PeerUnreachable):
            self._sessions.send_message(peer, encode(line))

    def _log(self, windows: Mapping[PeerId, FlowWindow]) -> None:
        flows = {
            peer: (round(window.sent_mbps, 1), round(window.received_mbps, 1), window.retransmitted_bytes)
            for peer, window in windows.items()
            if max(window.sent_bytes, window.received_bytes) >= LEAST_WINDOW_BYTES
        }
        if flows:
            log.debug(
                "pace.window",
                up_mbps=round(self._up.mbps, 1),
                down_mbps=round(self._down.mbps, 1),
                up_queued_ms=round(self._up_queued_ms),
                down_queued_ms=round(self._down_queued_ms),
                ways={way.region: round(way.mbps, 1) for way in self._cables.ways()},
                flows=flows,
            )

    def _is_near(self, peer: PeerId) -> bool:
        flow = self._flows.get(peer)
        on_lanes = flow.infos.values() if flow is not None and self._sessions.lanes_go_directly(peer) else ()
        return is_near((self._rtt_ms(peer), *(info.least_rtt_ms for info in on_lanes)))

    # -- rates ------------------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        connected = self._sessions.connected()
        downs = {peer: self._flows.setdefault(peer, _Flow()).down_mbps for peer in connected}
        fetching = {peer: donors for peer, donors in self._fetches.items() if peer in connected}
        rooms = {peer: self._flows[peer].sent_mbps + self._flows[peer].spare_mbps for peer in connected}
        waiting = {peer for peer in connected if self._sessions.waits_for(peer)} or connected
        own_mbps = self._up.mbps - min(self._forwarded_mbps, FORWARD_SHARE * self._up.mbps)
        for_rounds = own_mbps * (1 - FETCH_SHARE) if fetching else own_mbps
        demands = self._demands.now({peer for peer in waiting if not self._is_near(peer)})
        rates = pair_rates(demands, for_rounds, downs, rooms, lambda sent: self._cables.limits(sent, self._crosses_to))
        self._sessions.pace_forwarding(self._most_forwarded_mbps(shares=bool(rates)))
        for peer, donors in fetching.items():
            for_fetches = self._up.mbps * (FETCH_SHARE if rates else 1.0)
            rates[peer] = rates.get(peer, 0.0) + min(for_fetches / len(fetching), downs[peer] / donors)
        if fetching:
            limits = self._cables.limits(rates, self._crosses_to)
            rates = {peer: min(mbps, limits.get(peer, mbps)) for peer, mbps in rates.items()}
        for peer in connected:
            if self._is_near(peer):
                self._flows[peer].pace_mbps = None
                self._sessions.pace(peer, None)
                continue
            mbps = rates.get(peer, IDLE_SHARE * min(self._up.mbps, downs[peer]))
            self._flows[peer].pace_mbps = mbps
            self._sessions.pace(peer, mbps)
            self._sessions.resize(peer, lanes_for(mbps, self._rtt_ms(peer)))

    def _most_forwarded_mbps(self, *, shares: bool) -> float | None:
        """shares: this peer has frames of its own to send. None while nobody knows what the line carries."""
        line_mbps = self._line_mbps()
        return (FORWARD_SHARE if shares else 1.0) * line_mbps if line_mbps > 0 else None

    def _crosses_to(self, peer: PeerId) -> str:
        """The region to which frames for a peer go; none when they go through a third one: other cables are crossed then."""
        return self._region_of(peer) if self._sessions.lanes_go_directly(peer) else UNKNOWN_REGION
