"""Epochs of a run in virtual time: one round machine (core/rounds.py) for each peer, and a network that their frames share.

The leader's plan goes to all, every trainer is ready at once, parts and results travel, and when the next leader has heard
that all have the state of the next epoch, it plans. Values are only counted: a result is how many contributions it holds.

Left out: inner steps, outer steps, what core/runs.py adds for peers that come and go (testing/sim.py has that), and the time
that planning takes. Control messages over `SMALL_BYTES` share the lines with frames; smaller ones take one delay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from ciuic_p2p.core.events import (
    AccumulateOwn,
    ContributionReady,
    FinishRound,
    ForwardPart,
    LeaveRound,
    MessageReceived,
    PartAccumulated,
    PartPublished,
    PublishPart,
    ResultStored,
    RoundAction,
    RoundEvent,
    SendMessage,
    SendPart,
    SendResult,
    TimePassed,
    Verdict,
)
from ciuic_p2p.core.messages import Message, Plan, encode
from ciuic_p2p.core.parts import Part, cut_parts
from ciuic_p2p.core.planning.rates import count_pair_values
from ciuic_p2p.core.rounds import Round
from ciuic_p2p.core.succession import order_of_succession
from ciuic_p2p.errors import RoundFailed
from ciuic_p2p.simulator.agenda import Agenda
from ciuic_p2p.simulator.carrier import Carrier
from ciuic_p2p.simulator.planning import Model
from ciuic_p2p.simulator.sharing import Floats
from ciuic_p2p.simulator.world import World
from ciuic_p2p.tensors.codecs.registry import reply_codec
from ciuic_p2p.terms import PeerId

SMALL_BYTES = 4096
"""A message of that size is a few packets among many."""
FRAME_BYTES = 76
"""Counter, sealed header and tag beside the payload of each frame (docs/protocol.md)."""
EXACT_PEERS = 32
"""Up to so many, rates are set at every change; with more, at ticks."""
TICKS_OF_A_ROUND = 200
LEAST_TICK_S = 1e-3

Planner = Callable[[int], Plan]
"""Epoch → its leader's plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """What one epoch took."""

    epoch: int
    topology: str
    epoch_s: float
    """From one plan to the next."""
    round_s: float
    """From the last peer that was ready to the last that had the mean: what benchmarks call a round's seconds."""
    predicted_s: float
    """By the planner."""
    contributions: int
    """In every part's result, the same for all peers."""
    frames: int
    ocean_bytes: Floats
    """[m, m]: from each region to each other one, and within it."""


@dataclass(slots=True)
class _Peer:
    number: int
    round: Round | None = None
    sums: dict[tuple[int, int], int] = field(default_factory=dict)
    """(part, term) → contributions added up here."""
    later: list[Callable[[], None]] = field(default_factory=list)
    """Frames of a plan or a term that is not here yet."""
    ready_s: float = math.inf
    finished_s: float = math.inf


class Epochs:
    """Runs one epoch after the other."""

    def __init__(self, world: World, model: Model, planner: Planner) -> None:
        self._world, self._model, self._planner = world, model, planner
        self._agenda = Agenda()
        self._carrier = Carrier(world, self._agenda)
        self._network = self._carrier.network
        self._numbers = {peer: number for number, peer in enumerate(world.peers)}
        self._peers: list[_Peer] = []
        self._sizes: list[tuple[int, int]] = []
        """Of each part, bytes on the wire: as contribution, as result."""
        self._results: dict[int, int] = {}
        """Part → contributions in its result."""
        self._frames = 0
        self._unfinished = 0

    def run_epoch(self, epoch: int) -> EpochReport:
        """Raises RoundFailed when a peer leaves the round."""
        began_s, oceans_before = self._agenda.now, self._network.ocean_bytes.copy()
        plan = self._planner(epoch)
        self._open(plan)
        while self._unfinished:
            self._agenda.do_next()
        ended_s = max(peer.finished_s for peer in self._peers)
        self._agenda.run_until(self._heard_s(order_of_succession(plan.run, epoch + 1, self._world.peers)[0]))
        return EpochReport(
            epoch=epoch,
            topology=plan.topology,
            epoch_s=self._agenda.now - began_s,
            round_s=ended_s - max(peer.ready_s for peer in self._peers),
            predicted_s=plan.predicted_s,
            contributions=min(self._results.values(), default=0),
            frames=self._frames,
            ocean_bytes=self._network.ocean_bytes - oceans_before,
        )

    def _open(self, plan: Plan) -> None:
        many = len(self._world.peers) > EXACT_PEERS
        self._network.tick_s = max(plan.predicted_s / TICKS_OF_A_ROUND, LEAST_TICK_S) if many else 0.0
        self._peers = [_Peer(number) for number in range(len(self._world.peers))]
        self._sizes = [self._sizes_of(part) for part in cut_parts(plan)]
        self._results, self._frames, self._unfinished = {}, 0, len(self._peers)
        self._weigh_pairs(plan)
        leader = self._peers[self._numbers[plan.contributors[0]]]
        self._tell(leader, plan.contributors[1:], plan)
        self._begin(leader, plan)

    def _weigh_pairs(self, plan: Plan) -> None:
        """By what each moves: all of a round's transfers then end together, as core/pacing.py has it. 1 in the middle."""
        moved = {pair: values for pair, values in count_pair_values(plan).items() if values}
        mean = sum(moved.values()) / max(len(moved), 1)
        for (source, target), values in moved.items():
            self._network.weigh(self._numbers[source], self._numbers[target], values / mean)

    def _sizes_of(self, part: Part) -> tuple[int, int]:
        codec = self._model.codec
        return codec.encoded_bytes(part.count) + FRAME_BYTES, reply_codec(codec).encoded_bytes(part.count) + FRAME_BYTES

    def _heard_s(self, leader: PeerId) -> float:
        """When the next leader knows that all have the result."""
        number = self._numbers[leader]
        return max(peer.finished_s + float(self._world.delay_s[peer.number, number]) for peer in self._peers)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _watch(self, peer: _Peer, current: Round) -> None:
        """Looks at the machine's deadline when it has come, and once a patience, for it may have got one."""
        if peer.round is not current or current.finished:
            return
        deadline_s = current.next_deadline_s()
        if deadline_s is not None and deadline_s > self._agenda.now:
            self._agenda.at(deadline_s, partial(self._watch, peer, current))
            return
        if deadline_s is not None:
            self._feed(peer, TimePassed())
        self._agenda.after(current.plan.patience_s, partial(self._watch, peer, current))

    # -- messages ------------------------------------------------------------------------------------------------------

    def _tell(self, sender: _Peer, to: Iterable[PeerId], message: Message) -> None:
        size_bytes, name = len(encode(message)), self._world.peers[sender.number]
        targets = [self._numbers[peer] for peer in to]
        if size_bytes <= SMALL_BYTES:
            self._carrier.hurry_to(sender.number, targets, partial(self._hear_all, name, message))
            return
        for target in targets:
            hear = partial(self._hear, self._peers[target], name, message)
            self._carrier.carry(sender.number, target, size_bytes, hear, urgent=True)

    def _hear_all(self, sender: PeerId, message: Message, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._hear(self._peers[number], sender, message)

    def _hear(self, peer: _Peer, sender: PeerId, message: Message) -> None:
        if isinstance(message, Plan):
            self._begin(peer, message)
        elif peer.round is None:
            peer.later.append(partial(self._hear, peer, sender, message))
        else:
            self._feed(peer, MessageReceived(sender=sender, message=message))
            self._try_later(peer)

    def _begin(self, peer: _Peer, plan: Plan) -> None:
        """The plan is here, and the trainer has been ready for long."""
        me = self._world.peers[peer.number]
        peer.round, peer.ready_s = Round(me, plan, self._agenda.now), self._agenda.now
        self._feed(peer, ContributionReady(samples=1))
        self._try_later(peer)
        self._agenda.after(plan.patience_s, partial(self._watch, peer, peer.round))

    def _try_later(self, peer: _Peer) -> None:
        waiting, peer.later = peer.later, []
        for act in waiting:
            act()

    # -- frames --------------------------------------------------------------------------------------------------------

    def _send(self, peer: _Peer, to: PeerId, size_bytes: int, come: Callable[[_Peer, PeerId], None]) -> None:
        self._frames += 1
        target = self._numbers[to]
        arrive = partial(come, self._peers[target], self._world.peers[peer.number])
        self._carrier.carry(peer.number, target, size_bytes, arrive)

    def _contribution_came(self, part: int, term: int, count: int, peer: _Peer, sender: PeerId) -> None:
        """count: of contributions in it."""
        verdict = Verdict.LATER if peer.round is None else peer.round.judge_part(sender, part, term)
        if verdict is Verdict.ACCEPT:
            self._add(peer, part, sender, count, term)
        elif verdict is Verdict.LATER:
            peer.later.append(partial(self._contribution_came, part, term, count, peer, sender))

    def _result_came(self, part: int, term: int, peer: _Peer, sender: PeerId) -> None:
        verdict = Verdict.LATER if peer.round is None else peer.round.judge_result(sender, part, term)
        if verdict is Verdict.ACCEPT:
            self._feed(peer, ResultStored(part=part))
        elif verdict is Verdict.LATER:
            peer.later.append(partial(self._result_came, part, term, peer, sender))

    def _add(self, peer: _Peer, part: int, sender: PeerId, count: int, term: int) -> None:
        peer.sums[part, term] = peer.sums.get((part, term), 0) + count
        self._feed(peer, PartAccumulated(sender=sender, part=part, term=term))

    # -- what a machine wants ------------------------------------------------------------------------------------------

    def _feed(self, peer: _Peer, event: RoundEvent) -> None:
        assert peer.round is not None
        for action in peer.round.handle(event, self._agenda.now):
            self._do(peer, action)

    def _do(self, peer: _Peer, action: RoundAction) -> None:
        match action:
            case SendPart(part=part, to=to, term=term):
                self._send(peer, to, self._sizes[part][0], partial(self._contribution_came, part, term, 1))
            case SendResult(part=part, to=receivers, term=term):
                come = partial(self._result_came, part, term)
                for to in receivers:
                    self._send(peer, to, self._sizes[part][1], come)
            case ForwardPart(part=part, to=to, term=term):
                come = partial(self._contribution_came, part, term, peer.sums[part, term])
                self._send(peer, to, self._sizes[part][0], come)
            case AccumulateOwn(part=part, term=term):
                self._add(peer, part, self._world.peers[peer.number], 1, term)
            case PublishPart(part=part, term=term):
                self._publish(peer, part, peer.sums[part, term])
            case SendMessage(to=receivers, message=message):
                self._tell(peer, receivers, message)
            case FinishRound():
                peer.finished_s = self._agenda.now
                self._unfinished -= 1
            case LeaveRound(reason=reason):
                raise RoundFailed(f"{self._world.names[peer.number]} left epoch {action.epoch}: {reason}")

    def _publish(self, peer: _Peer, part: int, count: int) -> None:
        assert self._results.setdefault(part, count) == count, "a part has two results"
        self._feed(peer, PartPublished(part=part))
