"""Many shards read from several holders at once, through any that die, lie, stall or truncate. Knows no bytes and no clock.

Pure: `handle(event, now) -> actions`; whoever fetches checks each shard's hash and says how that went. tests/sim holds this:

1. It ends in bounded time: each holder is asked for a shard `MOST_ASKS` times at most, and no ask outlasts its patience.
2. What is missing at the end nobody has who is alive and honest; each such shard is named, with those that were asked.
3. No holder has more than `asks_each` to do at a time, and no shard is asked of more than `MOST_AT_ONCE`.

A second holder is asked when the first takes a multiple of the time that was to be expected (Dean & Barroso, The Tail at Scale,
2013, "hedged requests"), or when nothing else is left to ask for and the second would be there far sooner: the end of a reading
waits for the slowest holder otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ciuic_p2p.terms import PeerId

ASKS_EACH = 4
"""At a time, of one holder: enough that its line is never idle for a round trip."""

MOST_ASKS = 2
"""Of one holder for one shard; the second one with LATER_PATIENCE times the patience, in case the estimate was wrong."""

MOST_AT_ONCE = 2
"""Holders that are asked for one shard at a time."""

MOST_FAULTS = 3
"""Wrong shards of a holder, after which it is asked for nothing more. Until then it is asked last: a bad sector is no lie."""

HEDGE_AFTER = 2.0
"""Multiples of the expected time."""
LEAST_HEDGE_S = 0.25
"""A disk that wakes up takes longer than a short shard's way."""
GIVE_UP_AFTER = 8.0
"""Multiples of the expected time."""
LEAST_PATIENCE_S = 3.0
LATER_PATIENCE = 4.0
MOST_PATIENCE_S = 600.0
"""With one ask, and with a holder that answers nothing at all: it is asked for nothing more then, unless it returns."""
LONGEST_QUEUE_S = 30.0
"""Of what one holder is asked for, by its goodput: over a slow line one shard at a time is enough, and hedged sooner."""
SOONER = 2.0
"""At the end of a reading a second holder must be so much quicker than what is left for the first."""

UNKNOWN_RTT_S = 0.3
UNKNOWN_GOODPUT_MBPS = 20.0
"""Of a holder whose link was not measured; the first shard that comes says more."""
_LEAST_GOODPUT_MBPS = 0.1
_NEWEST_SHARE = 0.5
"""Of the newest shard in the estimate of a holder's goodput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedShard:
    shard: str
    size_bytes: int
    holders: tuple[PeerId, ...]
    """As told, nearest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEstimate:
    """What is known of the link from a holder before anything was read from it."""

    rtt_s: float = UNKNOWN_RTT_S
    goodput_mbps: float = UNKNOWN_GOODPUT_MBPS


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCame:
    """Whole, its hash is right, and it is stored."""

    peer: PeerId
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWrong:
    """Something else came than the shard: another hash, or too few bytes."""

    peer: PeerId
    shard: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRefused:
    """The holder says that it has not got the shard (any more)."""

    peer: PeerId
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderLost:
    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderReturned:
    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """The deadline that was asked for has come; also what a reading begins with."""


ReadingEvent = ShardCame | ShardWrong | ShardRefused | HolderLost | HolderReturned | TimePassed


@dataclass(frozen=True, slots=True, kw_only=True)
class AskShard:
    peer: PeerId
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsk:
    """The shard came from another one, or this holder took too long."""

    peer: PeerId
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameHolder:
    peer: PeerId
    shard: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingShard:
    shard: str
    asked: tuple[PeerId, ...]
    """In the order in which they were first asked."""
    not_asked: tuple[PeerId, ...]
    """Who should have it too, and was lost or blamed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReading:
    """All shards came but these. The last action."""

    missing: tuple[MissingShard, ...]


ReadingAction = AskShard | CancelAsk | BlameHolder | FinishReading


@dataclass(slots=True)
class _Ask:
    bytes_ahead: int
    """What its holder was asked for until then, this shard too."""
    asked_s: float
    give_up_at_s: float


@dataclass(slots=True)
class _Holder:
    rtt_s: float
    goodput_mbps: float
    asks: dict[str, int] = field(default_factory=dict)
    """Shard → bytes of it, of what it is to send now."""
    is_lost: bool = False
    faults: int = 0
    heard_s: float = 0.0
    """When its last answer came; or when it was asked first after that."""
    stalls: int = 0
    """Asks in a row that others had to answer. From the first on it is asked for one shard at a time."""

    def expected_s(self, size_bytes: int) -> float:
        """Until that many bytes more are here."""
        return self.rtt_s + (sum(self.asks.values()) + size_bytes) * 8e-6 / self.goodput_mbps

    def due_s(self, ask: _Ask) -> float:
        """By what its goodput turned out to be since."""
        return ask.asked_s + self.rtt_s + ask.bytes_ahead * 8e-6 / self.goodput_mbps

    def hedge_at_s(self, ask: _Ask) -> float:
        return ask.asked_s + max(LEAST_HEDGE_S, HEDGE_AFTER * (self.due_s(ask) - ask.asked_s))

    def learn_goodput(self, ask: _Ask, now: float) -> None:
        took_s = max(now - ask.asked_s - self.rtt_s, 1e-3)
        seen_mbps = ask.bytes_ahead * 8e-6 / took_s
        self.goodput_mbps = max((1 - _NEWEST_SHARE) * self.goodput_mbps + _NEWEST_SHARE * seen_mbps, _LEAST_GOODPUT_MBPS)


@dataclass(slots=True)
class _Search:
    """For one shard that is not here."""

    wanted: WantedShard
    asks: dict[PeerId, _Ask] = field(default_factory=dict)
    """Open ones."""
    asked: dict[PeerId, int] = field(default_factory=dict)
    """How often, in all."""
    without: set[PeerId] = field(default_factory=set)
    """Holders that have it not, or wrong."""


class Reading:
    """The machine. Raises ValueError for less than one ask at a time, or a shard that is wanted twice."""

    def __init__(self, wanted: Iterable[WantedShard], links: Mapping[PeerId, LinkEstimate], asks_each: int = ASKS_EACH) -> None:
        if asks_each < 1:
            raise ValueError(f"{asks_each} asks at a time")
        self._asks_each = asks_each
        self._holders: dict[PeerId, _Holder] = {}
        self._searches: dict[str, _Search] = {}
        for shard in wanted:
            if shard.shard in self._searches:
                raise ValueError(f"shard {shard.shard} is wanted twice")
            self._searches[shard.shard] = _Search(shard)
            for peer in shard.holders:
                self._holders.setdefault(peer, _holder_of(links.get(peer, LinkEstimate())))
        self._waiting: dict[str, None] = dict.fromkeys(self._searches)
        """Shards that are asked of nobody and could be, in order."""
        self._now = -math.inf
        self.finished = False

    def next_deadline_s(self) -> float | None:
        """When TimePassed is due. A hedge that is overdue waits for a holder with time for it, not for the clock."""
        times = [
            time
            for _, peer, ask in self._open_asks()
            for time in (self._holders[peer].hedge_at_s(ask), ask.give_up_at_s)
            if time > self._now
        ]
        return None if self.finished else min(times, default=None)

    def late(self) -> frozenset[str]:
        """Shards that nobody else can be asked for, and that do not come, or later than they should: whoever can make them
        of others need not wait for the end."""
        asked = self._searches.keys() - self._waiting.keys()
        return frozenset(shard for shard in asked if self._is_late(self._searches[shard]))

    def _is_late(self, search: _Search) -> bool:
        """Also where nobody is asked any more."""
        return all(self._is_overdue(peer, ask) for peer, ask in search.asks.items()) and not any(
            self._may_ask(search, peer) for peer in search.wanted.holders
        )

    def handle(self, event: ReadingEvent, now: float) -> list[ReadingAction]:
        """now: seconds of a clock that never goes back."""
        if self.finished:
            return []
        self._now = now
        actions = self._take(event)
        actions += self._give_up_overdue()
        actions += self._hedge_overdue()
        actions += self._ask_waiting()
        actions += self._help_slow_ones()
        if not self._waiting and not self._open_asks():
            self.finished = True
            actions.append(FinishReading(missing=tuple(map(self._missing, self._searches.values()))))
        return actions

    # -- events ----------------------------------------------------------------------------------------------------

    def _take(self, event: ReadingEvent) -> list[ReadingAction]:
        match event:
            case ShardCame(peer=peer, shard=shard):
                self._heard(peer)
                return self._came(peer, shard)
            case ShardWrong(peer=peer, shard=shard, reason=reason):
                self._heard(peer)
                return self._blame(peer, shard, reason)
            case ShardRefused(peer=peer, shard=shard):
                self._heard(peer)
                self._is_without(peer, shard)
            case HolderLost(peer=peer):
                self._lose(peer)
            case HolderReturned(peer=peer):
                self._return(peer)
            case TimePassed():
                pass
        return []

    def _heard(self, peer: PeerId) -> None:
        holder = self._holders.get(peer)
        if holder is None:
            return
        was_stalled = holder.stalls > 0
        holder.heard_s = self._now
        holder.stalls = 0
        if was_stalled:
            self._try_again_with(peer)

    def _came(self, peer: PeerId, shard: str) -> list[ReadingAction]:
        """Also late, after it was given up: what is right is right."""
        search = self._searches.get(shard)
        if search is None:
            return []
        ask = search.asks.get(peer)
        if ask is not None:
            self._holders[peer].learn_goodput(ask, self._now)
            self._close(search, peer)
        others = dict(search.asks)
        for other, slow in others.items():
            self._holders[other].stalls += self._is_overdue(other, slow)
            self._close(search, other)
        del self._searches[shard]
        self._waiting.pop(shard, None)
        return [CancelAsk(peer=other, shard=shard) for other in others]

    def _blame(self, peer: PeerId, shard: str, reason: str) -> list[ReadingAction]:
        """Once for a shard: no holder is asked again for one that was wrong."""
        search = self._searches.get(shard)
        if search is None or peer not in search.asked or peer in search.without:
            return []
        self._holders[peer].faults += 1
        self._is_without(peer, shard)
        return [BlameHolder(peer=peer, shard=shard, reason=reason)]

    def _is_without(self, peer: PeerId, shard: str) -> None:
        search = self._searches.get(shard)
        if search is not None and peer in search.asked:
            search.without.add(peer)
            self._close(search, peer)

    def _lose(self, peer: PeerId) -> None:
        if peer in self._holders:
            holder = self._holders[peer]
            holder.is_lost = True
            for shard in list(holder.asks):
                self._close(self._searches[shard], peer)

    def _return(self, peer: PeerId) -> None:
        if peer in self._holders:
            self._holders[peer].is_lost = False
            self._heard(peer)
            self._try_again_with(peer)

    def _try_again_with(self, peer: PeerId) -> None:
        """What was given up for want of it."""
        for shard, search in self._searches.items():
            if not search.asks and self._may_ask(search, peer):
                self._waiting[shard] = None

    # -- what follows ----------------------------------------------------------------------------------------------

    def _give_up_overdue(self) -> list[ReadingAction]:
        overdue = [(search, peer) for search, peer, ask in self._open_asks() if ask.give_up_at_s <= self._now]
        for search, peer in overdue:
            self._holders[peer].stalls += 1
            self._close(search, peer)
        return [CancelAsk(peer=peer, shard=search.wanted.shard) for search, peer in overdue]

    def _ask_waiting(self) -> list[ReadingAction]:
        actions: list[ReadingAction] = []
        for shard in list(self._waiting):
            if self._all_are_busy():
                break
            search = self._searches[shard]
            if not any(self._may_ask(search, peer) for peer in search.wanted.holders):
                del self._waiting[shard]  # until one of its holders is back
                continue
            peer = self._choose(search)
            if peer is not None:
                actions.append(self._ask(search, peer))
        return actions

    def _hedge_overdue(self) -> list[ReadingAction]:
        """Before others are asked for: whoever reads in order waits for just these."""
        actions: list[ReadingAction] = []
        for search, first, ask in self._open_asks():
            if len(search.asks) < MOST_AT_ONCE and self._is_overdue(first, ask):
                second = self._choose(search)
                if second is not None:
                    actions.append(self._ask(search, second))
        return actions

    def _help_slow_ones(self) -> list[ReadingAction]:
        """Not while others wait: a holder's time belongs to them until then."""
        actions: list[ReadingAction] = []
        for search, first, _ in [] if self._waiting else self._open_asks():
            second = self._far_quicker(search, first) if len(search.asks) < MOST_AT_ONCE else None
            if second is not None:
                actions.append(self._ask(search, second))
        return actions

    def _is_overdue(self, peer: PeerId, ask: _Ask) -> bool:
        return self._holders[peer].hedge_at_s(ask) <= self._now

    def _far_quicker(self, search: _Search, first: PeerId) -> PeerId | None:
        """The quickest may have no time yet; a slow one in its place would only be in its way."""
        able = [peer for peer in search.wanted.holders if self._may_ask(search, peer)]
        second = min(able, key=lambda peer: self._preference(search, peer), default=None)
        if second is None or not self._has_time(self._holders[second]):
            return None
        holder = self._holders[second]
        left_s = math.inf if self._holders[first].stalls else self._holders[first].due_s(search.asks[first]) - self._now
        is_trusted = not (holder.faults or holder.stalls)
        return second if is_trusted and holder.expected_s(search.wanted.size_bytes) * SOONER < left_s else None

    def _ask(self, search: _Search, peer: PeerId) -> AskShard:
        wanted, holder = search.wanted, self._holders[peer]
        if not (holder.asks or holder.stalls):
            holder.heard_s = self._now
        attempt = search.asked.get(peer, 0)
        expected_s = holder.expected_s(wanted.size_bytes)
        patience_s = min(max(LEAST_PATIENCE_S, GIVE_UP_AFTER * expected_s) * LATER_PATIENCE**attempt, MOST_PATIENCE_S)
        holder.asks[wanted.shard] = wanted.size_bytes
        search.asked[peer] = attempt + 1
        search.asks[peer] = _Ask(
            bytes_ahead=sum(holder.asks.values()),
            asked_s=self._now,
            give_up_at_s=self._now + patience_s,
        )
        self._waiting.pop(wanted.shard, None)
        return AskShard(peer=peer, shard=wanted.shard)

    def _close(self, search: _Search, peer: PeerId) -> None:
        shard = search.wanted.shard
        if search.asks.pop(peer, None) is not None:
            del self._holders[peer].asks[shard]
            if not search.asks:
                self._waiting[shard] = None

    # -- who is asked ----------------------------------------------------------------------------------------------

    def _choose(self, search: _Search) -> PeerId | None:
        """Of those that have time."""
        able = [peer for peer in search.wanted.holders if self._has_time(self._holders[peer]) and self._may_ask(search, peer)]
        return min(able, key=lambda peer: self._preference(search, peer), default=None)

    def _preference(self, search: _Search, peer: PeerId) -> tuple[int, int, int, float]:
        """The quickest first, with what it has to do already; those with faults and stalls last."""
        holder = self._holders[peer]
        return holder.faults, holder.stalls, search.asked.get(peer, 0), holder.expected_s(search.wanted.size_bytes)

    def _has_time(self, holder: _Holder) -> bool:
        if holder.is_lost:
            return False
        is_slow = holder.stalls or holder.expected_s(0) > LONGEST_QUEUE_S
        return len(holder.asks) < (1 if is_slow else self._asks_each)

    def _all_are_busy(self) -> bool:
        """Not when all are lost: then there is nobody to wait for."""
        holders = [holder for holder in self._holders.values() if not holder.is_lost]
        return bool(holders) and not any(map(self._has_time, holders))

    def _may_ask(self, search: _Search, peer: PeerId) -> bool:
        holder = self._holders[peer]
        is_spent = peer in search.without or peer in search.asks or search.asked.get(peer, 0) >= MOST_ASKS
        is_silent = holder.stalls > 0 and self._now - holder.heard_s >= MOST_PATIENCE_S
        return not (is_spent or is_silent or holder.is_lost) and holder.faults < MOST_FAULTS

    def _open_asks(self) -> list[tuple[_Search, PeerId, _Ask]]:
        return [
            (self._searches[shard], peer, self._searches[shard].asks[peer])
            for peer, holder in self._holders.items()
            for shard in holder.asks
        ]

    def _missing(self, search: _Search) -> MissingShard:
        not_asked = tuple(peer for peer in search.wanted.holders if peer not in search.asked)
        return MissingShard(shard=search.wanted.shard, asked=tuple(search.asked), not_asked=not_asked)


def _holder_of(link: LinkEstimate) -> _Holder:
    return _Holder(rtt_s=max(link.rtt_s, 0.0), goodput_mbps=max(link.goodput_mbps, _LEAST_GOODPUT_MBPS))
