"""Real daemons, on loopback or in the lab, and what they show of themselves. Measures nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.children import Child, module_argv
from ciuic_p2p.daemon.main import LOG_FILE
from ciuic_p2p.errors import LocalError
from ciuic_p2p.lab.lab import RunningLab
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import AskView, View

READY_S = 60.0
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer runs: a host of the lab, or this machine."""

    name: str
    address: str
    lab: RunningLab | None = None

    def command(self, argv: list[str]) -> list[str]:
        return argv if self.lab is None else self.lab.command(self.name, argv)


class Peer:
    """One daemon. It logs all that it can."""

    def __init__(self, place: Place, home: Path, join: str | None) -> None:
        self.place, self.home = place, home
        self.log = home / LOG_FILE
        options = {"home": home, "name": place.name, "region": place.name.rstrip("0123456789")}
        argv = [*module_argv("ciuic_p2p", **options, listen=f"/ip4/{place.address}/tcp/0"), "--json", "--log-level", "debug"]
        argv.insert(3, "start")
        home.parent.mkdir(parents=True, exist_ok=True)
        self.daemon = Child(f"the daemon of {place.name}", place.command([*argv, *(["--join", join] if join else [])]))
        try:
            self.facts = self.daemon.hear(READY_S)
        except BaseException:
            self.daemon.stop()
            raise


@contextmanager
def swarm(places: Sequence[Place], folder: Path) -> Iterator[list[Peer]]:
    """All daemons, joined to the first."""
    peers: list[Peer] = []
    try:
        for place in places:
            join = peers[0].facts["join"] if peers else None
            peers.append(Peer(place, folder / place.name, join))
        yield peers
    finally:
        for peer in peers:
            peer.daemon.ask_to_end()
        for peer in peers:
            peer.daemon.stop()


def ask(peer: Peer, what: str) -> Any:
    """One of the daemon's views. Raises LocalError when it does not show it."""
    with open_channel(peer.home) as channel:
        channel.send(AskView(what=what))
        answer = channel.receive(ANSWER_S)
    if not isinstance(answer, View):
        raise LocalError(f"the daemon of {peer.place.name} did not show its {what}")
    return answer.value
