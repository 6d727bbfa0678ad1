"""What happens to the machines of core/ (past tense) and what they want done (imperative). Knows no behaviour."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ciuic_p2p.core.codec_choice import AUTO, POLICIES
from ciuic_p2p.core.ledgers import NO_LEDGERS, Ledgers, UseReport, Wanted
from ciuic_p2p.core.messages import TOPOLOGIES, Message
from ciuic_p2p.terms import PeerId, StateHash


class Verdict(enum.Enum):
    """What to do with a frame that just came."""

    ACCEPT = enum.auto()
    """Take it, and report when that is done."""
    IGNORE = enum.auto()
    """A copy, or not wanted any more."""
    LATER = enum.auto()
    """It belongs to a plan or a term whose message has not arrived yet: ask again at the next change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived:
    sender: PeerId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """The peer left, died or froze."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReturned:
    """A session with the peer is open (again)."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionReady:
    """The local contribution is complete. 0 samples: there is none for this round."""

    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartAccumulated:
    """A contribution, or what its sender had added up of several, was added to the sum of a part."""

    sender: PeerId
    part: int
    term: int
    """Under which it was accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRefused:
    """A contribution did not decode or was not finite; it was not added."""

    sender: PeerId
    part: int
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPublished:
    """The mean of a part that this peer owns was encoded and stored here."""

    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultStored:
    """Another owner's result of a part was decoded and stored here."""

    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRefused:
    """Another owner's result did not decode."""

    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """The deadline that was asked for has come."""


RoundEvent = (
    MessageReceived
    | PeerLost
    | PeerReturned
    | ContributionReady
    | PartAccumulated
    | PartRefused
    | PartPublished
    | ResultStored
    | ResultRefused
    | TimePassed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """What a plan must know of the model."""

    layout: str
    """Fingerprint of the layout and of what else must be the same on all peers."""
    count: int
    """Values of the flat tensor, buffers included."""
    parameter_count: int
    codec_policy: str
    """A codec's name, or how to choose one: see core/codec_choice.py."""
    encoded_bytes: Mapping[str, int]
    """Of the whole tensor under each codec: the mean of what it takes as contribution and as result."""
    outer_learning_rate: float
    outer_momentum: float
    topology: str = AUTO
    """Of rounds; AUTO: the quickest."""

    def __post_init__(self) -> None:
        if self.topology not in (AUTO, *TOPOLOGIES):
            raise ValueError(f"there is no topology {self.topology!r}")
        if self.codec_policy not in (*POLICIES, *self.encoded_bytes):
            raise ValueError(f"there is no codec {self.codec_policy!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerAttached:
    """A trainer with a model of this shape runs here now."""

    shape: RunShape


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReady:
    """The trainer finished its inner steps. 0 samples: its parameters are not finite, nothing is contributed."""

    samples: int
    report: UseReport = ()
    """What of its leases it used for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetWanted:
    """The trainer reads this dataset, or needs another number of its samples for a round than it said."""

    wanted: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAwaited:
    """The trainer cannot go on without a lease of this dataset, which it wants."""

    dataset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLeft:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHeld:
    """The local state is now this one: seeded, fetched, or stepped from the epoch before."""

    epoch: int
    state_hash: StateHash
    samples: int
    """Of all rounds that led to it."""
    ancestors: tuple[str, ...] = ()
    """Of one that was fetched: what led to it."""
    ledgers: Ledgers = NO_LEDGERS


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """No donor could give the state that was asked for."""

    epoch: int
    state_hash: StateHash


RunEvent = TrainerAttached | DatasetWanted | LeaseAwaited | TrainerReady | TrainerLeft | StateHeld | FetchFailed | RoundEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage:
    to: tuple[PeerId, ...]
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPart:
    """Send the local contribution to `part` on its way to the owner."""

    epoch: int
    part: int
    to: PeerId
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulateOwn:
    """Add the local contribution to a part that this peer adds up, then report PartAccumulated."""

    epoch: int
    part: int
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPart:
    """Send the mean of what was added under this term, with the samples of all of it, on the way to the part's owner."""

    epoch: int
    part: int
    to: PeerId
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPart:
    """Take the weighted mean of what was added, encode it once, store its decoded values, then report PartPublished."""

    epoch: int
    part: int
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """Send the stored result of `part`: values bit for bit as they are stored here."""

    epoch: int
    part: int
    to: tuple[PeerId, ...]
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRound:
    """Every part has its result: take the outer step, then report StateHeld."""

    epoch: int
    contributors: tuple[tuple[PeerId, int], ...]
    lost: tuple[PeerId, ...]
    counted: bool
    """The local contribution is in the result."""
    repaired: int
    """Parts that got a new owner."""
    took_s: float = 0.0
    """Since everyone was ready: what the plan predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRound:
    """This peer is out of the round; its results so far are worth nothing."""

    epoch: int
    reason: str


RoundAction = SendMessage | SendPart | AccumulateOwn | ForwardPart | PublishPart | SendResult | FinishRound | LeaveRound


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedState:
    """Nobody has a state of this run: take the trainer's values as epoch 0, then report StateHeld."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRound:
    """A plan holds from now on; frames of its epoch may come. `contributes`: the local trainer is part of it."""

    epoch: int
    contributes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRound:
    """Nothing of this round is needed any more."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchState:
    """Take this state from the donors, then report StateHeld or FetchFailed."""

    epoch: int
    state_hash: StateHash
    donors: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTranscript:
    """Sign and send the record of a finished round that this peer led."""

    epoch: int
    contributors: tuple[tuple[PeerId, int], ...]
    lost: tuple[PeerId, ...]
    state_hash: StateHash
    to: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTrainer:
    """The trainer's contribution is used up, or void: give it the state held now. `counted`: it is in that state."""

    epoch: int
    counted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGivenUp:
    """Others' state took the place of the local one, in which these samples were counted and which are not in theirs."""

    samples: int
    epochs: int
    """How many rounds of the local lineage were not common."""
    by: PeerId
    """One of those whose state went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseLayout:
    """The local trainer's model is not the one that the run's state belongs to."""

    theirs: str


RunAction = (
    RoundAction | SeedState | OpenRound | DropRound | FetchState | RecordTranscript | LoadTrainer | WorkGivenUp | RefuseLayout
)
