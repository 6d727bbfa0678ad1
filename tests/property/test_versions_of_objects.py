"""Versions of objects: peers that exchange what they have in any order end with the same, and no conflict is lost."""

from __future__ import annotations

import random

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.heads import MOST_OLDER, find_heads, merge, winner
from ciuic_p2p.core.objects import ObjectVersion
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.core.vectors import MOST_AUTHORS, VersionVector
from ciuic_p2p.terms import PeerId

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i + 1]) * 32) for i in range(5)]
PEERS = sorted(peer_id_of(key.public_key()) for key in KEYS)
A, B, C = PEERS[:3]
MANY = settings(max_examples=100, deadline=None)
HOUR_MS = 3_600_000

vectors = st.dictionaries(st.sampled_from(PEERS), st.integers(1, 4)).map(
    lambda counters: VersionVector(tuple(sorted(counters.items())))
)


def version(vector: VersionVector, author: PeerId, created_at_ms: int = 0, content: int | None = 0) -> ObjectVersion:
    """Signed by a stand-in, which is what tells versions apart; content None: a tombstone."""
    is_removed = content is None
    return ObjectVersion(
        bucket="data",
        key="a",
        vector=vector,
        author=author,
        created_at_ms=created_at_ms,
        manifest=None if is_removed else bytes([content]),
        etag="" if is_removed else f"{content:02x}",
        signature=blake3(repr((vector, author, created_at_ms, content)).encode()).digest(64),
    )


def write(seen, author: PeerId, created_at_ms: int = 0, content: int | None = 0) -> ObjectVersion:
    """What an honest peer writes that holds `seen`."""
    vector = VersionVector()
    for head in find_heads(seen):
        vector = vector.merge(head.vector)
    return version(vector.increment(author), author, created_at_ms, content)


@st.composite
def any_sets(draw, most=12):
    """Of versions as liars might sign them too: the same vector twice, clocks that contradict vectors."""
    rows = draw(
        st.lists(st.tuples(vectors, st.sampled_from(PEERS), st.integers(0, 3), st.none() | st.integers(0, 3)), max_size=most)
    )
    return tuple(version(vector.increment(author), author, created, content) for vector, author, created, content in rows)


# -- vectors -----------------------------------------------------------------------------------------------------------


@given(vectors, vectors, vectors)
@MANY
def test_vectors_merge_to_the_least_that_has_seen_both(one, other, third):
    merged = one.merge(other)
    assert merged.has_seen(one)
    assert merged.has_seen(other)
    assert merged == other.merge(one)
    assert merged.merge(third) == one.merge(other.merge(third))
    if third.has_seen(one) and third.has_seen(other):
        assert third.has_seen(merged)


@given(vectors, vectors)
@MANY
def test_two_vectors_are_in_one_of_four_relations(one, other):
    relations = (one == other, one.supersedes(other), other.supersedes(one), one.is_concurrent_with(other))
    assert sum(relations) == 1
    if one.supersedes(other):
        assert one.writes() > other.writes()


@given(vectors, st.sampled_from(PEERS))
@MANY
def test_a_write_supersedes_what_its_author_had_seen(vector, author):
    assert vector.increment(author).supersedes(vector)
    assert vector.increment(author).count(author) == vector.count(author) + 1


@pytest.mark.parametrize(
    "counters",
    [
        ((B, 1), (A, 1)),
        ((A, 1), (A, 1)),
        ((A, 0),),
        ((A, 1 << 63),),
        ((PeerId("x" * 61), 1),),
        tuple((PeerId(f"{i:04d}"), 1) for i in range(MOST_AUTHORS + 1)),
    ],
)
def test_a_vector_that_is_not_in_its_one_form_fails_at_construction(counters):
    with pytest.raises(ValueError, match="version vector"):
        VersionVector(counters)


# -- merging -----------------------------------------------------------------------------------------------------------


@given(any_sets(), any_sets())
@MANY
def test_merging_is_commutative(one, other):
    assert merge(one, other) == merge(other, one)


@given(any_sets(), any_sets(), any_sets())
@MANY
def test_merging_is_associative(one, other, third):
    assert merge(merge(one, other), third) == merge(one, merge(other, third))


@pytest.mark.parametrize("seed", range(40))
def test_merging_is_associative_though_old_versions_are_forgotten(seed):
    # given many versions by two authors, most of which others have seen
    rng = random.Random(seed)
    versions = [
        version(VersionVector(tuple((peer, rng.randint(1, 9)) for peer in (A, B))), A, rng.randrange(3)) for _ in range(90)
    ]
    one, other, third = versions[:30], versions[30:60], versions[60:]

    # then what each merge forgets does not matter to the next one
    merged = merge(merge(one, other), third)
    assert merged == merge(one, merge(other, third)) == merge(merge(third, one), other)
    assert len(merged) == len(find_heads(versions)) + MOST_OLDER


@given(any_sets(), any_sets())
@MANY
def test_merging_again_changes_nothing(one, other):
    merged = merge(one, other)
    assert merge(merged, merged) == merge(merged, other) == merge(one, merged) == merged


@given(any_sets(), any_sets())
@MANY
def test_no_head_is_lost_and_not_too_many_others_are_kept(one, other):
    merged = merge(one, other)
    heads = find_heads((*one, *other))
    assert merged[: len(heads)] == heads == find_heads(merged)
    assert len(merged) <= len(heads) + MOST_OLDER


@pytest.mark.parametrize("seed", range(40))
def test_peers_that_write_and_exchange_in_any_order_converge(seed):
    # given five peers, with clocks that are hours off, of which one is away for most of the time
    rng = random.Random(seed)
    held: dict[PeerId, tuple[ObjectVersion, ...]] = dict.fromkeys(PEERS, ())
    skew_ms = {peer: rng.randint(0, 10) * HOUR_MS for peer in PEERS}
    written = []
    for time_ms in range(120):
        peer, other = rng.sample(PEERS[: 5 if time_ms % 40 == 0 else 4], 2)
        if rng.random() < 0.4:
            content = None if rng.random() < 0.2 else rng.randrange(256)
            written.append(write(held[peer], peer, skew_ms[peer] + time_ms, content))
            held[peer] = merge(held[peer], written[-1:])
        else:
            held[peer] = merge(held[peer], held[other])

    # when all have heard of all, each in its own order and some of it twice
    for peer in PEERS:
        for other in rng.sample([*PEERS, *PEERS], 10):
            held[peer] = merge(held[peer], held[other])

    # then they hold the same, and what nobody had seen when it ended is all there
    assert len(set(held.values())) == 1
    heads = find_heads(written)
    assert find_heads(held[A]) == heads
    assert winner(held[A]) == heads[0]


def test_a_write_that_was_away_while_many_others_were_made_is_still_a_conflict():
    first = write((), A)
    away = write((first,), B, content=7)
    known, written = (first,), [first]
    for i in range(3 * MOST_OLDER):  # by a clock that goes back
        written.append(write(known, A, created_at_ms=HOUR_MS - i))
        known = merge(known, written[-1:])
    merged = merge(known, (away,))
    assert find_heads(merged) == (known[0], away)

    # while of those that were seen the newest are kept
    assert merged[2:] == tuple(written[-2 : -2 - MOST_OLDER : -1])

    # and ends with whoever writes next and has seen it
    assert find_heads(merge(merged, (write(merged, C),))) == (write(merged, C),)


# -- who wins ----------------------------------------------------------------------------------------------------------


def test_who_had_seen_the_others_wins_whatever_the_clocks_say():
    early = write((), A, created_at_ms=10 * HOUR_MS)
    late = write((early,), B, created_at_ms=1)
    assert winner((early, late)) == late
    # a clock that is hours ahead wins over what its author did not know of
    ahead = write((early,), C, created_at_ms=9 * HOUR_MS)
    assert winner((early, late, ahead)) == ahead
    # and loses to whoever has seen it
    assert winner((early, late, ahead, write((early, late, ahead), A))).author == A


def test_of_writes_in_the_same_millisecond_the_higher_author_wins_on_every_peer():
    heads = [write((), peer) for peer in (A, B, C)]
    assert winner(heads).author == C
    assert winner(reversed(heads)).author == C


def test_a_tombstone_removes_what_it_had_seen_and_nothing_else():
    first = write((), A)
    removal = write((first,), B, created_at_ms=9 * HOUR_MS, content=None)
    assert winner((first, removal)) == removal
    # a write that nobody had told the remover of stays, however early by its clock
    other = write((first,), C, created_at_ms=0, content=3)
    assert winner((first, removal, other)) == other
    assert removal in find_heads((first, removal, other))
    # one who has seen both removes both
    both = write((removal, other), A, content=None)
    assert winner(merge((first, removal), (other, both))) == both


def test_no_versions_have_no_winner_and_different_objects_do_not_merge():
    assert winner(()) is None
    assert merge((), ()) == ()
    other = ObjectVersion(
        bucket="data", key="b", vector=VersionVector().increment(A), author=A, created_at_ms=0, manifest=b"", etag="00"
    )
    with pytest.raises(ValueError, match="different objects"):
        merge((write((), A),), (other,))
