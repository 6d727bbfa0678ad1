"""All that lives and dies with one run of the libp2p child process. Never restarts anything."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from ciuic_p2p.errors import P2PDown
from ciuic_p2p.net.addressbook import AddressBook
from ciuic_p2p.net.admission import Admission
from ciuic_p2p.net.dht import SwarmDHT, SwarmValidator
from ciuic_p2p.net.guard import GuardedP2P
from ciuic_p2p.net.p2pd import P2pd, P2pdSettings
from ciuic_p2p.net.reach import ReachingControl
from ciuic_p2p.net.streams import SESSION_PROTOCOL, StreamDoor
from ciuic_p2p.terms import PeerId

CHECK_EVERY_S = 5.0
CHECK_LIMIT_S = 10.0
GOODBYE_LIMIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """What outlives an incarnation."""

    settings: P2pdSettings
    call_limit_s: float
    admission: Admission
    book: AddressBook
    validator: SwarmValidator
    door: StreamDoor


class Incarnation:
    """Use `Incarnation.begin`."""

    def __init__(self, p2pd: P2pd, control: ReachingControl, p2p: GuardedP2P, dht: SwarmDHT) -> None:
        self.p2pd = p2pd
        self.control = control
        self.dht = dht
        self._p2p = p2p

    @classmethod
    async def begin(cls, lasting: Lasting, before: SwarmDHT | None) -> Incarnation:
        """before: the DHT of the last incarnation, whose records live on. Raises AddressUnusable, LocalError, P2PDown."""
        p2pd = await P2pd.launch(lasting.settings)
        sockets = (p2pd.control_socket, p2pd.listener_socket)
        control = ReachingControl(sockets, lasting.call_limit_s, lasting.admission, lasting.book)
        try:
            await control.attach()
            await control.stream_handler(SESSION_PROTOCOL, lasting.door.enter)
            p2p = GuardedP2P(control)
            await p2p.identify()
            return cls(p2pd, control, p2p, await SwarmDHT.create(p2p, lasting.validator, before))
        except BaseException as error:
            control.close()
            await p2pd.stop()
            if isinstance(error, P2PDaemonError | OSError | asyncio.IncompleteReadError):
                raise P2PDown(f"the libp2p process ended while it was set up: {error!r}") from None
            raise

    @property
    def peer_id(self) -> PeerId:
        return PeerId(self._p2p.peer_id.to_base58())

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where p2pd says this peer can be reached, as of the last check."""
        return self._p2p.addresses

    async def until_dead(self) -> str:
        """Returns the reason: the process ended, closed its socket, or has answered nothing for a while."""
        reasons = {
            asyncio.create_task(self.p2pd.wait()): "ended",
            asyncio.create_task(self.control.lost.wait()): "closed its control socket",
            asyncio.create_task(self._until_silent()): "does not answer",
        }
        try:
            done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            return reasons[done.pop()]
        finally:
            for task in reasons:
                task.cancel()

    async def end(self) -> None:
        """When it is dead already: only cleans up."""
        self.dht.retire()
        self.control.close()
        self.p2pd.kill()
        await self.p2pd.stop()

    async def leave(self) -> None:
        """In good order."""
        with suppress(TimeoutError, P2PDown):
            async with asyncio.timeout(GOODBYE_LIMIT_S):
                await self.dht.shutdown()
        self.control.close()
        await self.p2pd.stop()

    async def _until_silent(self) -> None:
        """Two checks in a row without an answer; one may be this process's own pause."""
        failures = 0
        while failures < 2:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                async with asyncio.timeout(CHECK_LIMIT_S):
                    await self._p2p.identify()
            except (TimeoutError, P2PDown):
                failures += 1
            else:
                failures = 0
