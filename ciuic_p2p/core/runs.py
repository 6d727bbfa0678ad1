"""The life of one run on one peer: who leads, who takes part, when a state is seeded or fetched, when the trainer is loaded.

Pure: `handle(event, now) -> actions`; one `Round` machine for each epoch under way. After every event `_decide` runs the
deciders in order of priority. Knows no values, no sockets, no clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from ciuic_p2p.core.ancestry import Ancestry, Moment
from ciuic_p2p.core.codec_choice import CodecChoice, Situation, Stage, choose_codec
from ciuic_p2p.core.events import (
    ContributionReady,
    DatasetWanted,
    DropRound,
    FetchFailed,
    FetchState,
    FinishRound,
    LeaseAwaited,
    LeaveRound,
    LoadTrainer,
    MessageReceived,
    OpenRound,
    PartAccumulated,
    PartPublished,
    PartRefused,
    PeerLost,
    PeerReturned,
    RecordTranscript,
    RefuseLayout,
    ResultRefused,
    ResultStored,
    RoundEvent,
    RunAction,
    RunEvent,
    RunShape,
    SeedState,
    SendMessage,
    StateHeld,
    TimePassed,
    TrainerAttached,
    TrainerLeft,
    TrainerReady,
    WorkGivenUp,
)
from ciuic_p2p.core.ledgers import NO_LEDGERS, Grant, Ledgers, UseReport, Wanted, share_out
from ciuic_p2p.core.lineage import Lineage, best_lineage, holders
from ciuic_p2p.core.messages import BUTTERFLY, Briefing, Fence, Plan, Ready, Repair, Report, Standing
from ciuic_p2p.core.newcomers import Newcomers
from ciuic_p2p.core.parts import choose_part_values
from ciuic_p2p.core.planning.correction import Correction
from ciuic_p2p.core.planning.network import Network
from ciuic_p2p.core.planning.planner import RoundToPlan, plan_round
from ciuic_p2p.core.rounds import Round
from ciuic_p2p.core.succession import next_counter, order_of_succession, term_of
from ciuic_p2p.core.topology import LEAST_PATIENCE_S, Links, Places, crosses_regions, survey_links
from ciuic_p2p.data.slots import NO_SLOTS, Slots
from ciuic_p2p.terms import PeerId, StateHash

NO_HASH = StateHash("")
ELECTED_SEED_WAIT_S = 10.0
"""How long peers without a state wait for the one among them whose turn it is to make the first."""

FETCH_AGAIN_S = 2.0
"""A state that no donor could give is asked for again after this: donors come, finish their round, or stop lying."""

MOST_EARLY_MESSAGES = 256
"""Messages of rounds whose plan has not come yet that are kept, the newest ones."""

MOST_PENDING_ROUNDS = 3
"""Rounds whose results a newcomer keeps while it fetches the state before them; then it starts again with a newer one."""


@dataclass(slots=True)
class _Trainer:
    shape: RunShape
    ready_samples: int | None = None
    ready_s: float = 0.0
    spent_epoch: int | None = None
    """The epoch of the round that this contribution was sent to; it must not enter one of another epoch."""
    counted_epoch: int | None = None
    report: UseReport = ()
    """What it used of its leases for the contribution that is ready."""
    wanted: dict[str, Wanted] = field(default_factory=dict)
    awaited: str | None = None
    """The dataset of which it waits for a lease."""


class RunMachine:
    """One run on one peer."""

    def __init__(self, me: PeerId, run: str, *, now: float, seed_wait_s: float) -> None:
        """seed_wait_s: how long to look for others' state before a trainer's values become epoch 0."""
        self.me = me
        self.run = run
        self.epoch: int | None = None
        self.state_hash: StateHash = NO_HASH
        self.samples = 0
        self.layout = ""
        self.rounds: dict[int, Round] = {}
        self.standings: dict[PeerId, Standing] = {}
        self.connected: set[PeerId] = set()
        self.links: Links = {}
        self.places: Places = {}
        self.lines_mbps: Mapping[PeerId, float] = {}
        """What each peer's own line carries, where that was measured."""
        self.cables_mbps: Mapping[tuple[str, str], float] = {}
        """What the peers of one region together get to another, where that was measured."""
        self.correction = Correction()
        """Of the planner's model, by the rounds that ended here."""
        self.samples_per_s = 0.0
        self._seed_wait_s = seed_wait_s
        self._trainer: _Trainer | None = None
        self._attached_s = now
        self._epoch_began_s = now
        self._seeding = False
        self._fetching: Lineage | None = None
        self._donors: tuple[PeerId, ...] = ()
        self._unfetchable: Lineage | None = None
        self._fetch_again_s = now
        self._finish_waiting: dict[int, FinishRound] = {}
        self._stepping: int | None = None
        self._told: Standing | None = None
        self._terms: dict[int, int] = {}
        self._abandoned: dict[int, int] = {}
        """Terms of rounds that were dropped for a state that others already have."""
        self._put_out_of: Round | None = None
        """The newest round that the others went on with alone."""
        self._recorded: set[int] = set()
        self._refused_layout = ""
        self._best_kept: Lineage | None = None
        self._best_known = False
        self._newcomers = Newcomers()
        self.ancestry = Ancestry()
        self._choice_before: CodecChoice | None = None
        """Of the newest plan, whoever led it, so that a border is the same for all leaders. So is the topology."""
        self._topology_before = BUTTERFLY
        self._early: list[tuple[PeerId, Ready | Fence | Report | Repair]] = []
        self.ledgers: Ledgers = NO_LEDGERS
        """Of the state that is held."""
        self._granted: tuple[int, Ledgers] | None = None
        """By the plan of this term, so that they are computed once."""
        self._sent: tuple[int, UseReport] = (-1, ())
        """What went with the contribution to the round of that epoch; its trainer may have left since."""

    # -- what the shell may ask ----------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return self._trainer is not None

    def trained_by(self) -> set[PeerId]:
        """Peers with a trainer of this run, this one included where it has one."""
        others = {peer for peer, s in self.standings.items() if s.training and peer in self.connected}
        return others | ({self.me} if self.training else set())

    def agreeing(self) -> tuple[PeerId, ...]:
        """Others that hold the same state."""
        mine = (self.epoch, self.state_hash)
        return tuple(sorted(peer for peer, s in self.standings.items() if (s.epoch, s.state_hash) == mine))

    def is_trained(self) -> bool:
        """Whether a next epoch is to be expected."""
        return bool(self.trained_by())

    def standing(self) -> Standing:
        return Standing(
            run=self.run,
            layout=self.layout,
            epoch=self.epoch,
            state_hash=self.state_hash,
            samples=self.samples,
            training=self.training,
            samples_per_s=self.samples_per_s,
            wanted=tuple(self._trainer.wanted[name] for name in sorted(self._trainer.wanted)) if self._trainer else (),
        )

    def granted(self) -> Ledgers:
        """Those of the state, and what the plan of the round that begins from it grants."""
        current = self.current_round()
        if current is None or current.plan.base_hash != self.state_hash or not current.plan.grants:
            return self.ledgers
        if self._granted is None or self._granted[0] != current.plan.term:
            self._granted = (current.plan.term, self.ledgers.granted(current.plan.grants))
        return self._granted[1]

    def lease_of(self, dataset: str) -> Slots:
        """What this peer's trainer may use now: not what is on its way to the others already."""
        epoch, report = self._sent
        sent = next((each.slots for each in report if each.dataset == dataset), NO_SLOTS) if epoch == self.epoch else NO_SLOTS
        return self.granted().lease_of(dataset, self.me) - sent

    def network(self) -> Network:
        """What plans are made by."""
        return Network(links=self.links, places=self.places, lines_mbps=self.lines_mbps, cables_mbps=self.cables_mbps)

    def current_round(self) -> Round | None:
        return None if self.epoch is None else self.rounds.get(self.epoch)

    def awaits(self, epoch: int, term: int) -> bool:
        """Whether a frame of a round that is not here may be of one still to be opened. Nobody will want any other."""
        return (self.epoch is None or epoch >= self.epoch) and term > self._abandoned.get(epoch, 0)

    def next_deadline_s(self) -> float | None:
        deadlines = [d for d in (r.next_deadline_s() for r in self.rounds.values()) if d is not None]
        deadlines += [d for d in (self._seed_at(), self._plan_at(), self._behind_at()) if d is not None]
        deadlines += [d for d in map(self._deserted_at, self.rounds.values()) if d is not None]
        if self._unfetchable is not None and self._fetching is None:
            deadlines.append(self._fetch_again_s)
        return min(deadlines, default=None)

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: RunEvent, now: float) -> list[RunAction]:
        return self._react(event, now) + self._decide(now)

    def handle_in_round(self, epoch: int, event: RoundEvent, now: float) -> list[RunAction]:
        """What a receiving thread did with a frame of that epoch's round."""
        current = self.rounds.get(epoch)
        if current is None:
            return []
        actions = self._filter(current.handle(event, now))
        ended = any(not isinstance(a, SendMessage) for a in actions) and (current.finished or current.left)
        return actions + (self._decide(now) if ended else [])

    def _react(self, event: RunEvent, now: float) -> list[RunAction]:
        match event:
            case MessageReceived(sender=sender, message=message):
                return self._message(sender, message, now)
            case PeerLost(peer=peer):
                self.connected.discard(peer)
                self.standings.pop(peer, None)
                self._best_known = False
                return self._in_all_rounds(event, now)
            case PeerReturned(peer=peer):
                self.connected.add(peer)
                greeting: list[RunAction] = [SendMessage(to=(peer,), message=self.standing())]
                return greeting + self._in_all_rounds(event, now)
            case TrainerAttached(shape=shape):
                self._trainer = _Trainer(shape)
                self._attached_s = now
                self._refused_layout = ""
                if self.epoch is None and self._fetching is None:
                    self.layout = shape.layout
                return []
            case DatasetWanted(wanted=wanted):
                if self._trainer is not None:
                    self._trainer.wanted[wanted.dataset] = wanted
                return []
            case LeaseAwaited(dataset=dataset):
                if self._trainer is not None:
                    self._trainer.awaited = dataset
                return []
            case TrainerReady(samples=samples, report=report):
                if self._trainer is not None:
                    self._trainer.ready_samples, self._trainer.ready_s = samples, now
                    self._trainer.report, self._trainer.awaited = report, None
                    self._trainer.spent_epoch = self._trainer.counted_epoch = None
                return []
            case TrainerLeft():
                return self._trainer_left(now)
            case StateHeld():
                return self._state_held(event, now)
            case FetchFailed(epoch=epoch, state_hash=state_hash):
                if self._fetching is not None and (self._fetching.epoch, self._fetching.state_hash) == (epoch, state_hash):
                    self._unfetchable, self._fetching = self._fetching, None
                    self._fetch_again_s = now + FETCH_AGAIN_S
                return []
            case TimePassed():
                return self._in_all_rounds(event, now)
            case PartAccumulated() | PartRefused() | PartPublished() | ResultStored() | ResultRefused() | ContributionReady():
                raise TypeError("events of one round go through handle_in_round")

    def _message(self, sender: PeerId, message: object, now: float) -> list[RunAction]:
        match message:
            case Standing():
                self.standings[sender] = message
                self._best_known = False
                return []
            case Plan():
                return self._planned(sender, message, now)
            case Briefing():
                return self._admitted(sender, message, now)
            case Ready() | Fence() | Report() | Repair():
                return self._round_message(sender, message, now)
        return []

    def _round_message(self, sender: PeerId, message: Ready | Fence | Report | Repair, now: float) -> list[RunAction]:
        """To the round of its epoch; kept for a while when the plan of that round is still on its way."""
        current = self.rounds.get(message.epoch)
        if current is not None:
            return self._filter(current.handle(MessageReceived(sender=sender, message=message), now))
        if self.epoch is None or message.epoch >= self.epoch:
            self._early = [*self._early[1 - MOST_EARLY_MESSAGES :], (sender, message)]
        return []

    def _in_all_rounds(self, event: RoundEvent, now: float) -> list[RunAction]:
        return [a for current in list(self.rounds.values()) for a in self._filter(current.handle(event, now))]

    def _filter(self, actions: list[RunAction] | list) -> list[RunAction]:  # type: ignore[type-arg]  # narrower unions come in
        """Holds back the end of a round whose base state is not here yet; forgets a round that was left."""
        passed: list[RunAction] = []
        for action in actions:
            if isinstance(action, FinishRound):
                passed += self._finish(action)
            else:
                passed.append(action)
                if isinstance(action, LeaveRound):
                    self._note_put_out(self.rounds.get(action.epoch))
                    passed += self._drop(action.epoch) + self._load_empty_handed()
        return passed

    def _note_put_out(self, left: Round | None) -> None:
        if left is not None and left.was_put_out:
            self._put_out_of = left

    def _finish(self, action: FinishRound) -> list[RunAction]:
        plan = self.rounds[action.epoch].plan
        if not action.lost and not action.repaired:
            self.correction = self.correction.add(plan.topology, plan.predicted_s / plan.correction, action.took_s)
        if (self.epoch, self.state_hash) != (action.epoch, plan.base_hash) or self._stepping is not None:
            self._finish_waiting[action.epoch] = action
            return []
        self._stepping = action.epoch
        if self._trainer is not None and action.counted:
            self._trainer.counted_epoch = action.epoch
        return [action]

    def _drop(self, epoch: int) -> list[RunAction]:
        self._finish_waiting.pop(epoch, None)
        return [DropRound(epoch=epoch)] if self.rounds.pop(epoch, None) is not None else []

    def _trainer_left(self, now: float) -> list[RunAction]:
        self._trainer = None
        self._seeding = False
        if self.epoch is None and self._fetching is None:
            self.layout = ""  # it may have been refused for it
        actions: list[RunAction] = []
        for current in list(self.rounds.values()):
            if current.contributes and self.me not in current.samples:
                actions += self._filter(current.handle(ContributionReady(samples=0), now))
        return actions

    def _state_held(self, held: StateHeld, now: float) -> list[RunAction]:
        epoch = held.epoch
        stepped = self._stepping is not None and epoch == self._stepping + 1
        given_up = self._continue_ancestry(held, stepped=stepped)
        self.epoch, self.state_hash, self.samples, self._epoch_began_s = epoch, held.state_hash, held.samples, now
        self.ledgers, self._granted = held.ledgers, None
        self._seeding, self._fetching, self._unfetchable, self._stepping = False, None, None, None
        self._best_known = False
        self._abandoned = {e: term for e, term in self._abandoned.items() if e >= epoch}
        actions: list[RunAction] = given_up
        for old in [e for e in self.rounds if e < epoch - (1 if stepped else 0)]:
            actions += self._drop(old)
        actions += self._drop_own_plan_of_another_state(epoch) + self._load_trainer(epoch)
        waiting = self._finish_waiting.pop(epoch, None)
        if waiting is not None and epoch in self.rounds:
            actions += self._finish(waiting)
        return actions

    def _drop_own_plan_of_another_state(self, epoch: int) -> list[RunAction]:
        """Made while the state that is held now was on its way, and whoever had it was not heard of: nobody would end it."""
        current = self.rounds.get(epoch)
        is_stale = current is not None and current.leader == self.me and current.plan.base_hash != self.state_hash
        return self._drop(epoch) if is_stale else []

    def _continue_ancestry(self, held: StateHeld, *, stepped: bool) -> list[RunAction]:
        """What was trained here and is not in the state that takes its place is not lost without a word."""
        moment = Moment(held.epoch, held.samples)
        if stepped:
            self.ancestry.stepped_to(held.state_hash, moment)
            return []
        common = self.ancestry.replaced_by(held.state_hash, moment, held.ancestors)
        if self.epoch is None or not self._donors or self.samples <= common.samples:
            return []
        return [WorkGivenUp(samples=self.samples - common.samples, epochs=self.epoch - common.epoch, by=self._donors[0])]

    def _load_trainer(self, epoch: int) -> list[RunAction]:
        """A contribution that was sent anywhere is used up: at most once. One that was not is kept for the next round."""
        trainer = self._trainer
        if trainer is None or trainer.ready_samples is None:
            return []
        counted = trainer.counted_epoch == epoch - 1
        if trainer.ready_samples > 0 and trainer.spent_epoch is None:
            return []
        trainer.ready_samples = trainer.spent_epoch = trainer.counted_epoch = None
        return [LoadTrainer(epoch=epoch, counted=counted)]

    def _load_empty_handed(self) -> list[RunAction]:
        """A trainer without a contribution has nothing to wait for once its round was left."""
        trainer = self._trainer
        if trainer is None or trainer.ready_samples != 0 or self.epoch is None:
            return []
        trainer.ready_samples = trainer.spent_epoch = None
        return [LoadTrainer(epoch=self.epoch, counted=False)]

    # -- plans ---------------------------------------------------------------------------------------------------------

    def _planned(self, sender: PeerId, plan: Plan, now: float) -> list[RunAction]:
        if sender != plan.contributors[0] or self.me not in (*plan.contributors, *plan.listeners):
            return []
        if not self._is_acceptable(plan):
            return []
        return self._open(Round(self.me, plan, now), now)

    def _admitted(self, sender: PeerId, message: Briefing, now: float) -> list[RunAction]:
        current = self.rounds.get(message.plan.epoch)
        if current is not None and current.plan.term == message.plan.term:
            return self._filter(current.handle(MessageReceived(sender=sender, message=message), now))
        if self.me not in (*message.listeners, *message.plan.contributors) or not self._is_acceptable(message.plan):
            return []
        return self._open(Round.enter(self.me, message, now), now)

    def _is_acceptable(self, plan: Plan) -> bool:
        """Of this lineage or a better one, and of a higher term than what is under way. What has ended here stays ended."""
        current, best = self.rounds.get(plan.epoch), self._best()
        if current is not None and current.finished and current.plan.base_hash == plan.base_hash:
            return False
        is_best = best is not None and best.state_hash == plan.base_hash
        if plan.run != self.run or plan.base_hash == (current.plan.base_hash if current is not None else None):
            return current is not None and plan.run == self.run and plan.term > current.plan.term and not self._was_lost(plan)
        return is_best or self.epoch is None or plan.epoch > self.epoch or plan.base_hash == self.state_hash

    def _was_lost(self, plan: Plan) -> bool:
        """Whether its leader was taken out of the round under way: that one ends without it, and does not begin anew."""
        current = self.rounds.get(plan.epoch)
        return current is not None and not current.left and plan.contributors[0] in current.lost

    def _open(self, opened: Round, now: float) -> list[RunAction]:
        epoch, plan = opened.plan.epoch, opened.plan
        self._choice_before = CodecChoice(codec=plan.codec, lossless_level=plan.lossless_level, reason=plan.reason)
        self._topology_before = plan.topology
        actions = self._drop(epoch)
        self.rounds[epoch] = opened
        self._terms[epoch] = max(self._terms.get(epoch, 0), opened.plan.term)
        actions.append(OpenRound(epoch=epoch, contributes=opened.contributes and self.training))
        early = [(sender, message) for sender, message in self._early if message.epoch == epoch]
        self._early = [pair for pair in self._early if pair[1].epoch > epoch]
        for sender, message in early:
            actions += self._filter(opened.handle(MessageReceived(sender=sender, message=message), now))
        return actions

    # -- deciders, in order of priority --------------------------------------------------------------------------------

    def _decide(self, now: float) -> list[RunAction]:
        actions = self._refuse_layout()
        actions += self._seed(now)
        actions += self._catch_up(now)
        actions += self._stop_listening(now)
        actions += self._plan(now)
        actions += self._admit()
        actions += self._contribute(now)
        actions += self._record()
        return actions + self._tell()

    def _best(self) -> Lineage | None:
        """Asked for by several deciders after every event, so it is kept until a standing changes."""
        if not self._best_known:
            self._best_kept = best_lineage((self.standing(), *self.standings.values()))
            self._best_known = True
        return self._best_kept

    def _refuse_layout(self) -> list[RunAction]:
        best = self._best()
        if self._trainer is None or best is None or self.epoch is not None:
            return []
        theirs = next(s.layout for s in self.standings.values() if (s.epoch, s.state_hash) == (best.epoch, best.state_hash))
        if theirs in (self._trainer.shape.layout, self._refused_layout):
            return []
        self._refused_layout = theirs
        return [RefuseLayout(theirs=theirs)]

    def _seed_at(self) -> float | None:
        if self.epoch is not None or self._trainer is None or self._seeding or self._best() is not None:
            return None
        waiting = [p for p, s in self.standings.items() if s.training]
        first = order_of_succession(self.run, 0, (self.me, *waiting))[0] == self.me
        return self._attached_s + self._seed_wait_s + (0.0 if first else ELECTED_SEED_WAIT_S)

    def _seed(self, now: float) -> list[RunAction]:
        at = self._seed_at()
        if at is None or now < at:
            return []
        self._seeding = True
        return [SeedState()]

    def _behind_at(self) -> float | None:
        """When a round that does not end is given up for the state that others already have."""
        if self.epoch is None or self._fetching is not None:
            return None
        current, best = self.rounds.get(self.epoch), self._best()
        if current is None or current.finished or best is None or best.epoch <= self.epoch:
            return None
        return max(current.progress_s, self._epoch_began_s) + 2 * current.plan.patience_s

    def _catch_up(self, now: float) -> list[RunAction]:
        """Fetches the best state that others hold when this peer cannot get there by itself."""
        if self._unfetchable is not None and now >= self._fetch_again_s:
            self._unfetchable = None
        best = self._best()
        if best is None or self._stepping is not None or best in (self._fetching, self._unfetchable):
            return []
        if self._fetching is not None:
            if 0 <= best.epoch - self._fetching.epoch < MOST_PENDING_ROUNDS:
                return []
        elif not self._is_behind(best, now):
            return []
        actions: list[RunAction] = []
        for stale in [r for e, r in self.rounds.items() if e < best.epoch or not self._leads_on(best, r.plan)]:
            self._abandoned[stale.plan.epoch] = stale.term
            actions += self._drop(stale.plan.epoch)
        self._fetching = best
        self._donors = tuple(p for p in holders(best, self.standings) if p in self.connected)
        return [*actions, FetchState(epoch=best.epoch, state_hash=best.state_hash, donors=self._donors)]

    def _stop_listening(self, now: float) -> list[RunAction]:
        """Forgets rounds that nobody will end, so that this peer may plan that epoch itself: they left it, or died in it."""
        deserted = []
        for epoch, current in self.rounds.items():
            at = self._deserted_at(current)
            if at is not None and now >= at:
                deserted.append(epoch)
        return [action for epoch in deserted for action in self._drop(epoch)]

    def _deserted_at(self, current: Round) -> float | None:
        """When a round that this peer only listens to is given up; None while a member is there that trains.

        Members whose trainers have left may still have a result under way.
        """
        of_another_state = current.plan.epoch == self.epoch and current.plan.base_hash != self.state_hash
        if current.is_member or (current.finished and not of_another_state):
            return None
        here = [p for p in current.members() if p in self.connected]
        if any(p in self.standings and self.standings[p].training for p in here):
            return None
        return current.began_s + (2 * current.plan.patience_s if here else 0.0)

    def _leads_on(self, best: Lineage, plan: Plan) -> bool:
        """Whether a plan of that epoch or a later one is of the best state's lineage, as far as can be known."""
        if plan.epoch == best.epoch:
            return plan.base_hash == best.state_hash
        return self.epoch is None or self.epoch < best.epoch

    def _is_behind(self, best: Lineage, now: float) -> bool:
        if self.epoch is None:
            return not self._seeding and self.training and not self._refused_layout
        if best.state_hash == self.state_hash:
            return False
        if best.epoch <= self.epoch:
            return True
        current = self.rounds.get(self.epoch)
        if current is None or current.needs_the_lost() or best.epoch > self.epoch + 1 or self._is_passed_by(current):
            return True
        at = self._behind_at()
        return at is not None and now >= at

    def _is_passed_by(self, current: Round) -> bool:
        """Whether a contributor that is waited for came past this epoch by another round, before it heard of this one."""
        epoch = current.plan.epoch
        return any(s.epoch is not None and s.epoch > epoch and current.waits_for(p) for p, s in self.standings.items())

    def _candidates(self) -> tuple[PeerId, ...]:
        """Peers that could contribute to this epoch, in the order of succession."""
        if self.epoch is None:
            return ()
        mine = Lineage(self.epoch, self.state_hash, self.samples)
        equals = [p for p in holders(mine, self.standings) if self.standings[p].training and p in self.connected]
        return order_of_succession(self.run, self.epoch, [*equals, *([self.me] if self.training else [])])

    def _plan_at(self) -> float | None:
        """When this peer issues the plan of its epoch; None when it is not its turn, or there is one."""
        best = self._best()
        if self._trainer is None or self.epoch is None or self._stepping is not None or self.epoch in self.rounds:
            return None
        if best is None or best.state_hash != self.state_hash:
            return None
        at_least_s = self._others_end_by_s()
        at = self._turn_at(self._trainer)
        return at if at is None else max(at, at_least_s)

    def _others_end_by_s(self) -> float:
        """Who was put out of this epoch's round waits for what the others make of it, while they are at it."""
        round_ = self._put_out_of
        if round_ is None or (round_.plan.epoch, round_.plan.base_hash) != (self.epoch, self.state_hash):
            return 0.0
        at_it = any(peer in self.connected for peer in round_.members() if peer != self.me)
        return round_.ends_by_s() if at_it else 0.0

    def _turn_at(self, trainer: _Trainer) -> float | None:
        """When it is this peer's turn to plan, by the order of succession."""
        place = self._candidates().index(self.me)
        is_training = trainer.ready_samples is None and not self._is_starved(trainer)
        if place == 0 and len(self._candidates()) == 1 and self._behind() and is_training:
            return None  # alone it needs no plan before its inner steps are done; until then others may have arrived
        if place == 0:
            return self._epoch_began_s + self._arrival_wait_s(trainer)
        if trainer.ready_samples is None:
            return None
        return max(trainer.ready_s, self._epoch_began_s) + place * LEAST_PATIENCE_S

    def _arrival_wait_s(self, trainer: _Trainer) -> float:
        """How long the leader waits with its plan for those of the round before that are about to get here.

        For contributors a patience; for listeners, who become contributors that way, until the local inner steps are done.
        """
        assert self.epoch is not None
        hold_s = self._newcomers.hold_s(self._behind(), self.epoch, trainer.shape.count)
        before = self.rounds.get(self.epoch - 1)
        arriving = self._arriving(before) if before is not None else set()
        if before is None or not arriving:
            return hold_s
        if trainer.ready_samples is not None and not arriving & set(before.members()):
            return max(hold_s, trainer.ready_s - self._epoch_began_s)
        return max(hold_s, before.plan.patience_s)

    def _behind(self) -> set[PeerId]:
        """Peers that train this run and do not hold the state of this epoch (yet)."""
        return {
            p
            for p, s in self.standings.items()
            if s.training and p in self.connected and s.layout == self.layout and s.state_hash != self.state_hash
        }

    def _arriving(self, before: Round) -> set[PeerId]:
        """Peers of the round before that live and have not said yet that they finished it."""
        behind = {p for p, s in self.standings.items() if s.epoch == before.plan.epoch and s.training}
        return {p for p in (*before.members(), *before.listeners) if p in behind and p in self.connected}

    def _plan(self, now: float) -> list[RunAction]:
        at = self._plan_at()
        if at is None or now < at:
            return []
        assert self._trainer is not None
        assert self.epoch is not None
        self._newcomers.go_on_without(self.epoch)
        plan = self._make_plan(self._trainer.shape, self.epoch)
        others = tuple(p for p in (*plan.contributors, *plan.listeners) if p != self.me)
        told: list[RunAction] = [SendMessage(to=others, message=plan)] if others else []
        return told + self._open(Round(self.me, plan, now), now)

    def _make_plan(self, shape: RunShape, epoch: int) -> Plan:
        candidates = self._candidates()
        contributors = (self.me, *(p for p in candidates if p != self.me))
        listeners = self._others_of_run(contributors)
        choice = self._choose_codec(shape, contributors)
        planned = plan_round(
            RoundToPlan(
                contributors=contributors,
                listeners=listeners,
                count=shape.count,
                encoded_bytes=shape.encoded_bytes[choice.codec],
                codec=choice.codec,
                wanted=shape.topology,
                previous=self._topology_before,
                correction=self.correction,
            ),
            self.network(),
        )
        return Plan(
            run=self.run,
            epoch=epoch,
            term=term_of(next_counter(self._terms.get(epoch, 0)), self.run, epoch, self.me),
            base_hash=self.state_hash,
            contributors=contributors,
            listeners=listeners,
            spans=planned.spans,
            topology=planned.topology,
            groups=planned.groups,
            count=shape.count,
            parameter_count=shape.parameter_count,
            part_values=choose_part_values(shape.count, len(contributors), planned.values_per_s),
            codec=choice.codec,
            lossless_level=choice.lossless_level,
            reason=f"{choice.reason}; {planned.reason}",
            outer_learning_rate=shape.outer_learning_rate,
            outer_momentum=shape.outer_momentum,
            predicted_s=planned.predicted_s,
            correction=planned.correction,
            patience_s=planned.patience_s,
            grants=self._grant(contributors, listeners),
        )

    def _grant(self, contributors: tuple[PeerId, ...], listeners: tuple[PeerId, ...]) -> tuple[Grant, ...]:
        """To all that train, those on their way to this state included."""
        standings = {peer: self.standings[peer] for peer in (*contributors, *listeners) if peer in self.standings}
        standings = {self.me: self.standing(), **standings}
        wanted = {peer: standing.wanted for peer, standing in standings.items() if standing.training}
        return share_out(wanted, {peer: standing.samples_per_s for peer, standing in standings.items()}, self.ledgers)

    def _choose_codec(self, shape: RunShape, contributors: tuple[PeerId, ...]) -> CodecChoice:
        return choose_codec(
            Situation(
                policy=shape.codec_policy,
                stage=Stage.PSEUDO_GRADIENTS,
                count=shape.count,
                encoded_bytes=shape.encoded_bytes,
                links=survey_links(contributors, self.links, self.places),
                crosses_regions=crosses_regions(contributors, self.places),
                previous=self._choice_before,
            )
        )

    def _others_of_run(self, known: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        mine = {p for p, s in self.standings.items() if s.layout in ("", self.layout)}
        return tuple(sorted(p for p in mine if p in self.connected and p not in known))

    def _admit(self) -> list[RunAction]:
        current = self.current_round()
        if current is None or current.leader != self.me:
            return []
        known = (*current.members(), *sorted(current.listeners))
        return self._filter(current.admit(self._others_of_run(known)))

    def _contribute(self, now: float) -> list[RunAction]:
        current, trainer = self.current_round(), self._trainer
        if current is None or not current.contributes or self.me in current.samples:
            return []
        if current.plan.base_hash != self.state_hash or self._stepping is not None:
            return []
        if trainer is None:
            return self._filter(current.handle(ContributionReady(samples=0), now))
        if self._is_starved(trainer):
            return self._filter(current.handle(ContributionReady(samples=0), now))
        if trainer.ready_samples is None or trainer.spent_epoch not in (None, current.plan.epoch):
            return []
        if not self._may_report(trainer.report, current.plan.grants):
            return self._filter(current.handle(ContributionReady(samples=0), now))
        if not self.granted().covers(self.me, trainer.report):
            trainer.ready_samples = 0  # it was given up meanwhile, and others train on the same samples
        if trainer.ready_samples > 0:
            trainer.spent_epoch = current.plan.epoch
            self._sent = (current.plan.epoch, trainer.report)
        return self._filter(current.handle(ContributionReady(samples=trainer.ready_samples), now))

    def _is_starved(self, trainer: _Trainer) -> bool:
        """It does nothing until it is given samples, by a plan that knows that it wants them."""
        awaited = trainer.awaited
        return trainer.ready_samples is None and awaited is not None and not self.lease_of(awaited).count

    @staticmethod
    def _may_report(report: UseReport, grants: tuple[Grant, ...]) -> bool:
        """Whether this round carries reports of these datasets; else the contribution waits for one that does."""
        return {each.dataset for each in report} <= {grant.dataset for grant in grants}

    def _record(self) -> list[RunAction]:
        """As leader of a finished round: writes its transcript once every member has said where it stands."""
        if self.epoch is None or self.epoch - 1 in self._recorded:
            return []
        before = self.rounds.get(self.epoch - 1)
        if before is None or not before.finished or before.leader != self.me or self._arriving(before):
            return []
        self._recorded = {self.epoch - 1}
        return [
            RecordTranscript(
                epoch=self.epoch - 1,
                contributors=before.counted_contributors(),
                lost=tuple(sorted(before.lost)),
                state_hash=self.state_hash,
                to=tuple(p for p in before.audience() if p in self.connected),
            )
        ]

    def _tell(self) -> list[RunAction]:
        standing = self.standing()
        if self._told is not None and dataclasses.replace(standing, samples_per_s=self._told.samples_per_s) == self._told:
            return []
        self._told = standing
        return [SendMessage(to=tuple(sorted(self.connected)), message=standing)] if self.connected else []
