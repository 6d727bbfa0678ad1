"""What the daemon and the processes on its machine say to each other. Every field is checked when a message is made,
so one that exists is legal on either side. Knows no socket and nothing of what the messages lead to.

    trainer → daemon        attach (+ the exchange's descriptor) · progress · ready · position · lease · leave
    daemon → trainer        waiting · attached · advanced · position · leased · refused
    command line → daemon   view · invite · snapshot · stop
    anybody → daemon        put · get · read · list · remove · stat, for objects
    daemon → both           view · moved · stopping · refused
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ciuic_p2p.local import checks

LONGEST_READ_BYTES = 4 << 20
"""Of one read: an answer is held whole in memory on both sides, and copied in the loop of the daemon."""

LOCAL_VERSION = 2
"""Version of these messages; a trainer installed beside another version of the daemon is refused with a line that says so."""


class Message:
    """Base of all messages; `type` is its name on the wire."""

    __slots__ = ()
    type: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySettings:
    """How the trainer wants its run to be averaged."""

    name: str
    """Of the strategy's class in `train/strategies.py`, such as "DiLoCo"."""
    inner_steps: int
    codec: str
    """A codec's name, or "auto" or "source": how the leader of a round chooses one."""
    outer_learning_rate: float
    outer_momentum: float
    topology: str = "auto"
    """Of rounds, or "auto": the leader of a round takes the quickest."""

    def __post_init__(self) -> None:
        checks.word("strategy.name", self.name)
        checks.word("strategy.topology", self.topology)
        checks.whole("strategy.inner_steps", self.inner_steps, least=1, most=1_000_000)
        checks.word("strategy.codec", self.codec)
        checks.number("strategy.outer_learning_rate", self.outer_learning_rate, least=0.0, most=100.0)
        checks.number("strategy.outer_momentum", self.outer_momentum, least=0.0, most=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach(Message):
    """A trainer wants to take part in a run; the exchange's descriptor travels with it and already holds its parameters."""

    type: ClassVar[str] = "attach"
    run: str
    layout: dict[str, Any]
    """`tensors.layout.Layout.to_wire()` of the model."""
    strategy: StrategySettings
    pid: int
    version: int = LOCAL_VERSION

    def __post_init__(self) -> None:
        checks.run_name("run", self.run)
        checks.mapping("layout", self.layout)
        checks.instance("strategy", self.strategy, StrategySettings)
        checks.whole("pid", self.pid, least=1)
        checks.whole("version", self.version, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Message):
    """How far the trainer is since it loaded the anchor; sent at most once a second."""

    type: ClassVar[str] = "progress"
    samples: int
    steps: int
    loss: float | None
    """Mean over these samples; None when the trainer did not say or it was not finite."""

    def __post_init__(self) -> None:
        _check_progress(self.samples, self.steps, self.loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Message):
    """The inner steps are done and the exchange holds the local parameters.

    `samples` is the contribution's weight; 0 withholds it, and then nobody reads the exchange.
    """

    type: ClassVar[str] = "ready"
    samples: int
    steps: int
    loss: float | None
    used: dict[str, Any] = field(default_factory=dict)
    """Dataset → slots used of it, as `slots_to_plain` gives them."""

    def __post_init__(self) -> None:
        _check_progress(self.samples, self.steps, self.loss)
        checks.mapping("used", self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLease(Message):
    """What does this trainer hold of a dataset? It reads it from now on."""

    type: ClassVar[str] = "lease"
    dataset: str
    count: int
    """Slots in a pass."""
    samples: int
    """How many slots it needs for one round."""
    waits: bool
    """It cannot go on without any: the answer comes once there are some."""

    def __post_init__(self) -> None:
        checks.run_name("dataset", self.dataset)
        checks.whole("count", self.count, least=1, most=1 << 62)
        checks.whole("samples", self.samples, least=1, most=1 << 40)
        checks.instance("waits", self.waits, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPosition(Message):
    """Which share of a dataset is this trainer's?"""

    type: ClassVar[str] = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Message):
    """The trainer is done; the end of the socket says the same."""

    type: ClassVar[str] = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskView(Message):
    """The command line asks what the daemon knows: "status", "peers", "links", "rounds", "plan"."""

    type: ClassVar[str] = "view"
    what: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.word("what", self.what)
        checks.mapping("options", self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite(Message):
    """The command line asks for a join string; answered by a view."""

    type: ClassVar[str] = "invite"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.mapping("options", self.options)


class ObjectRequest(Message):
    """Base of what is asked about objects; each is answered by a view, put and get by several `moved` before it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PutObject(ObjectRequest):
    """Make the file at `path`, which the daemon reads itself, the object `address` (`ciuic://bucket/key`)."""

    type: ClassVar[str] = "put"
    path: str
    address: str
    data_shards: int = 0
    """A stripe, with as many of parity as `parity_shards` says; 0: copies instead."""
    parity_shards: int = 0

    def __post_init__(self) -> None:
        checks.absolute_path("path", self.path)
        checks.text("address", self.address)
        checks.whole("data_shards", self.data_shards)
        checks.whole("parity_shards", self.parity_shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetObject(ObjectRequest):
    """Write the object to the file at `path`; into it, where it is a folder."""

    type: ClassVar[str] = "get"
    address: str
    path: str

    def __post_init__(self) -> None:
        checks.text("address", self.address)
        checks.absolute_path("path", self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadObject(ObjectRequest):
    """So many bytes of the object from `offset` on; fewer where it ends before."""

    type: ClassVar[str] = "read"
    address: str
    offset: int
    length: int
    etag: str = ""
    """Of the version that is read, whatever was written since; "": the current one."""

    def __post_init__(self) -> None:
        checks.text("address", self.address)
        checks.whole("offset", self.offset)
        checks.whole("length", self.length, most=LONGEST_READ_BYTES)
        checks.text("etag", self.etag)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListObjects(ObjectRequest):
    """The objects whose addresses begin with `prefix`, in their order, behind `after` ("": from the first), some at a time."""

    type: ClassVar[str] = "list"
    prefix: str
    after: str = ""

    def __post_init__(self) -> None:
        checks.text("prefix", self.prefix)
        checks.text("after", self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveObject(ObjectRequest):
    type: ClassVar[str] = "remove"
    address: str

    def __post_init__(self) -> None:
        checks.text("address", self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatObject(ObjectRequest):
    type: ClassVar[str] = "stat"
    address: str

    def __post_init__(self) -> None:
        checks.text("address", self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOrder(Message):
    """The command line wants something done with snapshots: "ls", "save", "restore", "export". Answered by a view."""

    type: ClassVar[str] = "snapshot"
    what: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.word("what", self.what)
        checks.mapping("options", self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Message):
    """The command line asks the daemon to end."""

    type: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Message):
    """Nothing is wrong; this is what the daemon waits for."""

    type: ClassVar[str] = "waiting"
    why: str

    def __post_init__(self) -> None:
        checks.text("why", self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Message):
    """The trainer takes part; the exchange holds the anchor to load."""

    type: ClassVar[str] = "attached"
    epoch: int
    state_hash: str
    fresh: bool
    """True when the run starts here, from this trainer's own parameters."""
    bytes_sent: int
    """By this peer for this run since its daemon started; the same for bytes_received."""
    bytes_received: int

    def __post_init__(self) -> None:
        checks.whole("epoch", self.epoch)
        checks.state_hash("state_hash", self.state_hash)
        checks.instance("fresh", self.fresh, bool)
        checks.whole("bytes_sent", self.bytes_sent)
        checks.whole("bytes_received", self.bytes_received)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced(Message):
    """The round is over; the exchange holds the new anchor."""

    type: ClassVar[str] = "advanced"
    epoch: int
    state_hash: str
    peers: tuple[str, ...]
    """Names of those whose contributions are in the new anchor."""
    bytes_sent: int
    """As in `attached`: a total, because a round's last bytes may leave after its new anchor is here."""
    bytes_received: int
    seconds: float
    counted: bool
    """Whether this trainer's contribution is in the new anchor."""
    saving: bool = False
    """Whether this peer saves a snapshot of this epoch: the moment to save what belongs to it and only the trainer has."""

    def __post_init__(self) -> None:
        checks.whole("epoch", self.epoch)
        checks.state_hash("state_hash", self.state_hash)
        checks.texts("peers", self.peers)
        checks.whole("bytes_sent", self.bytes_sent)
        checks.whole("bytes_received", self.bytes_received)
        checks.number("seconds", self.seconds, least=0.0)
        checks.instance("counted", self.counted, bool)
        checks.instance("saving", self.saving, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position(Message):
    """This trainer's share of a dataset is the `index`-th of `count`."""

    type: ClassVar[str] = "position"
    index: int
    count: int
    epoch: int

    def __post_init__(self) -> None:
        checks.whole("count", self.count, least=1, most=1_000_000)
        checks.whole("index", self.index, most=self.count - 1)
        checks.whole("epoch", self.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased(Message):
    """What the trainer may use of the dataset now."""

    type: ClassVar[str] = "leased"
    slots: list[list[int]]
    """As `slots_to_plain` gives them."""
    open_pass: int
    """The first pass of which something is neither used nor anybody's."""

    def __post_init__(self) -> None:
        checks.instance("slots", self.slots, list)
        checks.whole("open_pass", self.open_pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Message):
    """The daemon does not do what was asked. `kind` names the class in errors.py."""

    type: ClassVar[str] = "refused"
    kind: str
    what: str
    remedy: str = ""

    def __post_init__(self) -> None:
        checks.word("kind", self.kind)
        checks.text("what", self.what)
        checks.text("remedy", self.remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Message):
    """What the command line asked for, as plain data."""

    type: ClassVar[str] = "view"
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Message):
    """How far a put or a get is."""

    type: ClassVar[str] = "moved"
    done_bytes: int
    total_bytes: int

    def __post_init__(self) -> None:
        checks.whole("total_bytes", self.total_bytes)
        checks.whole("done_bytes", self.done_bytes, most=self.total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Message):
    """The daemon ends now."""

    type: ClassVar[str] = "stopping"


TO_DAEMON: dict[str, type[Message]] = {
    kind.type: kind
    for kind in (
        Attach,
        Progress,
        Ready,
        AskPosition,
        AskLease,
        Leave,
        AskView,
        Invite,
        SnapshotOrder,
        PutObject,
        GetObject,
        ReadObject,
        ListObjects,
        RemoveObject,
        StatObject,
        Stop,
    )
}
FROM_DAEMON: dict[str, type[Message]] = {
    kind.type: kind for kind in (Waiting, Attached, Advanced, Position, Leased, Refused, View, Moved, Stopping)
}


def _check_progress(samples: int, steps: int, loss: float | None) -> None:
    checks.whole("samples", samples)
    checks.whole("steps", steps)
    if loss is not None:
        checks.number("loss", loss)
