"""Status, metrics and dashboard over HTTP, in the daemon's event loop. Shows, and changes nothing; knows only `Views`.

On loopback it answers only requests that name this machine as their host: otherwise a web page that the user has open
could read it by pointing a name of its own at 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ciuic_p2p.errors import AddressUnusable, ConfigError, LocalError
from ciuic_p2p.local.views import Views

DASHBOARD = Path(__file__).with_name("dashboard.html")

GRACE_S = 1
"""What an answer under way may take once the daemon ends; the whole daemon has 5 s."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


class HttpServer:
    """One server; `start` may be called once."""

    def __init__(self, views: Views, host: str, port: int) -> None:
        self._views = views
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listens and returns the address bound. Raises AddressUnusable when it is taken or not of this machine."""
        listener = _listen(self._host, self._port)
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            make_app(self._views, only_this_machine=ipaddress.ip_address(host).is_loopback),
            access_log=False,
            log_config=None,
            lifespan="off",
            ws="none",
            http="h11",
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="local.http")
        return host, port

    async def stop(self) -> None:
        """Answers what is under way, for a moment, and closes. May be called again."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._server = None


@asynccontextmanager
async def serving(views: Views, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """A server for as long as the block lasts; gives the address bound."""
    server = HttpServer(views, host, port)
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop()


class _Server(uvicorn.Server):
    """Leaves signals to the daemon."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_app(views: Views, *, only_this_machine: bool) -> Starlette:
    """The routes; with `only_this_machine`, requests that name another host are refused."""

    def view(name: str, make: Callable[[], Any]) -> Route:
        async def answer(_: Request) -> Response:
            return JSONResponse(make(), headers=HEADERS)

        return Route(f"/api/v1/{name}", answer)

    async def plan(request: Request) -> Response:
        try:
            answer = await views.plan(_read_numbers(request.query_params))
        except LocalError as error:
            return JSONResponse({"error": str(error)}, status_code=400, headers=HEADERS)
        return JSONResponse(answer, headers=HEADERS)

    async def dashboard(_: Request) -> Response:
        return HTMLResponse(DASHBOARD.read_text(encoding="utf-8"), headers=HEADERS)

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(render_metrics(views.metrics()), headers={**HEADERS, "Content-Type": METRICS_TYPE})

    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]"], www_redirect=False)]
    return Starlette(
        routes=[
            Route("/", dashboard),
            Route("/metrics", metrics),
            view("status", views.status),
            view("peers", views.peers),
            view("links", views.links),
            view("rounds", views.rounds),
            Route("/api/v1/plan", plan),
        ],
        middleware=middleware if only_this_machine else [],
    )


def _read_numbers(texts: Mapping[str, str]) -> dict[str, float]:
    """Raises ConfigError for what is none."""
    try:
        return {name: float(text) if name == "step_s" else int(text) for name, text in texts.items()}
    except ValueError:
        raise ConfigError("a number is wanted", "ask for /api/v1/plan?size_bytes=500000000&step_s=0.5") from None


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""https://prometheus.io/docs/instrumenting/exposition_formats/"""

METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def render_metrics(samples: dict[str, float]) -> str:
    """Prometheus text. A name ending in `_total` is a counter, any other a gauge. Samples of one name come together."""
    families: dict[str, list[str]] = {}
    for key, value in samples.items():
        match = METRIC_NAME.match(key)
        if match is None:
            raise ValueError(f"{key!r} is no metric")
        families.setdefault(match.group(), []).append(f"{key} {_render_number(value)}")
    lines = []
    for name, rows in families.items():
        lines += [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}", *rows]
    return "".join(f"{line}\n" for line in lines)


def _render_number(value: float) -> str:
    special = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
    text = repr(float(value))
    return special.get(text, text)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        remedy = "give --http another HOST:PORT; port 0 lets the system choose"
        raise AddressUnusable(f"HTTP cannot listen on {host}:{port} ({error.strerror})", remedy) from None
