"""What a snapshot lacks, and whose return would help."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.core.shortfall import Keeping, find_shortfall
from ciuic_p2p.terms import PeerId, ShardId

ONE, TWO, THREE = (ShardId(digit * 64) for digit in "123")


def peer(name: str, shards: set[ShardId] | None, *, is_here: bool) -> Keeping:
    return Keeping(peer=PeerId(name), is_here=is_here, shards=shards)


def test_what_somebody_here_holds_can_be_had() -> None:
    found = find_shortfall([ONE, TWO], [peer("a", {ONE}, is_here=True), peer("b", {TWO}, is_here=True)])
    assert (found.obtainable, found.lost, found.must_return) == ((ONE, TWO), (), ())


def test_who_holds_what_nobody_here_has_must_return() -> None:
    others = [peer("a", {ONE}, is_here=True), peer("b", {TWO}, is_here=False), peer("c", {THREE}, is_here=False)]
    found = find_shortfall([ONE, TWO], others)
    assert (found.obtainable, found.lost) == ((ONE,), (TWO,))
    assert (found.may_help, found.must_return, found.unaccounted) == ((PeerId("b"),), (PeerId("b"),), ())


def test_one_that_said_it_saved_all_may_have_each() -> None:
    others = [peer("a", {ONE}, is_here=False), peer("b", None, is_here=False), peer("c", {TWO}, is_here=False)]
    found = find_shortfall([ONE, TWO], others)
    assert found.may_help == (PeerId("a"), PeerId("b"), PeerId("c"))
    assert found.must_return == (PeerId("b"),)


def test_who_is_here_and_has_not_told_all_is_waited_for_and_who_has_is_not() -> None:
    found = find_shortfall([ONE], [peer("a", None, is_here=True), peer("b", set(), is_here=True)])
    assert (found.lost, found.may_help) == ((ONE,), (PeerId("a"),))


def test_what_no_known_peer_had_is_unaccounted_for() -> None:
    found = find_shortfall([ONE, TWO], [peer("a", {ONE}, is_here=False)])
    assert (found.lost, found.unaccounted, found.must_return) == ((ONE, TWO), (TWO,), (PeerId("a"),))


SHARDS = [ShardId(f"{number:064x}") for number in range(8)]


@given(
    st.sets(st.sampled_from(SHARDS)),
    st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.booleans(), st.none() | st.sets(st.sampled_from(SHARDS))), max_size=6
    ),
)
def test_those_who_must_return_have_all_that_anybody_has(
    missing: set[ShardId], others: dict[str, tuple[bool, set[ShardId] | None]]
) -> None:
    known = {PeerId(name): peer(name, shards, is_here=is_here) for name, (is_here, shards) in others.items()}
    found = find_shortfall(sorted(missing), known.values())
    assert sorted(found.obtainable + found.lost) == sorted(missing)
    returned = [known[each] for each in found.must_return]
    assert {shard for shard in found.lost if any(each.may_have(shard) for each in returned)} == set(found.lost) - set(
        found.unaccounted
    )
    assert all(each.may_have(shard) is False for each in known.values() for shard in found.unaccounted)
