"""Control messages between peers ⇄ bytes: versioned, size-capped, checked field by field. Knows neither sender nor socket.

One dataclass a message; its place in `_TYPES` is its number on the wire and never changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgpack

from ciuic_p2p.core.ledgers import MOST_DATASETS, Grant, Wanted
from ciuic_p2p.core.shard_messages import (
    AskEntries,
    AskInventory,
    AskShards,
    AskVersions,
    CancelShards,
    CatalogueTold,
    DeclineShards,
    Entries,
    HeldShards,
    Inventory,
    KeepShards,
    RefuseShard,
    ShardMessage,
    StoreTold,
    VersionsTold,
)
from ciuic_p2p.core.wire import from_wire, to_wire, unpack
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.terms import LARGEST_MESSAGE_BYTES, PROTOCOL_VERSION, PeerId, StateHash

LARGEST_COUNT = 1 << 36
MOST_MEMBERS = 4096
MOST_WAYS = 256
LONGEST_REGION = 32
"""As in peers' records."""
MOST_SAMPLES_PER_S = 1e12
LEAST_LINE_MBPS = 0.5
"""A slower line would make the others wait for it without end."""
LARGEST_MBPS = 1e6
HIGHEST_LOSSLESS_LEVEL = 22
"""zstd has no higher one."""

BUTTERFLY = "butterfly"
"""Everyone sends its contribution to a span straight to the owner. So in a star, where one peer owns all."""
STAR = "star"
HIERARCHICAL = "hierarchical"
"""Groups, mostly regions, sum up within before they send to another one."""
RING = "ring"
TOPOLOGIES = (BUTTERFLY, STAR, HIERARCHICAL, RING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Asks for a Pong with the same number, to measure the round trip."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """Signed peer records: the sender's own first, then those it knows, so that a newcomer sees all at once."""

    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasure:
    """What the sender measured towards one peer."""

    peer: PeerId
    rtt_ms: float
    jitter_ms: float
    goodput_mbps: float
    """0 while nothing was measured."""
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    links: tuple[LinkMeasure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What the sender knows of the way from its region to another one, and does there (core/cables.py)."""

    region: str
    mbps: float
    """What it carries for the whole region together; 0: no limit was seen."""
    moved_mbps: float
    """By the sender, in its last window."""
    waits: bool
    """The sender has more to send there."""

    def __post_init__(self) -> None:
        if not all(0 <= mbps <= LARGEST_MBPS for mbps in (self.mbps, self.moved_mbps)):  # false for a NaN
            raise ValueError("a way of an impossible rate")
        if len(self.region) > LONGEST_REGION:
            raise ValueError("a way to what is no region")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the sender's own access carries, and what it sees of the path between the two (core/pacing.py)."""

    line_mbps: float
    """In its slower direction, as far as that was measured; 0: not yet."""
    down_mbps: float
    """What it takes at most; a guess at first."""
    spare_mbps: float
    """What of the line down nobody uses at the moment: the part of it that is the receiver's to take."""
    sent_at_ms: float
    """By the sender's clock, whatever that counts from: only how it changes against the receiver's matters."""
    queued_ms: float
    """How long what the receiver sends lies in queues before it is here."""
    up_queued_ms: float
    """How long what the sender sends, to whomever, lies before its own line; 0 while it sends to one peer only."""
    down_queued_ms: float
    """The same of what it receives."""
    loses: bool
    """Much of what the sender sends to the receiver is lost."""
    ways: tuple[Way, ...] = ()
    """To other regions: those where something between is narrower than the lines, and those to which something is sent."""

    def __post_init__(self) -> None:
        if len(self.ways) > MOST_WAYS:
            raise ValueError("ways to more regions than there are")
        waits = (self.queued_ms, self.up_queued_ms, self.down_queued_ms)
        if not (0 < self.down_mbps <= LARGEST_MBPS and 0 <= self.spare_mbps <= LARGEST_MBPS):  # false for a NaN
            raise ValueError("a line that takes nothing, or more than there is")
        if self.line_mbps != 0 and not LEAST_LINE_MBPS <= self.line_mbps <= LARGEST_MBPS:
            raise ValueError("a line of an impossible rate")
        if not all(0 <= ms < math.inf for ms in waits) or not math.isfinite(self.sent_at_ms):
            raise ValueError("times that are none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the sender stands in a run. Sent to all at every change, and to each new session."""

    run: str
    layout: str
    """Fingerprint of the model's layout."""
    epoch: int | None
    """None while the sender has no state."""
    state_hash: StateHash
    samples: int
    """How many samples all rounds of this state's lineage have counted."""
    training: bool
    """A trainer is attached."""
    samples_per_s: float
    wanted: tuple[Wanted, ...] = ()
    """The datasets that its trainer reads."""

    def __post_init__(self) -> None:
        if len({each.dataset for each in self.wanted}) != len(self.wanted) or len(self.wanted) > MOST_DATASETS:
            raise ValueError("a dataset twice, or too many")
        if not 0 <= self.samples_per_s <= MOST_SAMPLES_PER_S:  # false for a NaN
            raise ValueError("a trainer of an impossible speed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The contiguous values [start, stop) of the flat tensor that `owner` reduces."""

    owner: PeerId
    start: int
    stop: int
    carriers: tuple[int, ...] = ()
    """In a hierarchy the place of one contributor for each group: it sums up what its group has of the span."""

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop <= LARGEST_COUNT:
            raise ValueError("a span runs backwards or past the largest tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The leader's word on one round: who takes part, who reduces what, and how long to wait."""

    run: str
    epoch: int
    term: int
    base_hash: StateHash
    contributors: tuple[PeerId, ...]
    """In the order of succession: the first one leads."""
    listeners: tuple[PeerId, ...]
    """They get every result, send nothing, and nobody waits for them."""
    spans: tuple[Span, ...]
    topology: str = BUTTERFLY
    groups: tuple[tuple[int, ...], ...] = ()
    """Places of contributors. Hierarchical: who sums up together. Ring: one group, each sends to the next. Else none."""
    count: int
    parameter_count: int
    """Values from here on are buffers: averaged without loss and without momentum."""
    part_values: int
    codec: str
    lossless_level: int
    """Of zstd, for payloads of which a sample gains; 0: none is packed."""
    reason: str
    """Why this codec and these spans, for people."""
    outer_learning_rate: float
    outer_momentum: float
    predicted_s: float
    """From all contributions being ready to the last result; corrected by the leader's experience."""
    correction: float = 1.0
    """What the model's own seconds were multiplied by for that."""
    patience_s: float
    """How long a member waits for bytes that should have come, from measured goodput and jitter."""
    grants: tuple[Grant, ...] = ()
    """Of the run's datasets, by name; then the round has one more part, in which reports of what was used travel."""

    def __post_init__(self) -> None:
        if not self.contributors or len(self.contributors) + len(self.listeners) > MOST_MEMBERS:
            raise ValueError("a plan needs 1 to 4096 members")
        if len({*self.contributors, *self.listeners}) != len(self.contributors) + len(self.listeners):
            raise ValueError("a peer stands in the plan twice")
        if not 0 <= self.parameter_count <= self.count <= LARGEST_COUNT or not 0 < self.part_values <= 1 << 20:
            raise ValueError("counts out of range")
        if not 0 <= self.lossless_level <= HIGHEST_LOSSLESS_LEVEL:
            raise ValueError("a lossless level out of range")
        if self.patience_s <= 0 or self.correction <= 0:
            raise ValueError("no patience, or a correction that is none")
        edge = 0
        for span in self.spans:
            if span.start != edge or span.owner not in self.contributors:
                raise ValueError("spans must cover the tensor in order and belong to contributors")
            edge = span.stop
        if edge != self.count:
            raise ValueError("spans must cover the whole tensor")
        self._require_ways()
        self._require_grants()

    def _require_grants(self) -> None:
        names = [grant.dataset for grant in self.grants]
        if names != sorted(set(names)) or len(names) > MOST_DATASETS:
            raise ValueError("grants out of order, twice of one dataset, or of too many")
        there = {*self.contributors, *self.listeners}
        if any(peer not in there for grant in self.grants for peer, _ in grant.shares):
            raise ValueError("a grant to a peer that is not in the plan")

    def _require_ways(self) -> None:
        """Raises ValueError unless every contributor's values find one way to each owner."""
        if self.topology not in TOPOLOGIES:
            raise ValueError("an unknown topology")
        places = sorted(place for group in self.groups for place in group)
        if places != (list(range(len(self.contributors))) if self.topology in (HIERARCHICAL, RING) else []):
            raise ValueError("every contributor must be in one group, where there are groups")
        if self.topology == RING and len(self.groups) != 1:
            raise ValueError("a ring is one group")
        groups = [frozenset(group) for group in self.groups] if self.topology == HIERARCHICAL else []
        place_of = {peer: place for place, peer in enumerate(self.contributors)}
        for span in self.spans:
            if len(span.carriers) != len(groups):
                raise ValueError("a span needs one carrier for each group of a hierarchy")
            for carrier, group in zip(span.carriers, groups, strict=True):
                if carrier not in group or (place_of[span.owner] in group and carrier != place_of[span.owner]):
                    raise ValueError("a carrier must be of its group, and the owner be its own group's")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The sender's contribution is complete and on its way. 0 samples: it contributes nothing, do not wait for it."""

    run: str
    epoch: int
    plan_term: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A leader's higher term: the lost are out of the round, the excused contribute nothing, everybody reports.

    Who answers a fence promises to take no result from the lost any more.
    """

    run: str
    epoch: int
    term: int
    plan_term: int
    lost: tuple[PeerId, ...]
    excused: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the sender holds: an answer to a fence, or a greeting after a session was renewed."""

    run: str
    epoch: int
    term: int
    finished: bool
    resolved: bytes
    """Bit i: the result of part i is here."""
    missing: tuple[tuple[int, PeerId], ...]
    """(part, contributor): contributions that the sender, as owner, still lacks; at most 4096 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A new owner for one part of a lost peer's span."""

    part: int
    owner: PeerId
    held: bool
    """The new owner has the lost owner's result and passes on those values; else it reduces the part afresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """The leader tells where a round under way stands: to newcomers, whom it adds as listeners, and after a renewed session.

    It holds all that fences and repairs have changed since the plan. Owners send added listeners every result so far.
    """

    plan: Plan
    term: int
    listeners: tuple[PeerId, ...]
    lost: tuple[PeerId, ...]
    excused: tuple[PeerId, ...]
    assignments: tuple[Assignment, ...]
    assignment_terms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    run: str
    epoch: int
    term: int
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The leader's signed record of a finished round."""

    run: str
    epoch: int
    contributors: tuple[tuple[PeerId, int], ...]
    """(peer, samples) of those whose contribution was counted whole."""
    lost: tuple[PeerId, ...]
    state_hash: StateHash
    """Of the state after the round."""
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AskState:
    """Asks for the manifest of the state (epoch, hash); the peer keeps that version while pieces are asked for."""

    run: str
    epoch: int
    state_hash: StateHash


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOffer:
    """The manifest, as tensors/outer.py writes it; empty when the peer no longer holds that version."""

    run: str
    epoch: int
    state_hash: StateHash
    manifest: bytes
    ancestors: tuple[str, ...]
    """Beginnings of the hashes of the states that led to it, as core/ancestry.py keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPieces:
    run: str
    epoch: int
    state_hash: StateHash
    pieces: tuple[int, ...]
    donors: int
    """How many peers are asked for pieces of this state; each sends at its share of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Peers of which the sender has heard nothing for two probe periods, and those that it gave up for that."""

    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSnapshot:
    """Whoever comes to hold the state of this epoch saves it."""

    run: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSaved:
    """The sender vouches for what it saved, also to those who hear of it later: the signature is over all fields before it."""

    run: str
    epoch: int
    state_hash: StateHash
    signature: bytes


Message = (
    Ping
    | Pong
    | Introduction
    | LinkReport
    | Line
    | Standing
    | Plan
    | Briefing
    | Ready
    | Fence
    | Report
    | Repair
    | Transcript
    | AskState
    | StateOffer
    | AskPieces
    | Suspects
    | ShardMessage
    | SaveSnapshot
    | SnapshotSaved
)

_TYPES: dict[int, type[Message]] = {
    1: Ping,
    2: Pong,
    3: Introduction,
    4: LinkReport,
    5: Standing,
    6: Line,
    7: Plan,
    8: Briefing,
    9: Ready,
    10: Fence,
    11: Report,
    12: Repair,
    13: Transcript,
    14: AskState,
    15: StateOffer,
    16: AskPieces,
    17: Suspects,
    18: SaveSnapshot,
    19: StoreTold,
    20: HeldShards,
    21: AskInventory,
    22: Inventory,
    23: KeepShards,
    24: DeclineShards,
    25: AskShards,
    26: CancelShards,
    27: RefuseShard,
    28: CatalogueTold,
    29: AskEntries,
    30: Entries,
    31: AskVersions,
    32: SnapshotSaved,
    33: VersionsTold,
}
_NUMBERS = {cls: number for number, cls in _TYPES.items()}


def encode(message: Message) -> bytes:
    """[version, number, fields] as msgpack; raises ValueError when a message of ours is over the limit."""
    data: bytes = msgpack.packb([PROTOCOL_VERSION, _NUMBERS[type(message)], to_wire(message)])
    if len(data) > LARGEST_MESSAGE_BYTES:
        raise ValueError(f"{type(message).__name__} of {len(data)} bytes is over {LARGEST_MESSAGE_BYTES}")
    return data


def decode(data: bytes) -> Message:
    """Raises MalformedMessage for anything that `encode` of this version would not have written."""
    value = unpack(data, LARGEST_MESSAGE_BYTES)
    if not isinstance(value, list) or len(value) != 3:
        raise MalformedMessage(None, "not a message")
    version, number, fields = value
    if version != PROTOCOL_VERSION:
        raise MalformedMessage(None, f"protocol version {version!r}, this peer speaks {PROTOCOL_VERSION}")
    if type(number) is not int or number not in _TYPES:
        raise MalformedMessage(None, f"unknown message {number!r}")
    message: Message = from_wire(_TYPES[number], fields)
    return message
