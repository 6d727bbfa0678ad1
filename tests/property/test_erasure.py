"""Any k of k + m shards give all of them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciuic_p2p.tensors.erasure import Code, encode, rebuild


@st.composite
def stripes(draw: st.DrawFn) -> tuple[int, int, list[bytes], list[int]]:
    """k, m, the data, and which k are left."""
    k, m = draw(st.integers(2, 10)), draw(st.integers(1, 6))
    data = draw(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=k))
    left = draw(st.permutations(range(k + m)).map(lambda order: sorted(order[:k])))
    return k, m, data, left


@given(stripes())
def test_any_k_give_all_the_others(stripe: tuple[int, int, list[bytes], list[int]]) -> None:
    k, m, data, left = stripe
    parity = encode(data, Code(k=k, m=m))
    width = max(map(len, data))
    whole = [*data, *([b""] * (k - len(data))), *parity]
    padded = [bytes(shard).ljust(width, b"\0") for shard in whole]
    rebuilt = rebuild({number: whole[number] for number in left}, range(k + m), k, width)
    assert [bytes(shard) for shard in rebuilt] == padded


def test_every_choice_of_four_from_four_and_two_and_across_pieces() -> None:
    data = [bytes([number + 1]) * (300_000 + number) for number in range(4)]
    whole = [*data, *encode(data, Code(k=4, m=2))]
    for left in combinations(range(6), 4):
        lost = [number for number in range(6) if number not in left]
        rebuilt = rebuild({number: whole[number] for number in left}, lost, 4, 300_003)
        for number, shard in zip(lost, rebuilt, strict=True):
            assert bytes(shard[: len(whole[number])]) == bytes(whole[number])


def test_the_parity_of_a_stripe_is_always_the_same_bytes() -> None:
    """Peers with other versions rebuild the same shards, or their names would not fit."""
    assert [shard.hex() for shard in encode([b"one", b"two", b"six"], Code(k=3, m=2))] == EXPECTED


EXPECTED = ["6c0de2", "5013a2"]


@pytest.mark.parametrize(("k", "m"), [(0, 1), (1, 1), (2, 0), (30, 5)])
def test_a_code_that_cannot_be_is_refused(k: int, m: int) -> None:
    with pytest.raises(ValueError, match=r"2\+1 is the least"):
        Code(k=k, m=m)


def test_fewer_than_k_are_not_enough() -> None:
    with pytest.raises(ValueError, match="2 shards are here, 3 are needed"):
        rebuild({0: b"a", 4: b"b"}, [1], 3, 1)
