"""What a snapshot lacks: which shards are not here, who can give them, and who must come back for the rest.

Pure: knows neither disks nor when somebody is back. A peer that said, signed, that it saved the same state had all of its
shards then; one that told its inventory since has what that says, and no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ciuic_p2p.terms import PeerId, ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What is known of one other peer."""

    peer: PeerId
    is_here: bool
    shards: Collection[ShardId] | None
    """As it told; None where it has not told all of them, and only its report says that it saved the snapshot."""

    def may_have(self, shard: ShardId) -> bool:
        return self.shards is None or shard in self.shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """All in the order of the snapshot's shards."""

    missing: tuple[ShardId, ...]
    """That this peer does not hold."""
    obtainable: tuple[ShardId, ...]
    """Of those: that somebody holds who is here."""
    lost: tuple[ShardId, ...]
    """Of those: that nobody holds who is here."""
    unaccounted: tuple[ShardId, ...]
    """Of the lost: that no peer has of which anything is known."""
    may_help: tuple[PeerId, ...]
    """Who holds or held lost ones, and is not here, or is and has not told all yet."""
    must_return: tuple[PeerId, ...]
    """As few of them as hold all lost ones together, but for what is unaccounted."""


def find_shortfall(missing: Iterable[ShardId], others: Iterable[Keeping]) -> Shortfall:
    """missing: what this peer does not hold. others: all peers of which anything is known."""
    wanted = tuple(dict.fromkeys(missing))
    known = sorted(others, key=lambda each: each.peer)
    givers = [each for each in known if each.is_here and each.shards is not None]
    lost = tuple(shard for shard in wanted if not any(each.may_have(shard) for each in givers))
    not_here = frozenset(lost)
    helpers = [each for each in known if each not in givers and any(map(each.may_have, lost))]
    return Shortfall(
        missing=wanted,
        obtainable=tuple(shard for shard in wanted if shard not in not_here),
        lost=lost,
        unaccounted=tuple(shard for shard in lost if not any(each.may_have(shard) for each in helpers)),
        may_help=tuple(each.peer for each in helpers),
        must_return=_cover(lost, helpers),
    )


def _cover(lost: Iterable[ShardId], helpers: Iterable[Keeping]) -> tuple[PeerId, ...]:
    """Greedily, who has most of the rest first: at most ln(shards) times as many as would do (Chvatal, 1979)."""
    rest, chosen, able = set(lost), list[PeerId](), list(helpers)
    while rest and able:
        best = max(able, key=lambda each: sum(map(each.may_have, rest)))
        given = {shard for shard in rest if best.may_have(shard)}
        if not given:
            break
        chosen.append(best.peer)
        able.remove(best)
        rest -= given
    return tuple(chosen)
