"""The exception tree: one class per reaction. Every message says what happened and, where there is one, the remedy.

SwarmError
├── LocalError      ours or the user's: do not retry, show the line and exit 1
├── RemoteError     theirs: blame `peer`, end the conversation with it, go on with the others
├── Transient       nobody's: retry with backoff
└── RoundFailed     this attempt at an epoch gave no result: train on, try the next one
"""

from __future__ import annotations

from ciuic_p2p.terms import PeerId, ShardId


class SwarmError(Exception):
    """Base of every error this package raises on purpose."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what if not remedy else f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy


class LocalError(SwarmError):
    """Something on this machine, or something the user wrote, must change."""


class ConfigError(LocalError):
    """A flag, an environment variable or a line of a profile is wrong."""


class HomeUnusable(LocalError):
    """The home folder cannot be read or written, or another daemon uses it."""


class AddressUnusable(LocalError):
    """An address to listen on is taken or does not exist here, or an address to join is not one."""


class NoDaemon(LocalError):
    """No daemon answers at this home."""


class LayoutMismatch(LocalError):
    """The model's tensors are not those of the run that others train under this name."""


class StoreUnusable(LocalError):
    """The folder of the store cannot be read or written."""


class StoreFull(LocalError):
    """The store has reached its quota, or the disk under it its reserve. What is there stays whole and readable."""


class ObjectMissing(LocalError):
    """No peer that was here wrote an object of this name, or it was removed."""


class CheckpointUnreadable(LocalError):
    """What lies under a name does not describe a checkpoint, or a part of the checkpoint is lost or another one."""


class VersionGone(LocalError):
    """The version of an object that was read is not kept any more: another one took its place, or it was removed."""


class SnapshotDamaged(LocalError):
    """A snapshot on this disk cannot be read back."""

    def __init__(self, run: str, epoch: int, why: str) -> None:
        super().__init__(
            f"the snapshot of {run!r} at epoch {epoch} is damaged: {why}", "use an older one, or one of another peer"
        )


class RemoteError(SwarmError):
    """A peer broke the protocol."""

    def __init__(self, peer: PeerId | None, what: str) -> None:
        super().__init__(f"peer {peer or '(unknown)'}: {what}")
        self.peer = peer


class NotAMember(RemoteError):
    """The peer showed no valid token of this swarm, or one bound to another peer."""


class MalformedMessage(RemoteError):
    """A control message or record does not decode, or a field of it is out of range."""


class MalformedPayload(RemoteError):
    """A frame's payload does not decode as its codec says, or holds values that are not finite."""


class FrameError(RemoteError):
    """A bulk frame was wrong; its lane is closed and what it carried is sent again."""


class FrameForged(FrameError):
    """The authentication tag does not match: a byte was changed, or the key is another's."""


class FrameReplayed(FrameError):
    """The frame's counter was used before, or one is missing."""


class FrameTruncated(FrameError):
    """The stream ended inside a frame."""


class FrameTooLarge(FrameError):
    """The announced length is over the limit."""


class Transient(SwarmError):
    """May work a moment later."""


class PeerUnreachable(Transient):
    """There is no session with the peer right now."""


class P2PDown(Transient):
    """The libp2p child process is down and being restarted."""


class DaemonGone(Transient):
    """The local daemon closed the socket; the trainer may attach again."""


class TooFewCopies(Transient):
    """Fewer peers than wanted could take the shards of an object that is put."""


class ObjectUnreadable(Transient):
    """Nobody who is here holds some of the object's shards, or gave them."""


class ShardMissing(Transient):
    """The store does not hold the shard; another holder may."""

    def __init__(self, shard: ShardId, what: str = "is not in this store") -> None:
        super().__init__(f"shard {shard[:12]}… {what}", "it must come from another holder")
        self.shard = shard


class ShardDamaged(ShardMissing):
    """The disk gave back other bytes than were written. They were set aside, so that the shard can be put anew."""

    def __init__(self, shard: ShardId) -> None:
        super().__init__(shard, "was damaged on the disk and set aside")


class RoundFailed(SwarmError):
    """The round gave no result."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"round failed: {reason}")
        self.reason = reason
