"""`ciuic-peer start`: one daemon in the foreground, from its settings to its exit status. Knows no protocol."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import sys

import structlog
import uvloop

from ciuic_p2p.config import DaemonConfig
from ciuic_p2p.daemon.daemon import Daemon
from ciuic_p2p.net.home import Home

LOG_FILE = "daemon.log"
MOST_OPEN_FILES = 65_536
LEAVING_LIMIT_S = 4.5
"""The whole of it, so that a daemon that was told to stop is gone within 5 s whatever the network does."""


def run_daemon(config: DaemonConfig) -> int:
    """Returns when the daemon was told to stop: 0. Raises LocalError or Transient when it could not start."""
    _allow_open_files()
    with Home.open(config.home) as home:
        _configure_logs(config, home)
        status: int = uvloop.run(_serve(config, home))
        return status


def _allow_open_files() -> None:
    """As many as the system lets this user have, within reason: each lane and each splice needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(config: DaemonConfig, home: Home) -> int:
    daemon = Daemon(config, home)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, daemon.request_stop)
    try:
        await daemon.start()
        _announce(daemon)
        await daemon.run_until_stopped()
    finally:
        try:
            async with asyncio.timeout(LEAVING_LIMIT_S):
                await daemon.close()
        except TimeoutError:
            structlog.get_logger(__name__).warning("daemon.leaving_cut_short")
    return 0


def _announce(daemon: Daemon) -> None:
    facts = daemon.announcement()
    if daemon.config.json:
        print(json.dumps(facts), flush=True)
        return
    print(f"Peer {facts['name']} ({facts['region']}) is up: {facts['peer_id']}")
    print(f"Status and dashboard: {facts['http']}")
    print("Others join with:")
    print(f"  ciuic-peer start --join {facts['join']}", flush=True)


def _configure_logs(config: DaemonConfig, home: Home) -> None:
    """Events with fields, to the home's log file and, when a person watches, to the terminal. hivemind's chatter stays out."""
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    logging.getLogger("hivemind").setLevel(logging.ERROR)
    stream = home.file(LOG_FILE).open("a", buffering=1)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            _mirror(sys.stderr) if sys.stderr.isatty() else _unchanged,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )


def _mirror(terminal: object) -> structlog.types.Processor:
    render = structlog.dev.ConsoleRenderer()

    def mirror(logger: object, name: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
        print(render(logger, name, dict(event)), file=terminal)  # type: ignore[call-overload]  # a text stream
        return event

    return mirror


def _unchanged(_logger: object, _name: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    return event
