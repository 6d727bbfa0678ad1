"""One run of the libp2p child process `p2pd`: its arguments, its start, what it prints, its end. Knows no message of ours.

It is started without hivemind's `P2P.create`, which waits for bootstrap peers, hands the whole environment to the child and
puts its control socket in a folder that everybody may list. It runs as a *client* of libp2p's own DHT at most: as a server it
would answer strangers with the addresses of members, before any admission.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

import structlog

from ciuic_p2p.errors import AddressUnusable, LocalError, P2PDown
from ciuic_p2p.net.multiaddrs import PeerAddress

log = structlog.get_logger()

LARGEST_UNARY_BYTES = 4 << 20
"""Of one unary message with its envelope; p2pd's own default. Larger ones never arrive."""
STARTUP_LIMIT_S = 15.0
STOP_LIMIT_S = 2.0
ORPHAN_LIMIT_S = 10
"""p2pd ends itself this long after the daemon that started it has died."""

_ENVIRONMENT = {"GOLOG_LOG_LEVEL": "error"}
"""All that the child process gets: no token or key that was passed to the daemon in a variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class P2pdSettings:
    """What does not change between runs of the child process."""

    identity_file: Path
    listen: tuple[str, ...]
    """Multiaddrs with ports, never 0; none: reachable through relays only."""
    announce: tuple[str, ...] = ()
    relays: tuple[PeerAddress, ...] = ()
    """Peers that may relay to this one when it cannot be reached directly."""
    relay_for_others: bool = True
    reachability: Literal["auto", "public", "private"] = "auto"
    map_ports: bool = True
    """Ask the router for a port by UPnP or NAT-PMP."""

    def arguments(self, control_socket: Path) -> list[str]:
        """Command line, without the program. Flags: `p2pd -h`."""
        given = [
            f"-id={self.identity_file}",
            f"-listen=/unix{control_socket}",
            f"-hostAddrs={','.join(self.listen)}" if self.listen else "-noListenAddrs=1",
            f"-idleTimeout={ORPHAN_LIMIT_S}s",
            f"-persistentConnMaxMsgSize={LARGEST_UNARY_BYTES}",
            f"-natPortMap={int(self.map_ports)}",
            f"-relayService={int(self.relay_for_others)}",
            "-relayDiscovery=0",
            "-autonat=1",
            "-connManager=1",
            "-tls=1",
        ]
        if self.announce:
            given.append(f"-announceAddrs={','.join(self.announce)}")
        if self.relays:
            # p2pd refuses -autoRelay without its DHT; a client of it answers nobody.
            given += ["-autoRelay=1", "-dhtClient=1", f"-trustedRelays={','.join(map(str, self.relays))}"]
        if self.reachability != "auto":
            given.append(f"-forceReachability{self.reachability.capitalize()}=1")
        return given


class P2pd:
    """A running child process. Use `P2pd.launch`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._lines: asyncio.Task[None] | None = None

    @classmethod
    async def launch(cls, settings: P2pdSettings) -> P2pd:
        """Raises AddressUnusable or LocalError when it will never start with these settings, P2PDown when it may later."""
        program = files("hivemind.hivemind_cli") / "p2pd"
        try:
            folder = Path(tempfile.mkdtemp(prefix="ciuic-p2pd-"))  # mode 0700; a home's path may be too long for a socket
        except OSError as error:
            raise LocalError(f"no temporary folder for the libp2p process's sockets: {error.strerror}") from None
        try:
            process = await asyncio.create_subprocess_exec(
                str(program),
                *settings.arguments(folder / "control"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=_ENVIRONMENT,
                start_new_session=True,  # Ctrl-C in the terminal is the daemon's to handle; it ends the child itself
            )
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise LocalError(f"the libp2p program {program} does not start: {error.strerror}", "reinstall hivemind") from None
        self = cls(process, folder)
        try:
            async with asyncio.timeout(STARTUP_LIMIT_S):
                await self._until_ready()
        except TimeoutError:
            await self.stop()
            raise P2PDown(f"the libp2p process was not ready within {STARTUP_LIMIT_S:.0f} s") from None
        except BaseException:
            await self.stop()
            raise
        self._lines = asyncio.create_task(self._log_lines(), name="p2pd lines")
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def control_socket(self) -> Path:
        return self._folder / "control"

    @property
    def listener_socket(self) -> Path:
        """Where p2pd connects to hand over incoming streams."""
        return self._folder / "listener"

    async def wait(self) -> int:
        """Until it has ended; its exit status."""
        return await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def stop(self) -> None:
        """Ends it, by force when it does not end in time, and removes its sockets."""
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            if self._lines is not None:
                self._lines.cancel()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _until_ready(self) -> None:
        said: list[str] = []
        while (line := await self._next_line()) is not None:
            if line.startswith("Peer ID:"):
                return
            said.append(line)
        await self._process.wait()
        raise _explain(said)

    async def _log_lines(self) -> None:
        """Reads on for the process's whole life: a full pipe would stop it."""
        while (line := await self._next_line()) is not None:
            log.debug("p2pd.said", line=line)

    async def _next_line(self) -> str | None:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError:  # a line over the reader's limit was dropped
            return ""
        return line.decode(errors="replace").rstrip() if line else None


def _explain(said: Sequence[str]) -> Exception:
    """p2pd's last line begins with the date and time: `2026/01/31 12:00:00 failed to …`."""
    words = said[-1].split(" ", 2) if said else []
    reason = words[-1] if words else "no reason given"
    if "address already in use" in reason:
        return AddressUnusable(f"p2pd cannot listen: {reason}", "choose another port with --listen")
    if "failed to listen" in reason or "failed to parse multiaddr" in reason:
        return AddressUnusable(f"p2pd cannot listen: {reason}", "choose another address with --listen")
    return LocalError(f"the libp2p process ended at its start: {reason}")
