"""Which versions of an object are kept, and which one is read. Knows no signatures, no network and no clock.

A *head* is a version that no other one has seen: one, or several that were written without knowledge of each other. All heads
are kept and can be shown; one wins by a rule that needs no agreement. What heads have seen is kept as a history.

`merge` is commutative, associative and idempotent, so that peers which exchange what they have, in any order and as often as
they like, end with the same (Shapiro et al., Conflict-Free Replicated Data Types, 2011). For that the history keeps the newest
in one order of all versions there can be: one that falls behind MOST_OLDER others stays behind them whatever else comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciuic_p2p.core.objects import ObjectVersion

MOST_OLDER = 16
"""Versions that are kept besides the heads."""

Versions = tuple[ObjectVersion, ...]


def merge(known: Iterable[ObjectVersion], incoming: Iterable[ObjectVersion]) -> Versions:
    """The heads of both, the winner first, and then the newest of what they have seen, at most MOST_OLDER.

    Raises ValueError for versions of different objects.
    """
    versions = {*known, *incoming}
    if len({(version.bucket, version.key) for version in versions}) > 1:
        raise ValueError("versions of different objects do not merge")
    heads = find_heads(versions)
    older = sorted(versions.difference(heads), key=_newness, reverse=True)
    return heads + tuple(older[:MOST_OLDER])


def find_heads(versions: Iterable[ObjectVersion]) -> Versions:
    """Those that no other one has seen, the winner first. Several: a conflict."""
    distinct = set(versions)
    heads = [version for version in distinct if not any(other.vector.supersedes(version.vector) for other in distinct)]
    return tuple(sorted(heads, key=_precedence, reverse=True))


def winner(versions: Iterable[ObjectVersion]) -> ObjectVersion | None:
    """What a reader gets; a tombstone: nothing. None when there are no versions.

    The last writer wins: who had seen the others, whatever any clock says. Among heads the later one by its author's clock,
    so that a clock which is hours off wins over nothing but what it did not know of. A tombstone removes only what it had
    seen, and so loses to every write among the heads.
    """
    return next(iter(find_heads(versions)), None)


def _precedence(version: ObjectVersion) -> tuple[bool, int, str, bytes]:
    """Among heads. No two are alike in all of it: the signature covers the rest."""
    return not version.is_tombstone, version.created_at_ms, version.author, version.signature


def _newness(version: ObjectVersion) -> tuple[int, int, str, bytes]:
    """One that has seen another is newer than it: it counts more writes."""
    return version.vector.writes(), version.created_at_ms, version.author, version.signature
