"""A contribution that was sent nowhere waits for a later round, and is whole then, whatever the rounds between did."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from test_replaced_round import COUNT, LEADER, host_that_listens, nothing, plan

from ciuic_p2p.core.events import PeerReturned
from ciuic_p2p.core.frames import FrameHeader, FrameKind
from ciuic_p2p.core.messages import Plan, Standing
from ciuic_p2p.core.parts import Part
from ciuic_p2p.core.runs import NO_HASH
from ciuic_p2p.daemon.runhost import RunHost
from ciuic_p2p.daemon.seat import Seat
from ciuic_p2p.daemon.values import LOSSLESS
from ciuic_p2p.local.protocol import Attach, StrategySettings
from ciuic_p2p.local.trainer import Trainer
from ciuic_p2p.tensors.codecs.registry import codec_by_name
from ciuic_p2p.tensors.layout import Entry, Layout

LAYOUT = Layout((Entry(name="flat", shape=(COUNT,), dtype="float32", role="parameter"),))
SETTINGS = StrategySettings(name="DiLoCo", inner_steps=1, codec="float32", outer_learning_rate=1.0, outer_momentum=0.0)


def seat_of_a_trainer() -> Seat:
    attach = Attach(run="run", layout=LAYOUT.to_wire(), strategy=SETTINGS, pid=1)
    return Seat(Trainer(attach, np.zeros(COUNT, np.float32), nothing), attach)


def others_plan(host: RunHost, term: int) -> Plan:
    """Of the epoch that this peer holds; it only listens."""
    machine = host.machine
    assert machine.epoch is not None
    return replace(plan(term, part_values=COUNT), epoch=machine.epoch, base_hash=machine.state_hash)


def end_round(host: RunHost, plan_: Plan) -> None:
    header = FrameHeader(
        kind=FrameKind.RESULT,
        codec=LOSSLESS.code,
        run=host.tag,
        epoch=plan_.epoch,
        term=plan_.term,
        part=0,
        length=4 * COUNT,
        samples=1,
    )
    host.frame_received(LEADER, header, np.ones(COUNT, "<f4").data.cast("B"))


def test_a_round_that_this_peer_only_listened_to_leaves_its_contribution_whole() -> None:
    async def scene() -> None:
        with ThreadPoolExecutor(1) as pool:
            host = host_that_listens(pool)
            host.handle(PeerReturned(peer=LEADER))
            # given a trainer that began with the state of epoch 0, while another peer that has no state yet makes plans
            seat = seat_of_a_trainer()
            host.message_received(LEADER, without_state(seat.shape.layout))
            host.attach(seat)
            host._seed()
            await until(lambda: seat.is_attached)
            seat.trainer.exchange -= np.float32(2)
            first = others_plan(host, 1 << 16)
            host.message_received(LEADER, first)
            end_round(host, first)
            await until(lambda: host.machine.epoch == 1)

            # when it is ready with a contribution during the next round, which goes on without it and ends
            second = others_plan(host, 2 << 16)
            host.message_received(LEADER, second)
            host.trainer_ready(seat, samples=1)
            await until(lambda: host._contribution is not None)
            payloads: list[bytes | None] = []
            hold = host._hold

            def look_and_hold(*arguments: Any, **named: Any) -> None:
                payloads.append(payload_of(host))
                hold(*arguments, **named)

            host._hold = look_and_hold  # type: ignore[method-assign]
            end_round(host, second)
            await until(lambda: host.machine.epoch not in (None, 0, 1))

            # then it is there for the round after
            assert payloads[0] == np.full(COUNT, 2, "<f4").tobytes()
            host.close()

    asyncio.run(scene())


def payload_of(host: RunHost) -> bytes | None:
    assert host._contribution is not None
    whole = Part(start=0, stop=COUNT, owner=LEADER, lossless=False)
    payload = host._contribution.payload(0, whole, codec_by_name("float32"))
    return None if payload is None else bytes(payload)


def without_state(layout: str) -> Standing:
    return Standing(run="run", layout=layout, epoch=None, state_hash=NO_HASH, samples=0, training=True, samples_per_s=1.0)


async def until(holds: Any) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # threads of the pool do it: nobody could set an event for it
            await asyncio.sleep(0.005)
