"""SimSwarm: many peers with the real run machines in virtual time; latency, deaths, freezes and torn sessions.

What lies between them is a part of its own: random latency, or lines and cables that frames share.

Values are symbolic: the result of a part *is* the set of contributions in it, so that "exactly the average of these peers" and
"at most once" are comparisons, not tolerances. One seed gives one history.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from blake3 import blake3

from ciuic_p2p.core.events import (
    AccumulateOwn,
    DatasetWanted,
    DropRound,
    FetchFailed,
    FetchState,
    FinishRound,
    ForwardPart,
    LeaseAwaited,
    LeaveRound,
    LoadTrainer,
    MessageReceived,
    OpenRound,
    PartAccumulated,
    PartPublished,
    PeerLost,
    PeerReturned,
    PublishPart,
    RecordTranscript,
    RefuseLayout,
    ResultStored,
    RunAction,
    RunEvent,
    RunShape,
    SeedState,
    SendMessage,
    SendPart,
    SendResult,
    StateHeld,
    TimePassed,
    TrainerAttached,
    TrainerLeft,
    TrainerReady,
    Verdict,
    WorkGivenUp,
)
from ciuic_p2p.core.ledgers import NO_LEDGERS, Grant, Ledgers, Used, UseReport, Wanted
from ciuic_p2p.core.messages import Plan, decode, encode
from ciuic_p2p.core.runs import RunMachine
from ciuic_p2p.data.slots import NO_SLOTS
from ciuic_p2p.simulator.agenda import Act, Agenda
from ciuic_p2p.simulator.transit import Transit
from ciuic_p2p.simulator.world import World
from ciuic_p2p.terms import PeerId, StateHash

DETECTION_S = 3.0
"""A frozen or unreachable peer is given up after this."""

LATER_S = 10.0
"""A frame whose plan does not come is dropped after this."""

DATASET = "data"
MOST_SAMPLES = 50
"""Of one contribution."""

Contribution = tuple[str, int, int]
"""(peer, number of its contribution, samples)"""

Result = frozenset[Contribution]

Ways = Callable[[Plan], Plan]
"""Sends a plan's spans other ways than it says, so that a machine is tried on all that a plan may ask for."""


@dataclass(frozen=True, slots=True)
class SimState:
    """A run's state as its whole history: one tuple of part results for each epoch."""

    history: tuple[tuple[Result, ...], ...] = ()
    root: str = ""
    digest: str = ""
    samples: int = 0
    ledgers: Ledgers = NO_LEDGERS
    reported: tuple[Result, ...] = ()
    """For each epoch of which the plan granted leases: the contributions whose reports are in its result."""

    @property
    def epoch(self) -> int:
        return len(self.history)

    def state_hash(self) -> StateHash:
        return StateHash(self.digest)

    def stepped(
        self, step: tuple[Result, ...], grants: tuple[Grant, ...], reports: Mapping[Contribution, UseReport]
    ) -> SimState:
        """reports: what was used for each contribution that was ever made."""
        of_peers = tuple((PeerId(each[0]), reports[each]) for each in sorted(step[-1])) if grants else ()
        ledgers = _settled(self.ledgers, grants, of_peers)
        text = repr((self.digest, [sorted(part) for part in step], ledgers.to_bytes()))
        counted = min((sum(samples for _, _, samples in part) for part in step), default=0)
        return SimState(
            (*self.history, step),
            self.root,
            blake3(text.encode()).hexdigest(),
            self.samples + counted,
            ledgers,
            (*self.reported, step[-1] if grants else frozenset()),
        )

    def held(self) -> StateHeld:
        return StateHeld(epoch=self.epoch, state_hash=self.state_hash(), samples=self.samples, ledgers=self.ledgers)


@functools.lru_cache(maxsize=64)
def _settled(ledgers: Ledgers, grants: tuple[Grant, ...], reports: tuple[tuple[PeerId, UseReport], ...]) -> Ledgers:
    """All peers that end a round ask the same."""
    return Ledgers.from_bytes(ledgers.granted(grants).settled(dict(reports), grants).to_bytes())


_decoded = functools.lru_cache(maxsize=4096)(decode)
"""One message goes to many peers."""


class _PlansOtherWays(RunMachine):
    ways: Ways | None = None

    def _make_plan(self, shape: RunShape, epoch: int) -> Plan:
        plan = super()._make_plan(shape, epoch)
        return plan if self.ways is None else self.ways(plan)


@dataclass(slots=True)
class _SimRound:
    sums: dict[tuple[int, int], set[Contribution]] = field(default_factory=dict)
    """By part and term."""
    results: dict[int, Result] = field(default_factory=dict)


@dataclass(slots=True)
class SimPeer:
    """One daemon and its trainer."""

    name: PeerId
    machine: RunMachine
    step_s: float
    alive: bool = True
    frozen: bool = False
    freezes: int = 0
    """So far: who was about to give it up for an earlier one has seen it since."""
    state: SimState | None = None
    old_states: dict[int, SimState] = field(default_factory=dict)
    rounds: dict[int, _SimRound] = field(default_factory=dict)
    finished: dict[int, tuple[FinishRound, float]] = field(default_factory=dict)
    """What ended each epoch of the lineage held now, and when."""
    contribution: Contribution | None = None
    made: int = 0
    hungry: bool = False
    """Its trainer waits for a lease."""
    inbox: list[Callable[[], None]] = field(default_factory=list)
    left_rounds: int = 0
    given_up_samples: int = 0
    armed_s: float | None = None
    trainer: int = 0


class Between(Protocol):
    """What lies between the peers of a simulated swarm."""

    def delay_s(self, source: PeerId, target: PeerId) -> float:
        """What the next short notice takes, one way."""

    def carry(self, source: PeerId, target: PeerId, channel: str, size_bytes: float, arrive: Act) -> None:
        """In order on each channel of an ordered pair, which are "control" and "lane"."""


class RandomLatency:
    """Each message and frame takes a random time, whatever its size; a pair has two lanes."""

    def __init__(self, agenda: Agenda, rng: random.Random, latency_s: tuple[float, float] = (0.01, 0.1)) -> None:
        self._agenda, self._rng, self._latency_s = agenda, rng, latency_s
        self._arrival: dict[tuple[PeerId, PeerId, str], float] = {}

    def delay_s(self, source: PeerId, target: PeerId) -> float:
        return self._rng.uniform(*self._latency_s)

    def carry(self, source: PeerId, target: PeerId, channel: str, size_bytes: float, arrive: Act) -> None:
        lane = f"{channel}{self._rng.randrange(2)}" if channel == "lane" else channel
        key = (source, target, lane)
        arrives = max(self._agenda.now + self.delay_s(source, target), self._arrival.get(key, 0.0))
        self._arrival[key] = arrives
        self._agenda.at(arrives, arrive)


class SharedLines:
    """Frames share the lines and cables of a world; messages take its delays."""

    def __init__(self, agenda: Agenda, world: World) -> None:
        self._world, self._transit = world, Transit(world, agenda)
        self._numbers = {peer: number for number, peer in enumerate(world.peers)}

    def delay_s(self, source: PeerId, target: PeerId) -> float:
        return float(self._world.delay_s[self._numbers[source], self._numbers[target]])

    def carry(self, source: PeerId, target: PeerId, channel: str, size_bytes: float, arrive: Act) -> None:
        ends = self._numbers[source], self._numbers[target]
        if channel == "lane":
            self._transit.carry(*ends, size_bytes, arrive)
        else:
            self._transit.hurry(*ends, arrive)


class SimSwarm:
    """Give it peers, let time pass, disturb it, then look at `peers`."""

    def __init__(
        self,
        seed: int,
        *,
        count: int = 6000,
        codec: str = "float32",
        ways: Ways | None = None,
        world: World | None = None,
        dataset: int = 0,
    ) -> None:
        """codec: the name or the policy that every trainer asks for. world: whose lines and cables they share, and whose
        peers they are; else everything takes a random time. dataset: samples of what all trainers read by leases; 0: none."""
        self._ways = ways
        self.dataset = dataset
        self.reports: dict[Contribution, UseReport] = {}
        self.rng = random.Random(seed)  # noqa: S311 - a simulation wants a seed, not secrecy
        self.agenda = Agenda()
        self.between: Between = RandomLatency(self.agenda, self.rng) if world is None else SharedLines(self.agenda, world)
        self.peers: dict[PeerId, SimPeer] = {}
        self.disturbed: list[tuple[float, PeerId]] = []
        """Deaths and freezes so far."""
        self._session: dict[frozenset[PeerId], int] = {}
        self._walls: set[frozenset[PeerId]] = set()
        """Pairs that do not reach each other."""
        self._shape = RunShape(
            layout="L",
            count=count,
            parameter_count=count,
            codec_policy=codec,
            encoded_bytes={"float32": 4 * count, "float16": 2 * count, "int8": count, "int4": count // 2, "onebit": count // 8},
            outer_learning_rate=1.0,
            outer_momentum=0.0,
        )

    # -- the script's side ---------------------------------------------------------------------------------------------

    def add(self, name: str, step_s: float = 1.0, codec: str | None = None) -> SimPeer:
        """A peer starts now, joins everyone, and its trainer attaches at once. step_s: seconds of its inner steps.

        codec: what its trainer asks for, when it is not what the others do.
        """
        shape = self._shape if codec is None else dataclasses.replace(self._shape, codec_policy=codec)
        machine = _PlansOtherWays(PeerId(name), "run", now=self.now, seed_wait_s=0.5)
        machine.ways = self._ways
        peer = SimPeer(PeerId(name), machine, step_s)
        self.peers[peer.name] = peer
        for other in self.peers.values():
            if other is not peer and other.alive:
                self._connect(peer, other)
        self._after(0.0, lambda: self._feed(peer, TrainerAttached(shape=shape)))
        if self.dataset:
            wanted = Wanted(dataset=DATASET, count=self.dataset, samples=MOST_SAMPLES)
            self._after(0.0, lambda: self._feed(peer, DatasetWanted(wanted=wanted)))
        return peer

    @property
    def now(self) -> float:
        return self.agenda.now

    def run_until(self, seconds: float) -> None:
        self.agenda.run_until(seconds)

    def at(self, seconds: float, act: Act) -> None:
        self.agenda.at(seconds, act)

    def kill(self, name: str) -> None:
        """Dies at once; the others notice the closed connections."""
        peer = self.peers[PeerId(name)]
        peer.alive = False
        self.disturbed.append((self.now, peer.name))
        for other in self._others(peer):
            self._cut(peer, other)
            delay_s = self.between.delay_s(peer.name, other.name)
            self._after(delay_s, lambda other=other: self._lose(other, peer))  # type: ignore[misc]

    def restart(self, name: str, *, with_state: bool = False) -> SimPeer:
        """A new daemon with the old identity, with or without the state that it had."""
        old = self.peers[PeerId(name)]
        fresh = self.add(name, old.step_s)
        fresh.made = old.made
        if with_state and old.state is not None:
            state = old.state
            fresh.state = state
            self._after(0.0, lambda: self._feed(fresh, state.held()))
            self._train(fresh)
        return fresh

    def freeze(self, name: str, seconds: float) -> None:
        """Handles nothing for a while; the others give it up after DETECTION_S; afterwards sessions are renewed."""
        peer = self.peers[PeerId(name)]
        peer.frozen, peer.freezes = True, peer.freezes + 1
        number = peer.freezes
        self.disturbed.append((self.now, peer.name))
        torn: list[SimPeer] = []

        def give_up() -> None:
            if peer.frozen and peer.freezes == number and peer.alive:
                torn.extend(self._others(peer))
                for other in torn:
                    self._cut(peer, other)
                    self._lose(other, peer)

        def thaw() -> None:
            peer.frozen = False
            waiting, peer.inbox = peer.inbox, []
            for act in waiting:
                act()
            self._arm(peer)  # as in a daemon, what came meanwhile is heard before a deadline is acted on
            for other in torn:
                if peer.alive and other.alive:
                    self._feed(peer, PeerLost(peer=other.name))
                    self._connect(peer, other)

        self._after(DETECTION_S, give_up)
        self._after(seconds, thaw)

    def tear(self, a: str, b: str, seconds: float = 0.3) -> None:
        """The session of two peers breaks, all under way is lost, and it is renewed before anyone is given up."""
        first, second = self.peers[PeerId(a)], self.peers[PeerId(b)]
        self._cut(first, second)
        self._after(seconds, lambda: self._connect(first, second))

    def part(self, names: Collection[str], seconds: float) -> None:
        """Those named and all others do not reach each other for a while; both find out after DETECTION_S."""
        inside = {self.peers[PeerId(name)].name for name in names}
        across = [(a, b) for a in self.peers.values() for b in self.peers.values() if a.name in inside and b.name not in inside]
        for a, b in across:
            self._cut(a, b)
            self._walls.add(frozenset((a.name, b.name)))

        def find_out() -> None:
            for a, b in across:
                self._lose(a, b)
                self._lose(b, a)

        def heal() -> None:
            for a, b in across:
                self._walls.discard(frozenset((a.name, b.name)))
                self._connect(a, b)

        self._after(DETECTION_S, find_out)
        self._after(seconds, heal)

    def detach(self, name: str) -> None:
        """The trainer dies, the daemon lives on."""
        self.peers[PeerId(name)].trainer += 1
        self.peers[PeerId(name)].hungry = False
        self._feed(self.peers[PeerId(name)], TrainerLeft())

    def living(self) -> list[SimPeer]:
        return [peer for peer in self.peers.values() if peer.alive and not peer.frozen]

    # -- the network's side --------------------------------------------------------------------------------------------

    def _others(self, peer: SimPeer) -> list[SimPeer]:
        return [other for other in self.peers.values() if other is not peer and other.alive]

    def _after(self, delay_s: float, act: Act) -> None:
        self.agenda.after(delay_s, act)

    def _cut(self, a: SimPeer, b: SimPeer) -> None:
        pair = frozenset((a.name, b.name))
        self._session[pair] = self._session.get(pair, 0) + 1

    def _connect(self, a: SimPeer, b: SimPeer) -> None:
        if frozenset((a.name, b.name)) in self._walls:
            return
        if not (a.alive and b.alive) or self.peers.get(a.name) is not a or self.peers.get(b.name) is not b:
            return
        self._cut(a, b)
        self._after(self.between.delay_s(b.name, a.name), lambda: self._feed(a, PeerReturned(peer=b.name)))
        self._after(self.between.delay_s(a.name, b.name), lambda: self._feed(b, PeerReturned(peer=a.name)))

    def _lose(self, observer: SimPeer, lost: SimPeer) -> None:
        current = self.peers.get(lost.name)
        if current is lost:
            self._feed(observer, PeerLost(peer=lost.name))

    def _deliver(
        self, sender: SimPeer, to: PeerId, channel: str, act: Callable[[SimPeer], None], size_bytes: float = 0.0
    ) -> None:
        """In order on each channel of a pair; lost when the session breaks meanwhile."""
        target = self.peers.get(to)
        if target is None or not target.alive or to not in sender.machine.connected:
            return
        pair = frozenset((sender.name, to))
        if pair in self._walls:
            return
        session = self._session.get(pair, 0)

        def arrive() -> None:
            if self._session.get(pair, 0) == session and sender.alive and self.peers.get(to) is target:
                self._when_awake(target, lambda: act(target))

        self.between.carry(sender.name, to, channel, size_bytes, arrive)

    def _when_awake(self, peer: SimPeer, act: Callable[[], None]) -> None:
        if not peer.alive:
            return
        if peer.frozen:
            peer.inbox.append(act)
        else:
            act()

    # -- a peer's shell ------------------------------------------------------------------------------------------------

    def _feed(self, peer: SimPeer, event: RunEvent) -> None:
        if self.peers.get(peer.name) is peer:
            self._when_awake(peer, lambda: self._perform(peer, peer.machine.handle(event, self.now)))

    def _perform(self, peer: SimPeer, actions: list[RunAction]) -> None:
        for action in actions:
            self._do(peer, action)
        self._arm(peer)
        if peer.hungry and peer.machine.lease_of(DATASET).count:
            peer.hungry = False
            self._train(peer)

    def _arm(self, peer: SimPeer) -> None:
        deadline = peer.machine.next_deadline_s()
        if deadline is None or (peer.armed_s is not None and self.now < peer.armed_s <= deadline):
            return
        peer.armed_s = max(deadline, self.now + 1e-3)
        self.at(peer.armed_s, lambda: self._ring(peer))

    def _ring(self, peer: SimPeer) -> None:
        if peer.frozen:
            peer.armed_s = None
        else:
            self._feed(peer, TimePassed())

    def _do(self, peer: SimPeer, action: RunAction) -> None:
        match action:
            case SendMessage(to=to, message=message):
                data = encode(message)
                for name in to:
                    self._deliver(peer, name, "control", lambda target, data=data: self._message(target, peer.name, data))  # type: ignore[misc]
            case OpenRound(epoch=epoch):
                peer.rounds.setdefault(epoch, _SimRound())
            case DropRound(epoch=epoch):
                peer.rounds.pop(epoch, None)
            case LeaveRound():
                peer.left_rounds += 1
            case SeedState():
                self._hold(peer, SimState(root=peer.name, digest=peer.name))
            case AccumulateOwn(epoch=epoch, part=part, term=term):
                assert peer.contribution is not None
                self._add(peer, epoch, part, peer.name, {peer.contribution}, term)
            case SendPart(epoch=epoch, part=part, to=to_peer, term=term):
                if peer.contribution is not None:
                    self._send_part(peer, epoch, part, to_peer, term, {peer.contribution})
            case ForwardPart(epoch=epoch, part=part, to=to_peer, term=term):
                if epoch in peer.rounds:
                    self._send_part(peer, epoch, part, to_peer, term, set(peer.rounds[epoch].sums[part, term]))
            case PublishPart(epoch=epoch, part=part, term=term):
                current = peer.rounds[epoch]
                current.results[part] = frozenset(current.sums.get((part, term), ()))
                self._perform(peer, peer.machine.handle_in_round(epoch, PartPublished(part=part), self.now))
            case SendResult(epoch=epoch, part=part, to=receivers, term=term):
                self._send_result(peer, epoch, part, receivers, term)
            case FinishRound():
                self._step(peer, action)
            case FetchState():
                self._fetch(peer, action)
            case LoadTrainer():
                peer.contribution = None
                self._train(peer)
            case WorkGivenUp(samples=samples):
                peer.given_up_samples += samples
            case RecordTranscript() | RefuseLayout():
                pass

    def _message(self, peer: SimPeer, sender: PeerId, data: bytes) -> None:
        self._perform(peer, peer.machine.handle(MessageReceived(sender=sender, message=_decoded(data)), self.now))

    def _hold(self, peer: SimPeer, state: SimState, ancestors: tuple[str, ...] = ()) -> None:
        if peer.state is not None:
            peer.old_states[peer.state.epoch] = peer.state
        first = peer.state is None
        peer.state = state
        self._feed(peer, dataclasses.replace(state.held(), ancestors=ancestors))
        if first and peer.contribution is None:
            self._train(peer)

    def _train(self, peer: SimPeer) -> None:
        trainer = peer.trainer

        def done() -> None:
            if peer.trainer != trainer or self.peers.get(peer.name) is not peer:
                return
            samples = self.rng.randrange(1, MOST_SAMPLES)
            used = lease.first(samples)
            peer.made += 1
            peer.contribution = (peer.name, peer.made, samples)
            self.reports[peer.contribution] = (Used(dataset=DATASET, slots=used),) if self.dataset else ()
            self._feed(peer, TrainerReady(samples=samples, report=self.reports[peer.contribution]))

        lease = peer.machine.lease_of(DATASET) if self.dataset else NO_SLOTS
        if self.dataset and not lease.count:
            peer.hungry = True
            self._feed(peer, LeaseAwaited(dataset=DATASET))
            return

        self._after(peer.step_s * self.rng.uniform(0.9, 1.1), lambda: self._when_awake(peer, done))

    def _send_part(self, peer: SimPeer, epoch: int, part: int, to: PeerId, term: int, sent: set[Contribution]) -> None:
        def arrive(target: SimPeer, deadline_s: float = self.now + LATER_S) -> None:
            verdict = self._judge(target, epoch, lambda r: r.judge_part(peer.name, part, term))
            if verdict is Verdict.ACCEPT:
                self._add(target, epoch, part, peer.name, sent, term)
            elif verdict is Verdict.LATER and self.now < deadline_s:
                self._after(0.05, lambda: self._when_awake(target, lambda: arrive(target, deadline_s)))

        self._deliver(peer, to, "lane", arrive, self._size_bytes(peer, epoch, part))

    def _send_result(self, peer: SimPeer, epoch: int, part: int, receivers: tuple[PeerId, ...], term: int) -> None:
        if epoch not in peer.rounds:
            return
        result = peer.rounds[epoch].results[part]

        def arrive(target: SimPeer, deadline_s: float = self.now + LATER_S) -> None:
            verdict = self._judge(target, epoch, lambda r: r.judge_result(peer.name, part, term))
            if verdict is Verdict.ACCEPT:
                target.rounds[epoch].results[part] = result
                self._perform(target, target.machine.handle_in_round(epoch, ResultStored(part=part), self.now))
            elif verdict is Verdict.LATER and self.now < deadline_s:
                self._after(0.05, lambda: self._when_awake(target, lambda: arrive(target, deadline_s)))

        for name in receivers:
            self._deliver(peer, name, "lane", arrive, self._size_bytes(peer, epoch, part))

    def _size_bytes(self, peer: SimPeer, epoch: int, part: int) -> float:
        """Of a frame of that part."""
        current = peer.machine.rounds.get(epoch)
        if current is None:
            return 0.0
        return self._shape.encoded_bytes[current.plan.codec] * current.parts[part].count / self._shape.count

    def _judge(self, peer: SimPeer, epoch: int, ask: Callable[..., Verdict]) -> Verdict:
        current = peer.machine.rounds.get(epoch)
        if current is not None:
            return ask(current)
        behind = peer.machine.epoch is None or epoch >= peer.machine.epoch
        return Verdict.LATER if behind else Verdict.IGNORE

    def _add(self, peer: SimPeer, epoch: int, part: int, sender: PeerId, sent: set[Contribution], term: int) -> None:
        sums = peer.rounds[epoch].sums.setdefault((part, term), set())
        assert not sent & sums, "a contribution was added twice"
        sums |= sent
        event = PartAccumulated(sender=sender, part=part, term=term)
        self._perform(peer, peer.machine.handle_in_round(epoch, event, self.now))

    def _step(self, peer: SimPeer, action: FinishRound) -> None:
        assert peer.state is not None
        assert peer.state.epoch == action.epoch, "a round was finished on another epoch's state"
        results = peer.rounds[action.epoch].results
        step = tuple(results[part] for part in range(len(results)))
        peer.finished[action.epoch] = (action, self.now)
        grants = peer.machine.rounds[action.epoch].plan.grants
        self._hold(peer, peer.state.stepped(step, grants, self.reports))

    def _fetch(self, peer: SimPeer, action: FetchState) -> None:
        asked_state = peer.state

        def arrive() -> None:
            if self.peers.get(peer.name) is not peer:
                return
            for name in action.donors:
                donor = self.peers.get(name)
                if donor is None or not donor.alive or donor.state is None:
                    continue
                for state in (donor.state, *donor.old_states.values()):
                    if (state.epoch, state.state_hash()) == (action.epoch, action.state_hash) and peer.state is asked_state:
                        peer.finished.clear()  # they belong to the lineage that is given up
                        self._hold(peer, state, donor.machine.ancestry.short(state.state_hash()))
                        return
            self._feed(peer, FetchFailed(epoch=action.epoch, state_hash=action.state_hash))

        self._after(self.rng.uniform(0.2, 1.5), lambda: self._when_awake(peer, arrive))
