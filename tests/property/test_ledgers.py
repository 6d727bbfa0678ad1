"""The ledgers of a run: what plans grant, what reports are believed, and what anybody may send."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.core.ledgers import (
    LARGEST_LEDGERS_BYTES,
    NO_LEDGERS,
    Grant,
    Ledgers,
    Used,
    UseReport,
    Wanted,
    decode_report,
    decode_reports,
    encode_report,
    encode_reports,
    share_out,
)
from ciuic_p2p.core.messages import Plan, Span, Standing, decode, encode
from ciuic_p2p.core.parts import cut_parts
from ciuic_p2p.daemon.buffers import Buffers
from ciuic_p2p.daemon.reports import Reports
from ciuic_p2p.daemon.values import LOSSLESS, RoundValues
from ciuic_p2p.data.slots import Slots
from ciuic_p2p.errors import MalformedMessage, MalformedPayload
from ciuic_p2p.terms import PeerId, StateHash

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")

slots = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 30))).map(
    lambda found: Slots.of((number, start, start + length) for number, start, length in found)
)
reports = st.dictionaries(
    st.sampled_from([A, B, C]),
    st.dictionaries(st.sampled_from(["train", "more", "unknown"]), slots).map(
        lambda found: tuple(Used(dataset=name, slots=each) for name, each in found.items())
    ),
)


def grants(count: int = 50, **shares: int) -> tuple[Grant, ...]:
    return (Grant(dataset="train", count=count, shares=tuple((PeerId(peer), share) for peer, share in shares.items())),)


def report(*stretches: tuple[int, int, int]) -> UseReport:
    return (Used(dataset="train", slots=Slots.of(stretches)),)


@given(rounds=st.lists(st.tuples(reports, st.dictionaries(st.sampled_from("abc"), st.integers(1, 90), min_size=1)), max_size=8))
@settings(max_examples=60)
def test_whatever_is_reported_counts_only_for_what_its_sender_held(
    rounds: list[tuple[dict[PeerId, UseReport], dict[str, int]]],
) -> None:
    ledgers, used = NO_LEDGERS, Slots()
    for found, shares in rounds:
        plan = grants(**shares)
        granted = ledgers.granted(plan)
        for peer, entries in found.items():
            for each in entries:
                believed = each.slots & granted.lease_of(each.dataset, peer)
                assert not (believed & used).count, "a slot that was used is held again"
                used |= believed
        ledgers = Ledgers.from_bytes(granted.settled(found, plan).to_bytes())
        ledger = ledgers.find("train")
        assert ledger is not None
        assert not ledger.positions.unused(used).count
        finished = ledger.positions.finished * ledger.positions.count
        assert finished + ledger.positions.beyond.count == used.count, "something else counts as used"
        assert ledgers.find("unknown") is None


def test_plans_give_by_speed_and_never_less_than_a_round_takes() -> None:
    wanted = {peer: (Wanted(dataset="train", count=10_000, samples=100),) for peer in (A, B, C)}
    (grant,) = share_out(wanted, {A: 10.0, B: 0.0, C: 300.0}, NO_LEDGERS)
    shares = dict(grant.shares)
    assert 100 == shares[A] < shares[B] < shares[C], "one that was not measured yet is taken for an average one"


def test_a_peer_with_another_dataset_under_the_same_name_is_given_nothing() -> None:
    wanted = {A: (Wanted(dataset="train", count=50, samples=5),), B: (Wanted(dataset="train", count=51, samples=5),)}
    (grant,) = share_out(wanted, {}, NO_LEDGERS)
    assert (grant.count, [peer for peer, _ in grant.shares]) == (50, [A])
    ledgers = NO_LEDGERS.granted(grant for grant in grants(count=51, b=5))
    assert ledgers.granted(grants(count=50, a=5)) == ledgers, "nor is it by a plan"


def test_a_small_dataset_is_divided_in_each_of_its_passes() -> None:
    ledgers = NO_LEDGERS.granted(grants(count=10, a=20, b=10))
    assert [ledgers.lease_of("train", peer).in_pass(0).count for peer in (A, B)] == [7, 3]
    assert [ledgers.lease_of("train", peer).count for peer in (A, B)] == [20, 10]


def test_what_a_plan_does_not_speak_of_stays_as_it_is() -> None:
    ledgers = NO_LEDGERS.granted(grants(a=20))
    other = Grant(dataset="more", count=9, shares=((B, 3),))
    assert ledgers.granted((other,)).lease_of("train", A) == ledgers.lease_of("train", A)
    assert ledgers.covers(A, report((0, 0, 20)))
    assert not ledgers.covers(A, report((0, 19, 21)))
    assert not ledgers.covers(B, report((0, 0, 1)))


def test_ledgers_never_outgrow_the_message_that_they_travel_in() -> None:
    rng, ledgers = random.Random(3), NO_LEDGERS
    names = [f"peer-{number:042}" for number in range(300)]
    for _ in range(20):
        plan = (Grant(dataset="train", count=3, shares=tuple((PeerId(n), rng.randrange(1, 600)) for n in names)),)
        ledgers = ledgers.granted(plan)
        assert len(ledgers.to_bytes()) <= LARGEST_LEDGERS_BYTES


@given(found=reports)
def test_reports_survive_the_wire(found: dict[PeerId, UseReport]) -> None:
    assert decode_reports(encode_reports(found), 1 << 20) == found
    for each in found.values():
        assert decode_report(encode_report(each)) == each


@given(
    data=st.binary(max_size=64)
    | st.recursive(st.integers(-(2**63), 2**63) | st.text(max_size=3), st.lists, max_leaves=12).map(msgpack.packb)
)
def test_bytes_from_anyone_are_ledgers_or_malformed(data: bytes) -> None:
    readers: list[Callable[[bytes], object]] = [Ledgers.from_bytes, decode_report, lambda d: decode_reports(d, 1 << 20)]
    for read in readers:
        with contextlib.suppress(MalformedMessage):
            read(data)


PLAN = Plan(
    run="run",
    epoch=3,
    term=1,
    base_hash=StateHash("0" * 64),
    contributors=(A, B),
    listeners=(C,),
    spans=(Span(owner=B, start=0, stop=10),),
    count=10,
    parameter_count=10,
    part_values=4096,
    codec="int8",
    lossless_level=3,
    reason="",
    outer_learning_rate=0.7,
    outer_momentum=0.6,
    predicted_s=0.1,
    patience_s=3.0,
    grants=grants(a=5, c=5),
)


def test_plans_and_standings_with_datasets_survive_the_wire() -> None:
    wanted = (Wanted(dataset="train", count=50, samples=5),)
    standing = Standing(
        run="run", layout="L", epoch=1, state_hash=StateHash(""), samples=0, training=True, samples_per_s=1.0, wanted=wanted
    )
    for message in (PLAN, standing):
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "wrong",
    [
        grants(z=5),
        (*grants(a=5), *grants(b=5)),
        (Grant(dataset="z", count=1, shares=((A, 1),)), Grant(dataset="a", count=1, shares=((A, 1),))),
    ],
)
def test_grants_to_nobody_of_the_plan_or_out_of_order_are_refused(wrong: tuple[Grant, ...]) -> None:
    with pytest.raises(ValueError, match="grant"):
        dataclasses.replace(PLAN, grants=wrong)


def test_the_last_part_carries_what_each_contributor_said_itself() -> None:
    # given the plan's part for reports, which is the leader's
    *_, last = cut_parts(PLAN)
    assert (last.owner, last.count, last.is_report) == (A, 0, True)
    owner, member = RoundValues(PLAN, Buffers(), A), RoundValues(PLAN, Buffers(), B)
    number = len(owner.parts) - 1
    # when two report, one says what is no report, and one speaks under an old term
    code = LOSSLESS.code
    owner.add(number, memoryview(encode_report(report((0, 0, 3)))), code, 7, 1, packed=True, sender=B)
    with pytest.raises(MalformedPayload):
        owner.add(number, memoryview(b"no report"), code, 7, 1, packed=True, sender=C)
    owner.add(number, memoryview(encode_report(report((0, 3, 5)))), code, 5, 1, packed=True, sender=A)
    owner.add(number, memoryview(encode_report(report((0, 9, 10)))), code, 5, 0, packed=True, sender=C)
    owner.publish(number, 1)
    code, payload = owner.result_payload(number)
    member.store_result(number, payload, code, owner.weight_of(number), packed=True)
    # then all hold the same reports
    assert owner.reports.found == member.reports.found == {A: report((0, 3, 5)), B: report((0, 0, 3))}
    assert owner.weight_of(number) == member.weight_of(number) == 12
    with pytest.raises(MalformedPayload):
        Reports().store(memoryview(b"\xc1"))


@given(speeds=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=5))
def test_no_speed_that_is_told_keeps_the_leader_from_sharing_out(speeds: list[float]) -> None:
    told: dict[PeerId, Standing] = {}
    for number, samples_per_s in enumerate(speeds):
        with contextlib.suppress(ValueError):  # refused where it arrives
            told[PeerId(f"peer-{number}")] = Standing(
                run="run",
                layout="L",
                epoch=0,
                state_hash=StateHash("h"),
                samples=0,
                training=True,
                samples_per_s=samples_per_s,
                wanted=(Wanted(dataset="train", count=100, samples=10),),
            )
    found = share_out(
        {peer: each.wanted for peer, each in told.items()}, {p: s.samples_per_s for p, s in told.items()}, NO_LEDGERS
    )
    assert all(samples >= 10 for grant in found for _, samples in grant.shares)
    assert len(found) == bool(told)
