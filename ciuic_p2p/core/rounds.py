"""One round on one peer: sums up the trees of the spans, results down, and what happens when somebody is lost meanwhile.

Pure: `handle(event, now) -> actions`, and two questions that receiving threads ask about a frame. Knows no values, no sockets,
no clock. docs/protocol.md tells the same in prose. The invariants, which tests/sim holds in virtual time:

1. A part has one result. It is made by its owner alone; after an owner is lost a new one makes it only when no member that
   reported to the fence holds the lost owner's, and who reported takes no result of a lost owner any more, from whomever it
   comes (a promise as in Paxos).
2. A contribution counts at most once in a part, with one weight.
3. Every survivor's contribution is in every part; the weights are those of the peers whose contribution to it arrived whole.
4. Who carries others' sums or results may be lost like anyone: its parts then go to their owners directly, under a new term,
   and nothing of the old term enters a sum any more.
5. A round ends: every step without progress takes a member out, and after `GIVE_UP_PATIENCES` it is left.
"""

from __future__ import annotations

from ciuic_p2p.core.events import (
    AccumulateOwn,
    ContributionReady,
    FinishRound,
    ForwardPart,
    LeaveRound,
    MessageReceived,
    PartAccumulated,
    PartPublished,
    PartRefused,
    PeerLost,
    PeerReturned,
    PublishPart,
    ResultRefused,
    ResultStored,
    RoundAction,
    RoundEvent,
    SendMessage,
    SendPart,
    SendResult,
    TimePassed,
    Verdict,
)
from ciuic_p2p.core.messages import Assignment, Briefing, Fence, Plan, Ready, Repair, Report
from ciuic_p2p.core.reduction import Reduction
from ciuic_p2p.core.rollcall import RollCall, count_progress, has, holds, name_culprit, pack_parts, reassign
from ciuic_p2p.core.succession import next_counter, term_of
from ciuic_p2p.terms import PeerId

GIVE_UP_PATIENCES = 20
"""After this many patiences since everyone was ready, a round that still moves but never ends is left."""

STANDSTILLS = 2
"""Roll calls in a row at which nothing had moved: after the first one what was lost on its way is sent again."""

SUCCESSOR_PATIENCES = 3
"""A successor waits this many patiences (and one more per place in the order) for a leader that lives but does nothing."""

MOST_MISSING = 4096
"""Entries of Report.missing; enough to name a culprit."""


class Round:
    """The machine. `me` may be a contributor or a listener of the plan."""

    def __init__(self, me: PeerId, plan: Plan, now: float) -> None:
        self.me = me
        self.plan = plan
        self.reduction = Reduction(me, plan)
        self.parts = self.reduction.parts
        self.term = plan.term
        self.leader = plan.contributors[0]
        self.began_s = now
        self._is_planned = me in plan.contributors
        self.listeners: set[PeerId] = set(plan.listeners)
        self.lost: set[PeerId] = set()
        self.excused: set[PeerId] = set()
        self._gone: set[PeerId] = set()
        self._waited_for: frozenset[PeerId] | None = None
        self.samples: dict[PeerId, int] = {}
        """What each contributor said with Ready."""
        self.owner = self.reduction.owner
        self.owner_term = self.reduction.owner_term
        self.resolved: set[int] = set()
        self.repaired: set[int] = set()
        self.finished = False
        self.left = False
        self.was_put_out = False
        """The others went on without this peer."""
        self._storing: set[int] = set()
        self._sent_contribution = False
        self._roll_call: RollCall | None = None
        self._report_due: tuple[PeerId, int] | None = None
        self._first_ready_s: float | None = None
        self._all_ready_s: float | None = None
        self.progress_s = now
        self.progress_seen = -1
        self._standstills = 0
        self._gaps: set[tuple[int, PeerId]] = set()
        """(part, who is to send a payload or the result) that were missing at the roll call before."""

    # -- what others may ask -------------------------------------------------------------------------------------------

    @property
    def contributes(self) -> bool:
        """Whether the local trainer's contribution is wanted (still)."""
        return self.is_member and self.me not in self.excused

    @property
    def is_member(self) -> bool:
        """A contributor by plan that was not lost; asked for after every event."""
        return self._is_planned and self.me not in self.lost

    @property
    def contribution_sent(self) -> bool:
        return self._sent_contribution

    def members(self) -> list[PeerId]:
        """Contributors that are not lost, in the order of succession."""
        return [peer for peer in self.plan.contributors if peer not in self.lost]

    def audience(self) -> tuple[PeerId, ...]:
        """All others: members, excused ones and listeners."""
        return tuple(p for p in (*self.members(), *sorted(self.listeners)) if p != self.me)

    def ends_by_s(self) -> float:
        """When the others are done with a round that went on without this peer, whatever happens to them."""
        return self.progress_s + GIVE_UP_PATIENCES * self.plan.patience_s

    def waits_for(self, peer: PeerId) -> bool:
        """As a member, who hears all the others' Ready: whether that contributor has not said it, nor was given up for it."""
        return self.is_member and peer not in self.samples and peer in self._expected()

    def needs_the_lost(self) -> bool:
        """A part's result is not here, who makes it or brings it is lost, and nobody was given it instead."""
        if self.finished:
            return False
        gone = self.lost | self._gone
        return any(
            self.owner[part] in self.lost or self.reduction.is_cut_off(part, gone)
            for part in range(len(self.parts))
            if part not in self.resolved and part not in self._storing
        )

    def next_deadline_s(self) -> float | None:
        """When TimePassed is wanted next; None when only events matter."""
        if self.finished or self.left or not self.is_member:
            return None
        if self._roll_call is not None:
            return self._roll_call.deadline_s
        if self._all_ready_s is not None:
            return min(self.progress_s + self._waits() * self.plan.patience_s, self._give_up_s())
        if self._first_ready_s is not None and self.me in self.samples:
            return self._straggler_deadline_s()
        return None

    # -- frames: asked from receiving threads, under the owner's lock ---------------------------------------------------

    def judge_part(self, sender: PeerId, part: int, term: int) -> Verdict:
        """May this contribution be added? ACCEPT reserves its place: report PartAccumulated or PartRefused."""
        if self.left or self.finished or part >= len(self.parts):
            return Verdict.IGNORE
        if term > self.owner_term[part] or (term > self.term):
            return Verdict.LATER
        if term < self.owner_term[part] or part in self.resolved or part in self._storing:
            return Verdict.IGNORE
        if sender not in self.reduction.wanted(part, self._expected()):
            return Verdict.IGNORE
        tally = self.reduction.tally(part)
        if tally.closed or tally.knows(sender):
            return Verdict.IGNORE
        tally.adding.add(sender)
        return Verdict.ACCEPT

    def judge_result(self, sender: PeerId, part: int, term: int) -> Verdict:
        """May this result be stored? ACCEPT reserves its place: report ResultStored or ResultRefused."""
        if self.left or self.finished or part >= len(self.parts) or sender in self.lost:
            return Verdict.IGNORE
        if term > self.owner_term[part]:
            return Verdict.LATER
        if term < self.owner_term[part] or part in self.resolved or part in self._storing or self.owner[part] in self.lost:
            return Verdict.IGNORE
        if sender not in (self.owner[part], self.reduction.parent_of(part, self.me)):
            return Verdict.IGNORE
        self._storing.add(part)
        return Verdict.ACCEPT

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: RoundEvent, now: float) -> list[RoundAction]:
        """The one entry. After the round is finished or left it still answers fences, so that others can end it."""
        match event:
            case MessageReceived(sender=sender, message=message):
                return self._message(sender, message, now)
            case PeerLost(peer=peer):
                return self._peer_lost(peer, now)
            case PeerReturned(peer=peer):
                self._gone.discard(peer)
                return self._greet(peer)
            case ContributionReady(samples=samples):
                return self._contribute(samples, now)
            case PartAccumulated(sender=sender, part=part, term=term):
                return self._payload_taken(sender, part, term, refused=False)
            case PartRefused(sender=sender, part=part, term=term):
                return self._payload_taken(sender, part, term, refused=True)
            case PartPublished(part=part):
                self.resolved.add(part)
                return [*self._send_result(part), *self._result_arrived(now)]
            case ResultStored(part=part):
                self._storing.discard(part)
                self.resolved.add(part)
                return [*self._send_result(part), *self._result_arrived(now)]
            case ResultRefused(part=part):
                self._storing.discard(part)
                return self._report_if_due()
            case TimePassed():
                return self._time_passed(now)

    def _message(self, sender: PeerId, message: object, now: float) -> list[RoundAction]:
        match message:
            case Ready(plan_term=self.plan.term):
                return self._ready(sender, message.samples, now)
            case Briefing():
                return self._briefed(sender, message, now)
            case Fence():
                return self._fenced(sender, message, now)
            case Report():
                return self._reported(sender, message, now)
            case Repair():
                return self._repair(sender, message, now)
        return []

    # -- contributions -------------------------------------------------------------------------------------------------

    def _expected(self) -> frozenset[PeerId]:
        """The contributors that an owner waits for; asked for at every frame, so it is kept until a loss changes it."""
        if self._waited_for is None:
            gone = self.lost | self.excused | {p for p, samples in self.samples.items() if samples == 0}
            self._waited_for = frozenset(p for p in self.plan.contributors if p not in gone)
        return self._waited_for

    def _contribute(self, samples: int, now: float) -> list[RoundAction]:
        """Sends every part on its way, one part of each span in turn, so that no owner waits for the others' spans."""
        if not self.contributes or self.me in self.samples or self.finished or self.left:
            return []
        actions: list[RoundAction] = []
        others = tuple(p for p in self.members() if p != self.me)
        if others:
            actions.append(SendMessage(to=others, message=self._own_ready(samples)))
        if samples > 0:
            self._sent_contribution = True
            actions += [self._contribute_part(part) for part in self._interleaved() if part not in self.resolved]
        return actions + self._ready(self.me, samples, now)

    def _own_ready(self, samples: int) -> Ready:
        return Ready(run=self.plan.run, epoch=self.plan.epoch, plan_term=self.plan.term, samples=samples)

    def _contribute_part(self, part: int) -> RoundAction:
        term = self.owner_term[part]
        if self.reduction.adds_up(part):
            self.reduction.tally(part).adding.add(self.me)
            return AccumulateOwn(epoch=self.plan.epoch, part=part, term=term)
        return SendPart(epoch=self.plan.epoch, part=part, to=self._next_of(part), term=term)

    def _next_of(self, part: int) -> PeerId:
        return self.reduction.parent_of(part, self.me) or self.owner[part]

    def _interleaved(self) -> list[int]:
        """Part numbers: the first of each owner, then the second of each, starting behind this peer's own span."""
        by_owner: dict[PeerId, list[int]] = {}
        for number, owner in enumerate(self.owner):
            by_owner.setdefault(owner, []).append(number)
        owners = [peer for peer in self.plan.contributors if peer in by_owner]
        first = owners.index(self.me) + 1 if self.me in owners else 0
        owners = owners[first:] + owners[:first]
        longest = max((len(numbers) for numbers in by_owner.values()), default=0)
        return [by_owner[o][i] for i in range(longest) for o in owners if i < len(by_owner[o])]

    def _ready(self, sender: PeerId, samples: int, now: float) -> list[RoundAction]:
        if sender not in self.plan.contributors or sender in self.samples:
            return []
        self.samples[sender] = samples
        if samples == 0:
            self._expectation_changed()
        if self._first_ready_s is None:
            self._first_ready_s = now
        self._note_readiness(now)
        if samples > 0:
            return self._end_if_resolved(now)
        return self._leave_if_empty() or self._close_all_complete() + self._end_if_resolved(now)

    def _leave_if_empty(self) -> list[RoundAction]:
        if self._expected() or self.finished or self.left:
            return []
        return self._leave("nobody contributes")

    def _leave(self, reason: str) -> list[RoundAction]:
        self.left = True
        return [LeaveRound(epoch=self.plan.epoch, reason=reason)]

    def _note_readiness(self, now: float) -> None:
        if self._all_ready_s is None and all(p in self.samples for p in self._expected()):
            self._all_ready_s = self.progress_s = now

    def _payload_taken(self, sender: PeerId, part: int, term: int, *, refused: bool) -> list[RoundAction]:
        if term != self.owner_term[part]:
            return []  # a repair came meanwhile: it went into a sum that nobody uses
        tally = self.reduction.tally(part)
        tally.adding.discard(sender)
        (tally.refused if refused else tally.added).add(sender)
        return self._close_if_complete(part)

    def _close_if_complete(self, part: int) -> list[RoundAction]:
        """Closes a part once everyone it waits for was added (or refused): no later contribution can enter it."""
        if self.left or part in self.resolved or part in self._storing or not self.reduction.adds_up(part):
            return []
        tally, wanted = self.reduction.tally(part), self.reduction.wanted(part, self._expected())
        if tally.closed or not tally.has_all(wanted):
            return []
        if self.owner[part] == self.me:
            tally.closed = True
            return [PublishPart(epoch=self.plan.epoch, part=part, term=self.owner_term[part])]
        if not tally.added:
            return []
        tally.closed = True
        return [self._forward(part)]

    def _forward(self, part: int) -> RoundAction:
        return ForwardPart(epoch=self.plan.epoch, part=part, to=self._next_of(part), term=self.owner_term[part])

    def _close_all_complete(self) -> list[RoundAction]:
        return [action for part in range(len(self.parts)) for action in self._close_if_complete(part)]

    def _expectation_changed(self) -> None:
        self._waited_for = None
        self.reduction.expectation_changed()

    # -- results and the end -------------------------------------------------------------------------------------------

    def _receivers(self, part: int) -> tuple[PeerId, ...]:
        """Who gets the part's result from here: those below, and the listeners from the owner."""
        below = tuple(p for p in self.reduction.children_of(part) if p not in self.lost)
        if self.owner[part] != self.me:
            return below
        return (*below, *sorted(self.listeners - {self.me, *below}))

    def _send_result(self, part: int) -> list[RoundAction]:
        to = self._receivers(part)
        return [SendResult(epoch=self.plan.epoch, part=part, to=to, term=self.owner_term[part])] if to else []

    def _result_arrived(self, now: float) -> list[RoundAction]:
        self.progress_s = now
        return self._report_if_due() + self._end_if_resolved(now)

    def _end_if_resolved(self, now: float) -> list[RoundAction]:
        if self.finished or self.left or len(self.resolved) < len(self.parts):
            return []
        if not self.parts and not all(p in self.samples for p in self._expected()):
            return []  # a model without values: the round is only the agreement that everyone got here
        self.finished = True
        counted = self._sent_contribution and self.me not in self.lost | self.excused
        return [
            FinishRound(
                epoch=self.plan.epoch,
                contributors=self.counted_contributors(),
                lost=tuple(sorted(self.lost)),
                counted=counted,
                repaired=len(self.repaired),
                took_s=now - (self.began_s if self._all_ready_s is None else self._all_ready_s),
            )
        ]

    def counted_contributors(self) -> tuple[tuple[PeerId, int], ...]:
        """(peer, samples) of the members whose contribution is whole in the result."""
        return tuple((p, self.samples.get(p, 0)) for p in self.plan.contributors if p in self._expected())

    # -- losses --------------------------------------------------------------------------------------------------------

    def _peer_lost(self, peer: PeerId, now: float) -> list[RoundAction]:
        self.listeners.discard(peer)
        self._gone.add(peer)
        if peer not in self.members() or self.left or self.finished or self.me not in self.members():
            return []
        heirs = [p for p in self.members() if p not in self._gone]
        if self.leader == self.me or (self.leader in self._gone and heirs[0] == self.me):
            return self._fence(self._gone & set(self.members()), set(), now)
        return []

    def _fence(self, lost: set[PeerId], excused: set[PeerId], now: float) -> list[RoundAction]:
        """Takes (or keeps) the lead with a higher term."""
        self.leader = self.me
        self.term = term_of(next_counter(self.term), self.plan.run, self.plan.epoch, self.me)
        others = [p for p in self.members() if p not in lost and p != self.me]
        fence = Fence(
            run=self.plan.run,
            epoch=self.plan.epoch,
            term=self.term,
            plan_term=self.plan.term,
            lost=tuple(sorted(self.lost | lost)),
            excused=tuple(sorted(self.excused | excused)),
        )
        told = (*others, *sorted(self.listeners - lost), *sorted(excused - set(others) - {self.me}))
        actions: list[RoundAction] = [SendMessage(to=told, message=fence)] if told else []
        actions += self._take_losses(fence, now)
        self._roll_call = RollCall(waiting=set(others), deadline_s=now + self.plan.patience_s)
        self._report_due = (self.me, self.term)
        return actions + self._report_if_due(now)

    def _last_fence(self) -> Fence:
        """For one that was lost and is back: it missed the word that the others went on without it."""
        return Fence(
            run=self.plan.run,
            epoch=self.plan.epoch,
            term=self.term,
            plan_term=self.plan.term,
            lost=tuple(sorted(self.lost)),
            excused=tuple(sorted(self.excused)),
        )

    def _take_losses(self, fence: Fence, now: float) -> list[RoundAction]:
        self.listeners -= set(fence.lost) - self.lost  # one lost before, and back since, listens on
        self.lost |= set(fence.lost)
        self.excused |= set(fence.excused)
        self._expectation_changed()
        self.progress_s = now
        self._note_readiness(now)
        return self._leave_if_empty() or self._close_all_complete()

    def _fenced(self, sender: PeerId, fence: Fence, now: float) -> list[RoundAction]:
        if fence.plan_term != self.plan.term or fence.term <= self.term or sender not in self.members() or self.left:
            return []
        self.term = fence.term
        self.leader = sender
        self._roll_call = None
        if self.me in fence.lost:
            if self.finished:
                return []
            self.was_put_out, self.progress_s = True, now
            return self._leave("the others went on without this peer")
        actions = self._take_losses(fence, now)
        if self.me in self.plan.contributors:
            self._report_due = (sender, fence.term)
            actions += self._report_if_due(now)
        return actions

    def _report_if_due(self, now: float | None = None) -> list[RoundAction]:
        """Reports once nothing of a lost owner is half stored: what the report denies must never come true later."""
        if self._report_due is None or any(self.owner[part] in self.lost for part in self._storing):
            return []
        to, term = self._report_due
        self._report_due = None
        report = self._report(term)
        reminders = self._remind_suppliers(report)
        if to != self.me:
            return [SendMessage(to=(to,), message=report), *reminders]
        if self._roll_call is not None:
            self._roll_call.reports[self.me] = report
        return reminders + self._close_roll_call(self.progress_s if now is None else now)

    def _remind_suppliers(self, report: Report) -> list[RoundAction]:
        """What was missing at two roll calls in a row was lost on its way: who had sent it is told, and sends it again."""
        gaps = set(report.missing)
        for part in range(len(self.parts)):
            if part not in self.resolved and not self.finished:
                gaps.add((part, self._next_of(part)))
        lasting, self._gaps = gaps & self._gaps, gaps
        asked = {peer for _, peer in lasting} - {self.me, self.leader} - self.lost
        return [SendMessage(to=tuple(sorted(asked)), message=report)] if asked else []

    def _report(self, term: int) -> Report:
        expected = self._expected()
        missing = [
            (part, peer)
            for part in range(len(self.parts))
            if part not in self.resolved and self.reduction.adds_up(part)
            for peer in self.reduction.missing(part, expected)
        ]
        return Report(
            run=self.plan.run,
            epoch=self.plan.epoch,
            term=term,
            finished=self.finished,
            resolved=pack_parts(self.resolved, len(self.parts)),
            missing=tuple(missing[:MOST_MISSING]),
        )

    # -- the leader's roll call ----------------------------------------------------------------------------------------

    def _reported(self, sender: PeerId, report: Report, now: float) -> list[RoundAction]:
        call = self._roll_call
        if call is not None and report.term == self.term and sender in call.waiting:
            call.waiting.discard(sender)
            call.reports[sender] = report
            return self._close_roll_call(now)
        return self._fill_gaps(sender, report)

    def _close_roll_call(self, now: float) -> list[RoundAction]:
        call = self._roll_call
        if call is None or call.waiting or self.me not in call.reports:
            return []
        self._roll_call = None
        self.progress_s = now
        call.reports[self.me] = self._report(self.term)  # it may hold more by now, or be through
        reports = {peer: call.reports[peer] for peer in self.members() if peer in call.reports}
        assignments = reassign(self.owner, self.lost, self.reduction.cut_off(self.lost), self.excused, reports)
        if assignments:
            repair = Repair(run=self.plan.run, epoch=self.plan.epoch, term=self.term, assignments=tuple(assignments))
            told = self.audience()
            send: list[RoundAction] = [SendMessage(to=told, message=repair)] if told else []
            return send + self._apply_repair(repair, now)
        if any(owner in self.lost and not all(has(r, part) for r in reports.values()) for part, owner in enumerate(self.owner)):
            return self._end_if_resolved(now)  # only a finished member has it: the others take that one's state
        return self._judge_progress(call.reports, now)

    def _judge_progress(self, reports: dict[PeerId, Report], now: float) -> list[RoundAction]:
        """After a roll call without losses: when nothing moved since the last one, somebody must go."""
        seen = count_progress(reports)
        moved, self.progress_seen = seen > self.progress_seen, max(seen, self.progress_seen)
        self._standstills = 0 if moved else self._standstills + 1
        if self._standstills < STANDSTILLS or any(report.finished for report in reports.values()):
            return self._remind(reports)
        culprit = name_culprit(self.reduction, reports)
        if culprit is None:
            return []
        return self._fence(set(), {culprit.peer}, now) if culprit.only_excused else self._fence({culprit.peer}, set(), now)

    def _remind(self, reports: dict[PeerId, Report]) -> list[RoundAction]:
        return [action for sender, report in reports.items() if sender != self.me for action in self._fill_gaps(sender, report)]

    def _fill_gaps(self, sender: PeerId, report: Report) -> list[RoundAction]:
        """What `sender` lacks and this peer is to send it: contributions or sums on their way to an owner, and results."""
        if self.left or report.finished or self.finished or sender in self.lost:
            return []
        actions: list[RoundAction] = []
        for part, peer in report.missing:
            if peer == self.me and part < len(self.parts) and self._next_of(part) == sender and part not in self.resolved:
                actions += self._send_again(part)
        cut_off = self.lost | self._gone
        for part in sorted(self.resolved):
            is_mine = self.owner[part] == self.me and self.reduction.parent_of(part, sender) in cut_off
            if (is_mine or sender in self._receivers(part)) and not holds(report, part):
                actions.append(SendResult(epoch=self.plan.epoch, part=part, to=(sender,), term=self.owner_term[part]))
        return actions

    def _send_again(self, part: int) -> list[RoundAction]:
        if self.reduction.adds_up(part):
            return [self._forward(part)] if self.reduction.tally(part).closed else []
        return [self._contribute_part(part)] if self._sent_contribution and self.me in self._expected() else []

    def _greet(self, peer: PeerId) -> list[RoundAction]:
        """A renewed session lost what was under way on the old one: say all again that the peer may have missed."""
        if peer in self.lost and self.leader == self.me and not self.left:
            return [SendMessage(to=(peer,), message=self._last_fence())]
        if self.left or self.finished or peer in self.lost or peer not in (*self.members(), *self.listeners):
            return []
        actions: list[RoundAction] = []
        if self.leader == self.me and self._roll_call is None:
            actions.append(SendMessage(to=(peer,), message=self._briefing()))
        if self.me in self.samples:
            actions.append(SendMessage(to=(peer,), message=self._own_ready(self.samples[self.me])))
        return [*actions, SendMessage(to=(peer,), message=self._report(self.term))]

    # -- repair --------------------------------------------------------------------------------------------------------

    def _repair(self, sender: PeerId, repair: Repair, now: float) -> list[RoundAction]:
        if repair.term != self.term or sender != self.leader or self.left:
            return []
        return self._apply_repair(repair, now)

    def _apply_repair(self, repair: Repair, now: float) -> list[RoundAction]:
        actions: list[RoundAction] = []
        for assignment in repair.assignments:
            if assignment.part < len(self.parts) and assignment.owner in self.members():
                actions += self._take_assignment(assignment, repair.term)
        self.progress_s = now
        return actions + self._end_if_resolved(now)

    def _take_assignment(self, assignment: Assignment, term: int) -> list[RoundAction]:
        part = assignment.part
        self.reduction.reassign(part, assignment.owner, term)
        self.repaired.add(part)
        if self.finished:
            return []
        if assignment.held or part in self.resolved:
            if assignment.owner != self.me or part not in self.resolved:
                return []
            return [SendResult(epoch=self.plan.epoch, part=part, to=self.audience(), term=term)]
        if self.reduction.adds_up(part) and self.reduction.tally(part).closed:
            return []  # its mean is being taken, and goes to all of them afterwards
        if self._sent_contribution and self.me in self._expected():
            return [self._contribute_part(part)]
        return self._close_if_complete(part)

    # -- listeners -----------------------------------------------------------------------------------------------------

    def admit(self, newcomers: tuple[PeerId, ...]) -> list[RoundAction]:
        """As leader: adds listeners (lost members that came back too) and tells everyone, the newcomers with the whole plan."""
        fresh = tuple(p for p in newcomers if p not in self.listeners and p not in self.members())
        if not fresh or self.finished or self.left or self._roll_call is not None:
            return []
        self.listeners |= set(fresh)
        return [SendMessage(to=self.audience(), message=self._briefing()), *self._send_results_to(fresh)]

    def _briefing(self) -> Briefing:
        repaired = sorted(self.repaired)
        return Briefing(
            plan=self.plan,
            term=self.term,
            listeners=tuple(sorted(self.listeners)),
            lost=tuple(sorted(self.lost)),
            excused=tuple(sorted(self.excused)),
            assignments=tuple(Assignment(part=p, owner=self.owner[p], held=True) for p in repaired),
            assignment_terms=tuple(self.owner_term[p] for p in repaired),
        )

    @classmethod
    def enter(cls, me: PeerId, briefing: Briefing, now: float) -> Round:
        """The machine of a peer that comes into a round under way: as the contributor it was planned to be, else it listens."""
        entered = cls(me, briefing.plan, now)
        entered.term = briefing.term
        entered.listeners = set(briefing.listeners)
        entered.lost = set(briefing.lost)
        entered.excused = set(briefing.excused)
        if me in entered.lost or me not in briefing.plan.contributors:
            entered.excused.add(me)
        for assignment, term in zip(briefing.assignments, briefing.assignment_terms, strict=False):
            if assignment.part < len(entered.parts):
                entered.reduction.reassign(assignment.part, assignment.owner, term)
                entered.repaired.add(assignment.part)
        return entered

    def _briefed(self, sender: PeerId, message: Briefing, now: float) -> list[RoundAction]:
        """New listeners get what was published; a fence or repair that was missed is made up for."""
        if sender not in self.members() or message.plan.term != self.plan.term or message.term < self.term or self.left:
            return []
        self.leader = sender
        actions: list[RoundAction] = []
        if message.term > self.term:
            fence = Fence(
                run=self.plan.run,
                epoch=self.plan.epoch,
                term=message.term,
                plan_term=self.plan.term,
                lost=message.lost,
                excused=message.excused,
            )
            actions += self._fenced(sender, fence, now)
        for assignment, term in zip(message.assignments, message.assignment_terms, strict=False):
            if assignment.part < len(self.parts) and term > self.owner_term[assignment.part] and not self.left:
                reduced = Assignment(part=assignment.part, owner=assignment.owner, held=False)
                actions += self._take_assignment(reduced, term)
        fresh = tuple(p for p in message.listeners if p not in (*self.listeners, *self.members(), self.me))
        self.listeners |= set(fresh)
        return actions + self._send_results_to(fresh) + self._end_if_resolved(now)

    def _send_results_to(self, listeners: tuple[PeerId, ...]) -> list[RoundAction]:
        if self.finished or not listeners:
            return []
        return [
            SendResult(epoch=self.plan.epoch, part=part, to=listeners, term=self.owner_term[part])
            for part in sorted(self.resolved)
            if self.owner[part] == self.me
        ]

    # -- time ----------------------------------------------------------------------------------------------------------

    def _straggler_deadline_s(self) -> float:
        """A peer half as fast as the first one ready still takes part; a slower one joins the next round."""
        assert self._first_ready_s is not None
        phase_s = self._first_ready_s - self.began_s
        return self._first_ready_s + max(self.plan.patience_s, phase_s) + (self._waits() - 1) * self.plan.patience_s

    def _give_up_s(self) -> float:
        assert self._all_ready_s is not None
        return self._all_ready_s + GIVE_UP_PATIENCES * self.plan.patience_s

    def _waits(self) -> int:
        """Patiences before this peer acts: one as leader, more the later it would succeed."""
        if self.leader == self.me:
            return 1
        return SUCCESSOR_PATIENCES + self.members().index(self.me) if self.me in self.members() else GIVE_UP_PATIENCES

    def _time_passed(self, now: float) -> list[RoundAction]:
        deadline = self.next_deadline_s()
        if deadline is None or now < deadline:
            return []
        if self._all_ready_s is not None and now >= self._give_up_s():
            return self._leave("it moved too slowly to end")
        if self._roll_call is not None:
            return self._fence(self._roll_call.waiting, set(), now)
        if self._all_ready_s is None:
            late = {p for p in self._expected() if p not in self.samples and p != self.me}
            return self._fence(set(), late, now)
        return self._fence(set(), set(), now)
