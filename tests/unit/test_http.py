"""The daemon's HTTP: the commands' JSON, Prometheus text, a page; and nothing for a web page that is not the daemon's own."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from ciuic_p2p.errors import AddressUnusable, ConfigError
from ciuic_p2p.local.http import HttpServer, render_metrics, serving


class FixedViews:
    def status(self) -> dict[str, Any]:
        return {"name": "node-us", "runs": []}

    def peers(self) -> list[dict[str, Any]]:
        return [{"name": "node-us"}]

    def links(self) -> list[dict[str, Any]]:
        return [{"from": "node-us", "to": "node-eu", "rtt_ms": 90.5}]

    def rounds(self) -> list[dict[str, Any]]:
        return []

    async def plan(self, options: Mapping[str, Any]) -> dict[str, Any]:
        if "size_bytes" not in options:
            raise ConfigError("no size", "give one")
        return {"topology": "star", "asked": dict(options)}

    def metrics(self) -> dict[str, float]:
        return {"ciuic_peers": 3, 'ciuic_epoch{run="mnist"}': 7, "ciuic_bytes_sent_total": 10}


async def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str, str]:
    """Status, head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), head, body


def served(ask: Callable[[int], Awaitable[Any]], host: str = "127.0.0.1") -> Any:
    async def run() -> Any:
        async with serving(FixedViews(), host, 0) as (_, port):
            return await ask(port)

    return asyncio.run(run())


@pytest.mark.parametrize("what", ["status", "peers", "links", "rounds"])
def test_the_api_gives_the_views_as_json(what: str) -> None:
    status, head, body = served(lambda port: get(port, f"/api/v1/{what}"))
    assert status == 200
    assert "application/json" in head
    assert json.loads(body) == getattr(FixedViews(), what)()


def test_a_plan_is_asked_for_with_numbers() -> None:
    status, _, body = served(lambda port: get(port, "/api/v1/plan?size_bytes=500000000&step_s=0.5"))
    assert (status, json.loads(body)) == (200, {"topology": "star", "asked": {"size_bytes": 500_000_000, "step_s": 0.5}})


@pytest.mark.parametrize("query", ["", "?size_bytes=500MB", "?size_bytes=1e9", "?size_bytes=5&step_s=soon"])
def test_a_plan_that_cannot_be_made_is_one_line_with_the_remedy(query: str) -> None:
    status, head, body = served(lambda port: get(port, f"/api/v1/plan{query}"))
    assert status == 400
    assert "application/json" in head
    assert "; " in json.loads(body)["error"]


def test_metrics_are_prometheus_text() -> None:
    status, head, body = served(lambda port: get(port, "/metrics"))
    assert status == 200
    assert "text/plain; version=0.0.4" in head
    assert body.splitlines() == [
        "# TYPE ciuic_peers gauge",
        "ciuic_peers 3.0",
        "# TYPE ciuic_epoch gauge",
        'ciuic_epoch{run="mnist"} 7.0',
        "# TYPE ciuic_bytes_sent_total counter",
        "ciuic_bytes_sent_total 10.0",
    ]


def test_the_page_is_whole_and_fetches_nothing_from_elsewhere() -> None:
    status, head, body = served(lambda port: get(port, "/"))
    assert status == 200
    assert "content-security-policy: default-src 'self'" in head.lower()
    assert body.rstrip().endswith("</html>")
    assert "://" not in body


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost:80", 200), ("[::1]:80", 200), ("127.0.0.1", 200), ("evil.example", 400), ("10.0.0.1", 400)],
)
def test_on_loopback_a_foreign_host_name_is_refused(host: str, expected: int) -> None:
    assert served(lambda port: get(port, "/api/v1/status", host))[0] == expected


def test_listening_for_others_any_host_name_will_do() -> None:
    assert served(lambda port: get(port, "/api/v1/status", "node-us.example"), host="0.0.0.0")[0] == 200


def test_what_is_not_there_is_404_and_what_would_change_something_405() -> None:
    async def post(port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /api/v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        answer = int((await reader.read()).split()[1])
        writer.close()
        return answer

    assert served(lambda port: get(port, "/api/v1/keys"))[0] == 404
    assert served(post) == 405


@pytest.mark.parametrize("host", ["127.0.0.1", "203.0.113.1"])
def test_an_address_that_is_taken_or_foreign_is_one_line(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressUnusable, match=rf"{host}:{port}.*--http"):
            asyncio.run(HttpServer(FixedViews(), host, port).start())


def test_signals_stay_the_daemons_and_stopping_frees_the_port() -> None:
    async def run() -> None:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        server = HttpServer(FixedViews(), "127.0.0.1", 0)
        _, port = await server.start()
        await get(port, "/api/v1/status")
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        idle = await asyncio.open_connection("127.0.0.1", port)
        await server.stop()
        await server.stop()
        idle[1].close()
        socket.create_server(("127.0.0.1", port)).close()

    asyncio.run(run())


def test_a_metric_without_a_name_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="is no metric"):
        render_metrics({"1bad": 1})
    assert render_metrics({"a": float("inf"), "b": float("nan")}).splitlines()[1::2] == ["a +Inf", "b NaN"]
