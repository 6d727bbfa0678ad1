"""The trainer's tie to its daemon: attaches, asks, waits, and ties again when the daemon was restarted. Knows no model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ciuic_p2p.errors import DaemonGone, NoDaemon, SwarmError
from ciuic_p2p.local.channel import DaemonChannel, error_of, open_channel, start_command
from ciuic_p2p.local.exchange import Exchange
from ciuic_p2p.local.protocol import (
    Advanced,
    AskLease,
    AskPosition,
    Attach,
    Attached,
    Leased,
    Leave,
    Message,
    Position,
    Progress,
    Ready,
    Refused,
    StrategySettings,
    Waiting,
)
from ciuic_p2p.tensors.layout import Layout
from ciuic_p2p.train.log import get_log

log = get_log(__name__)

Answer = TypeVar("Answer", bound=Message)

PATIENCE_S = 120.0
"""How long a trainer waits for a daemon that went away; a restart, with fetching nothing, takes seconds."""
_RETRY_S = 0.5
_REMIND_S = 30.0
"""Silence after which the log says that the trainer still waits."""


class Attachment:
    """One trainer of one run at the daemon of one home. Owns the exchange."""

    def __init__(self, home: Path, run: str, layout: Layout, strategy: StrategySettings) -> None:
        self._home = home
        self._attach = Attach(run=run, layout=layout.to_wire(), strategy=strategy, pid=os.getpid())
        self._channel: DaemonChannel | None = None
        self.exchange = Exchange(layout.count)

    @property
    def attached(self) -> bool:
        """False once the daemon was seen to be gone."""
        return self._channel is not None

    def attach(self) -> Attached:
        """The exchange holds the trainer's parameters before and the anchor after.

        Raises NoDaemon, LayoutMismatch or what else the daemon refuses with; DaemonGone when it ends meanwhile.
        """
        self._channel = open_channel(self._home)
        try:
            self._channel.send(self._attach, self.exchange.descriptor)
            return self._await(Attached)
        except BaseException:
            self._drop()
            raise

    def attach_again(self, fill_exchange: Callable[[], None]) -> Attached:
        """Tries until the daemon is back; `fill_exchange` writes the trainer's parameters before each try.

        Raises DaemonGone, with the remedy, when it does not come back in time, and what `attach` raises.
        """
        self._drop()
        log.warning("daemon.gone", home=str(self._home), waiting_s=PATIENCE_S)
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                fill_exchange()
                attached = self.attach()
                log.warning("daemon.back", epoch=attached.epoch)
                return attached
            except (NoDaemon, DaemonGone):
                if time.monotonic() > deadline_s:
                    what = f"the daemon of {self._home} did not come back within {PATIENCE_S:.0f} s"
                    raise DaemonGone(what, f"start it again with `{start_command(self._home)}`") from None
            time.sleep(_RETRY_S)

    def report(self, progress: Progress) -> None:
        """Tells the daemon how far the trainer is. A daemon that is gone is noticed, not waited for: training goes on."""
        if self._channel is None:
            return
        try:
            self._channel.send(progress)
        except DaemonGone as error:
            log.warning("daemon.gone", home=str(self._home), error=str(error))
            self._drop()

    def advance(self, ready: Ready) -> Advanced:
        """Hands over the exchange and waits for the new anchor in it. Raises DaemonGone, and what the daemon refuses with."""
        return self._ask(ready, Advanced)

    def position(self) -> Position:
        """This trainer's share of a dataset. Raises DaemonGone."""
        return self._ask(AskPosition(), Position)

    def lease(self, ask: AskLease) -> Leased:
        """What this trainer holds of a dataset. Raises DaemonGone, LocalError when the run knows another one by this name."""
        return self._ask(ask, Leased)

    def leave(self) -> None:
        """Says goodbye, if the daemon still listens, and lets go of the exchange."""
        if self._channel is not None:
            try:
                self._channel.send(Leave())
            except SwarmError as error:
                log.info("daemon.gone_before_leaving", home=str(self._home), error=str(error))
        self._drop()
        self.exchange.close()

    def _ask(self, message: Message, answer: type[Answer]) -> Answer:
        if self._channel is None:
            raise DaemonGone(f"the daemon of {self._home} went away", f"start it again with `{start_command(self._home)}`")
        self._channel.send(message)
        return self._await(answer)

    def _await(self, answer: type[Answer]) -> Answer:
        assert self._channel is not None
        while True:
            match self._channel.receive(_REMIND_S):
                case None:
                    log.warning("daemon.silent", waiting_for=answer.type, seconds=_REMIND_S)
                case Waiting(why=why):
                    log.info("daemon.waiting", why=why)
                case Refused() as refused:
                    raise error_of(refused)
                case message if isinstance(message, answer):
                    return message
                case message:
                    log.warning("daemon.unexpected", message=message and message.type, waiting_for=answer.type)

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
