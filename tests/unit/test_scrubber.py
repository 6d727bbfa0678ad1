"""The store is read again while nothing else is to be done, and where that stands outlives the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ciuic_p2p.core.scrubbing import Pass
from ciuic_p2p.daemon import scrubbing
from ciuic_p2p.daemon.holdings import Holdings, StoreLimits
from ciuic_p2p.daemon.scrubbing import Scrubber, read_standing, write_standing
from ciuic_p2p.errors import StoreUnusable
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.terms import PeerId, ShardId


def opened(folder: Path) -> tuple[DiskStore, Holdings]:
    store = DiskStore(folder, None, 0)
    holdings = Holdings(PeerId("me"), store, StoreLimits(quota_bytes=None, reserve_bytes=0), lambda _: None, str, lambda: 0.0)
    return store, holdings


def put(store: DiskStore, holdings: Holdings, *contents: bytes) -> list[ShardId]:
    shards = [store.put(content) for content in contents]
    for shard, content in zip(shards, contents, strict=True):
        holdings.note_came(shard, len(content))
    return shards


async def scrub_until(scrubber: Scrubber, shards: int) -> None:
    running = asyncio.ensure_future(scrubber.run())
    while scrubber.done.shards < shards:  # noqa: ASYNC110 — nobody is told
        await asyncio.sleep(0)
    running.cancel()


def test_what_is_damaged_or_gone_is_held_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, holdings = opened(tmp_path)
        sound, damaged, gone = put(store, holdings, b"sound", b"damaged", b"gone")
        (tmp_path / "shards" / damaged[:2] / damaged).write_bytes(b"Damaged")
        (tmp_path / "shards" / gone[:2] / gone).unlink()
        await scrub_until(Scrubber(store, holdings, 0.05, lambda: False), 3)
        assert (holdings.mine.keys(), holdings.damaged, holdings.repaired) == ({sound}, 2, 0)
        assert (tmp_path / "damaged" / damaged).read_bytes() == b"Damaged"
        put(store, holdings, b"gone")
        assert holdings.repaired == 1

    asyncio.run(scenario())


def test_a_file_that_may_not_be_read_keeps_nobody_from_reading_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "LONGEST_SLEEP_S", 0)

    async def scenario() -> None:
        store, holdings = opened(tmp_path)
        shards = sorted(put(store, holdings, b"one", b"two", b"three"))
        verify = store.verify

        def refuse_first(shard: ShardId) -> None:  # rights mean nothing to root, who may run this
            if shard == shards[0]:
                raise StoreUnusable("no right to read it")
            verify(shard)

        monkeypatch.setattr(store, "verify", refuse_first)
        await scrub_until(Scrubber(store, holdings, 0.05, lambda: False), 2)
        assert holdings.mine.keys() == set(shards)

    asyncio.run(scenario())


def test_nothing_is_read_while_a_round_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing, "LOOK_AGAIN_S", 0)

    async def scenario() -> None:
        store, holdings = opened(tmp_path)
        put(store, holdings, b"one")
        looks: list[int] = []

        def is_busy() -> bool:
            looks.append(scrubber.done.shards)
            return len(looks) <= 20

        scrubber = Scrubber(store, holdings, 0.05, is_busy)
        await scrub_until(scrubber, 1)
        assert looks[:21] == [0] * 21

    asyncio.run(scenario())


def test_where_it_stands_is_read_back_and_anything_else_is_not(tmp_path: Path) -> None:
    (tmp_path / "incoming").mkdir()
    file, standing = tmp_path / "scrubbed", Pass(began_at_s=5.5, after="a" * 64, is_over=False, ended_at_s=1.25)
    assert read_standing(file) is None
    write_standing(file, standing)
    assert read_standing(file) == standing
    for other in (b"", b"\xc1", b"x" * 10_000, file.read_bytes()[:-1]):
        file.write_bytes(other)
        assert read_standing(file) is None
