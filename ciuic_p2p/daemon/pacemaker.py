"""Sets how fast this peer sends to each other one: reads the lanes twice a second, tells the others, applies core/pacing.py.

Lives in the event loop's thread, but for `round_opened`, `round_closed` and `state_asked`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from ciuic_p2p.core.cables import CrossingFlow
from ciuic_p2p.core.crossing import Crossing
from ciuic_p2p.core.messages import Line, Plan, encode
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
HASTE_S = 0.1
"""Between two words out of turn, that this peer has come to have something to send to a region or has sent it all."""


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
    grown_ms: float = math.inf
    """So much longer than at best are round trips on its lanes: no queue on the way is longer. Infinite: nothing came back."""
    loses_mine: bool = False
    """Much of what is sent to it is lost."""
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
        self._region_of = region_of
        self._crossing = Crossing(me, region_of)
        self._rtt_ms = rtt_ms
        self._up, self._down = up, down
        self._loop = asyncio.get_running_loop()
        self._flows: dict[PeerId, _Flow] = {}
        self._demands = Demands()
        self._told_at_s = -math.inf
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
        self._crossing.round_opened(plan)
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
        flow.loses, flow.spare_mbps = line.loses, line.spare_mbps
        flow.sent_queued_ms, flow.up_queued_ms, flow.down_queued_ms = line.queued_ms, line.up_queued_ms, line.down_queued_ms
        flow.delay.add(line.sent_at_ms, self._loop.time())
        self._crossing.told(peer, line.ways)
        self._apply()

    def lines_mbps(self, me: PeerId) -> dict[PeerId, float]:
        """What each peer's line carries in its slower direction, where that was measured."""
        found = {peer: flow.line_mbps for peer, flow in self._flows.items()} | {me: self._line_mbps()}
        return {peer: mbps for peer, mbps in found.items() if mbps > 0}

    def cables_mbps(self) -> dict[tuple[str, str], float]:
        """(from region, to region) → what lies between carries, where that is less than the lines do."""
        return self._crossing.cables_mbps()

    def introduce(self, peer: PeerId) -> None:
        """To a peer that has just come."""
        self._tell(peer)

    def forget(self, peer: PeerId) -> None:
        self._flows.pop(peer, None)
        self._crossing.forget(peer)
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
        for peer in windows:
            self._tell(peer)
        for peer in [peer for peer in self._fetches if not self._sessions.waits_for(peer)]:
            del self._fetches[peer]
        self._demands.forget_rests(self._sessions.waits_for)
        self._apply()

    def _note_sent(self, flow: _Flow, window: FlowWindow) -> None:
        flow.sent_mbps, flow.loses_mine = window.sent_mbps, window.loses
        if window.is_busy:
            is_held = flow.pace_mbps is not None and flow.sent_mbps < HELD_SHARE * flow.pace_mbps
            flow.held_windows = flow.held_windows + 1 if is_held else 0

    def path_limit_mbps(self, peer: PeerId) -> float | None:
        """What the path to a peer could carry, where it is the path that limits what is sent there; None where it is not."""
        region = self._crosses_to(peer)
        if (cable_mbps := self._crossing.capacities().get(region)) is not None:
            return cable_mbps * self._crossing.share_of(region)
        flow = self._flows.get(peer)
        return flow.sent_mbps if flow is not None and flow.held_windows >= HELD_WINDOWS else None

    def _read(self, peer: PeerId, seconds: float) -> FlowWindow:
        flow = self._flows.setdefault(peer, _Flow())
        before, flow.infos = flow.infos, self._sessions.read_lanes(peer)
        pairs = [(before.get(number), now) for number, now in flow.infos.items()]
        flow.grown_ms = self._grown_ms(peer, pairs)
        return FlowWindow(
            seconds=seconds,
            sent_bytes=sum(now.delivered_bytes(old) for old, now in pairs),
            retransmitted_bytes=sum(now.retransmitted_bytes - (old.retransmitted_bytes if old else 0) for old, now in pairs),
            busy_s=max((now.busy_s - (old.busy_s if old else 0.0) for old, now in pairs), default=0.0),
            received_bytes=sum(now.received_bytes - (old.received_bytes if old else 0) for old, now in pairs),
        )

    def _grown_ms(self, peer: PeerId, pairs: list[tuple[TcpInfo | None, TcpInfo]]) -> float:
        least_ms = min((ms for ms in (self._rtt_ms(peer), *(now.least_rtt_ms for _, now in pairs)) if ms > 0), default=0.0)
        return max((now.rtt_ms - least_ms for old, now in pairs if now.delivered_bytes(old)), default=math.inf)

    def _queued_ms(self, flow: _Flow) -> float:
        """Of what is sent to it. A message may have waited in busy processes, which the kernel's round trips have not."""
        return max(min(flow.sent_queued_ms, flow.grown_ms), 0.0)

    def _judge_up(self, sending: Mapping[PeerId, FlowWindow]) -> None:
        behind_cables = self._crossing.capacities().keys()
        flows = [self._flows[peer] for peer in sending if self._crosses_to(peer) not in behind_cables]  # others wait there
        self._up_queued_ms = common_queue_ms([self._queued_ms(flow) for flow in flows])
        alone_ms = self._queued_ms(flows[0]) - flows[0].down_queued_ms if len(flows) == 1 else 0.0
        if sending:
            moved_mbps = total_sent_mbps(sending.values()) + self._forwarded_mbps
            loses = bool(flows) and most([window.loses for window in sending.values()])
            self._up.add(moved_mbps, max(self._up_queued_ms, alone_ms), loses=loses)

    def _judge_down(self, receiving: Mapping[PeerId, FlowWindow]) -> None:
        flows = [self._flows[peer] for peer in receiving if not self._crossing.comes_over_a_cable(peer)]
        self._down_queued_ms = common_queue_ms([max(flow.delay.queued_ms - flow.up_queued_ms, 0.0) for flow in flows])
        moved_mbps = sum(window.received_mbps for window in receiving.values()) + self._forwarded_mbps
        if receiving:
            loses = len(flows) > 1 and most([flow.loses for flow in flows])
            self._down.add(moved_mbps, self._down_queued_ms, loses=loses)
        self._spare_mbps = max(0.0, self._down.mbps - moved_mbps) / max(len(receiving), 1)

    def _judge_cables(self, sending: Mapping[PeerId, FlowWindow]) -> None:
        crossing: dict[str, list[CrossingFlow]] = {}
        for peer, window in sending.items():
            flow = self._flows[peer]
            queued_ms = self._queued_ms(flow) - self._up_queued_ms - flow.down_queued_ms
            crossing.setdefault(self._crosses_to(peer), []).append(CrossingFlow(window, max(queued_ms, 0.0)))
        self._crossing.judge(crossing, self._up.mbps, total_sent_mbps(sending.values()) if sending else 0.0)

    def _tell_if_waiting_changed(self, waiting: Iterable[PeerId]) -> None:
        """To those who share cables with this peer."""
        now = self._loop.time()
        if now - self._told_at_s >= HASTE_S and self._crossing.now_waits(map(self._crosses_to, waiting)):
            self._told_at_s = now
            for peer in self._crossing.neighbours():
                self._tell(peer)

    def _tell(self, peer: PeerId) -> None:
        flow = self._flows.setdefault(peer, _Flow())
        line = Line(
            line_mbps=self._line_mbps(),
            down_mbps=self._down.mbps,
            spare_mbps=self._spare_mbps,
            sent_at_ms=self._loop.time() * 1000,
            queued_ms=flow.delay.queued_ms,
            up_queued_ms=self._up_queued_ms,
            down_queued_ms=self._down_queued_ms,
            loses=flow.loses_mine,
            ways=self._crossing.ways(),
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
                cables={region: round(mbps, 1) for region, mbps in self._crossing.capacities().items()},
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
        busy = {peer for peer in connected if self._sessions.waits_for(peer)}
        self._tell_if_waiting_changed(busy)
        waiting = busy or connected
        own_mbps = self._up.mbps - min(self._forwarded_mbps, FORWARD_SHARE * self._up.mbps)
        for_rounds = own_mbps * (1 - FETCH_SHARE) if fetching else own_mbps
        demands = self._demands.now({peer for peer in waiting if not self._is_near(peer)})
        rates = pair_rates(demands, for_rounds, downs, rooms, self._cable_limits)
        self._sessions.pace_forwarding(self._most_forwarded_mbps(shares=bool(rates)))
        for peer, donors in fetching.items():
            for_fetches = self._up.mbps * (FETCH_SHARE if rates else 1.0)
            rates[peer] = rates.get(peer, 0.0) + min(for_fetches / len(fetching), max(downs[peer] / donors, rooms[peer]))
        if fetching:
            limits = self._cable_limits(rates)
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

    def _cable_limits(self, sent: Mapping[PeerId, float]) -> dict[PeerId, float]:
        return self._crossing.limits(sent, self._crosses_to)

    def _most_forwarded_mbps(self, *, shares: bool) -> float | None:
        """shares: this peer has frames of its own to send. None while nobody knows what the line carries."""
        line_mbps = self._line_mbps()
        return (FORWARD_SHARE if shares else 1.0) * line_mbps if line_mbps > 0 else None

    def _crosses_to(self, peer: PeerId) -> str:
        """The region to which frames for a peer go; none when they go through a third one: other cables are crossed then."""
        return self._region_of(peer) if self._sessions.lanes_go_directly(peer) else UNKNOWN_REGION
