"""`ciuic_p2p.Client`: what it asks of the daemon, what it gives back, and that it needs one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from local_kit import AveragingHost, within_half_a_minute

from ciuic_p2p import Client, LocalError, NoDaemon, ObjectMissing
from ciuic_p2p.local.protocol import (
    LONGEST_READ_BYTES,
    GetObject,
    ListObjects,
    ObjectRequest,
    PutObject,
    ReadObject,
    RemoveObject,
    StatObject,
)
from ciuic_p2p.local.server import LocalServer

PAGE = 3
CONTENT = bytes(range(251)) * (5 * LONGEST_READ_BYTES // 502)


class ObjectHost(AveragingHost):
    """Remembers what it is asked; lists ten objects, some at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[ObjectRequest] = []

    async def objects(self, request: ObjectRequest, moved: Any) -> Any:
        self.requests.append(request)
        match request:
            case PutObject() | GetObject():
                moved(1, 4)
                moved(4, 4)
                return {"address": request.address, "etag": "ab"}
            case ListObjects():
                names = [f"ciuic://data/{number}" for number in range(10)]
                rest = [name for name in names if name > request.after]
                return {"objects": [{"address": name} for name in rest[:PAGE]], "more": len(rest) > PAGE}
            case ReadObject():
                end = min(request.offset + request.length, len(CONTENT))
                return {"data": CONTENT[request.offset : end], "etag": "ab", "size_bytes": len(CONTENT)}
            case StatObject():
                raise ObjectMissing("there is no object", "look")


def with_host(home: Path, use: Any) -> ObjectHost:
    host = ObjectHost()

    async def serve() -> None:
        async with LocalServer(home / "daemon.sock", host):
            await use(Client(home))

    within_half_a_minute(serve())
    return host


def test_what_is_asked_and_answered(tmp_path: Path) -> None:
    moved: list[tuple[int, int]] = []

    async def use(client: Client) -> None:
        def note(done_bytes: int, total_bytes: int) -> None:
            moved.append((done_bytes, total_bytes))

        assert (await client.upload_file_async("file", "ciuic://data/a", note))["etag"] == "ab"
        assert (await client.download_file_async("ciuic://data/a", tmp_path / "copy"))["address"] == "ciuic://data/a"
        assert [row["address"] for row in await client.list_async("ciuic://data/")] == [f"ciuic://data/{n}" for n in range(10)]
        await client.remove_async("ciuic://data/a")
        with pytest.raises(ObjectMissing, match="there is no object; look"):
            await client.stat_async("ciuic://data/a")

    host = with_host(tmp_path, use)
    assert moved == [(1, 4), (4, 4)]
    assert host.requests[0] == PutObject(path=str(Path.cwd() / "file"), address="ciuic://data/a")
    assert host.requests[1] == GetObject(address="ciuic://data/a", path=str(tmp_path / "copy"))
    listed = [request for request in host.requests if isinstance(request, ListObjects)]
    assert [request.after for request in listed] == ["", "ciuic://data/2", "ciuic://data/5", "ciuic://data/8"]
    assert host.requests[-2:] == [RemoveObject(address="ciuic://data/a"), StatObject(address="ciuic://data/a")]


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 0), (7, 100), (1, LONGEST_READ_BYTES), (3, LONGEST_READ_BYTES + 1), (0, 1 << 40), (len(CONTENT), 5), (1 << 40, 5)],
)
def test_a_range_of_any_length_is_read_in_pieces_of_one_version(tmp_path: Path, offset: int, length: int) -> None:
    async def use(client: Client) -> None:
        assert await client.read_range_async("ciuic://data/a", offset, length) == CONTENT[offset : offset + length]

    first, *others = with_host(tmp_path, use).requests
    assert isinstance(first, ReadObject)
    assert first.etag == ""
    assert all(isinstance(other, ReadObject) and other.etag == "ab" for other in others)
    assert len(others) == max(len(CONTENT[offset : offset + length]) - 1, 0) // LONGEST_READ_BYTES


def test_a_range_before_the_beginning_is_refused(tmp_path: Path) -> None:
    for offset, length in ((-1, 5), (0, -5)):
        with pytest.raises(LocalError, match="not negative"):
            Client(tmp_path).read_range("ciuic://data/a", offset, length)


def test_several_threads_use_one_client(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await asyncio.gather(*(client.download_file_async(f"ciuic://data/{n}", f"/tmp/{n}") for n in range(20)))

    assert len(with_host(tmp_path, use).requests) == 20


def test_without_a_daemon(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for call in (
        lambda: client.upload_file("file", "ciuic://data/a"),
        lambda: client.download_file("ciuic://data/a", "file"),
        lambda: client.read_range("ciuic://data/a", 0, 1),
        lambda: list(client.list()),
        lambda: client.stat("ciuic://data/a"),
        lambda: client.remove("ciuic://data/a"),
    ):
        with pytest.raises(NoDaemon, match="start one with `ciuic-peer start"):
            call()


def test_what_a_daemon_refuses_is_raised(tmp_path: Path) -> None:
    class Refusing(ObjectHost):
        async def objects(self, request: ObjectRequest, moved: Any) -> Any:
            raise LocalError("no", "never")

    async def serve() -> None:
        async with LocalServer(tmp_path / "daemon.sock", Refusing()):
            with pytest.raises(LocalError, match="no; never"):
                await Client(tmp_path).upload_file_async("file", "address")

    within_half_a_minute(serve())
