"""Another plan of an epoch comes while a thread still works for the first one: what it does is not the new round's."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from test_late_comers import hash_of

from ciuic_p2p.core.events import PeerReturned
from ciuic_p2p.core.frames import FrameHeader, FrameKind
from ciuic_p2p.core.messages import Plan, Span
from ciuic_p2p.daemon.runhost import RunHost, Surroundings
from ciuic_p2p.daemon.snapshotting import Keeper
from ciuic_p2p.daemon.values import LOSSLESS
from ciuic_p2p.store.memory import MemoryStore
from ciuic_p2p.store.snapshots import Snapshots
from ciuic_p2p.terms import PeerId

ME, LEADER = PeerId("me"), PeerId("leader")
COUNT = 2048
SNAPSHOTS = tempfile.TemporaryDirectory(prefix="ciuic-test-")
"""Removed when the tests have ended."""


def plan(term: int, part_values: int) -> Plan:
    return Plan(
        run="run",
        epoch=0,
        term=term,
        base_hash=hash_of(0),
        contributors=(LEADER,),
        listeners=(ME,),
        spans=(Span(owner=LEADER, start=0, stop=COUNT),),
        count=COUNT,
        parameter_count=COUNT,
        part_values=part_values,
        codec="float32",
        lossless_level=0,
        reason="",
        outer_learning_rate=1.0,
        outer_momentum=0.0,
        predicted_s=1.0,
        patience_s=3.0,
    )


def nothing(*_: object, **__: object) -> None: ...


def host_that_listens(pool: ThreadPoolExecutor) -> RunHost:
    around = Surroundings(
        me=ME,
        transport=cast(Any, SimpleNamespace(send_message=nothing, send_frames=nothing, discard_frames=nothing)),
        sign=lambda data: data,
        name_of=str,
        pool=pool,
        tasks=cast(Any, None),
        pacemaker=cast(Any, SimpleNamespace(round_opened=nothing, round_closed=nothing)),
        keeper=Keeper(ME, Snapshots(Path(SNAPSHOTS.name), MemoryStore()), every_s=3600.0, sign=lambda data: data),
    )
    return RunHost("run", around, seed_wait_s=60.0)


def result_frame(host: RunHost, term: int, values: int) -> tuple[FrameHeader, memoryview]:
    header = FrameHeader(
        kind=FrameKind.RESULT, codec=LOSSLESS.code, run=host.tag, epoch=0, term=term, part=1, length=4 * values, samples=1
    )
    return header, np.ones(values, "<f4").data.cast("B")


def test_a_result_that_was_being_stored_is_not_the_new_round_s() -> None:
    async def scene() -> None:
        with ThreadPoolExecutor(1) as pool:
            host = host_that_listens(pool)
            host.handle(PeerReturned(peer=LEADER))
            host.message_received(LEADER, plan(term=1 << 16, part_values=512))
            old = host._values[0]
            store = old.store_result

            def store_while_another_plan_comes(*arguments: Any, **named: Any) -> None:
                host.message_received(LEADER, plan(term=2 << 16, part_values=1024))
                store(*arguments, **named)

            old.store_result = store_while_another_plan_comes  # type: ignore[method-assign]
            host.frame_received(LEADER, *result_frame(host, 1 << 16, 512))
            current = host.machine.rounds[0]
            assert host._values[0] is not old
            assert current.plan.term == 2 << 16
            assert current.resolved == set()
            # and the new round's own result is taken
            host.frame_received(LEADER, *result_frame(host, 2 << 16, 1024))
            assert current.resolved == {1}

    asyncio.run(scene())


def test_a_plan_of_somebody_who_is_gone_leaves_nothing_behind() -> None:
    async def scene() -> None:
        with ThreadPoolExecutor(1) as pool:
            host = host_that_listens(pool)
            host.message_received(LEADER, plan(term=1 << 16, part_values=512))
            assert host.machine.rounds == {}
            assert host._values == {}

    asyncio.run(scene())
