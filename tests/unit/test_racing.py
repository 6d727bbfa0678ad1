"""Several ways at once: the first that works is taken, the others end, and the most telling failure is reported."""

from __future__ import annotations

import asyncio

import pytest

from ciuic_p2p.errors import PeerUnreachable, RemoteError
from ciuic_p2p.net.racing import Way, take_first


class Track:
    """Ways that end when the test says so."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []

    def way(self, name: str, error: Exception | None, *, hangs: bool = False, head_start_s: float = 0.0) -> Way:
        async def attempt() -> None:
            self.started.append(name)
            try:
                if hangs:
                    await asyncio.Event().wait()
                if error is not None:
                    raise error
            finally:
                self.ended.append(name)

        return Way(attempt, head_start_s)


def test_a_way_that_works_is_enough() -> None:
    track = Track()
    asyncio.run(take_first([track.way("one", None, head_start_s=60), track.way("two", None)]))
    assert track.started == ["one"]


def test_the_next_is_tried_beside_one_that_hangs_and_both_end() -> None:
    track = Track()
    ways = [track.way("one", None, hangs=True, head_start_s=0.01), track.way("two", None)]
    asyncio.run(take_first(ways))
    assert track.started == ["one", "two"]
    assert sorted(track.ended) == ["one", "two"]


def test_a_failure_does_not_wait_for_the_head_start_to_end() -> None:
    track = Track()
    ways = [track.way("one", PeerUnreachable("no"), head_start_s=3600), track.way("two", None)]
    asyncio.run(take_first(ways))
    assert track.ended == ["one", "two"]


def test_all_failures_are_told_but_a_broken_protocol_before_all() -> None:
    track = Track()
    ways = [track.way("one", PeerUnreachable("no route")), track.way("two", PeerUnreachable("refused"))]
    with pytest.raises(PeerUnreachable, match="no route; refused"):
        asyncio.run(take_first(ways))
    with pytest.raises(RemoteError, match="wrong token"):
        asyncio.run(take_first([*ways, track.way("three", RemoteError(None, "wrong token"))]))
    with pytest.raises(PeerUnreachable, match="no address and no relay"):
        asyncio.run(take_first([]))
