"""Peers that probe each other, without sockets: whoever stands still is given up by all, who is only held up by nobody."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.liveness import FROZEN_PERIODS, SILENT_PERIODS
from ciuic_p2p.core.messages import decode
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.core.records import Capacity, PeerRecord, encode_record
from ciuic_p2p.daemon.neighbours import Neighbours
from ciuic_p2p.terms import PeerId

SWARM = "swarm"


class Host:
    """One peer: takes the place of its sessions and of its watcher."""

    def __init__(self, name: str, everyone: dict[PeerId, Host]) -> None:
        key = Ed25519PrivateKey.generate()
        self.peer = peer_id_of(key.public_key())
        record = PeerRecord(
            peer_id=self.peer,
            name=name,
            region="eu",
            version="1",
            capacity=Capacity(cores=1, memory_bytes=1, free_disk_bytes=1),
            started_at_s=1,
        )
        self.neighbours = Neighbours(self.peer, SWARM, lambda: encode_record(record, SWARM, key.sign), self)
        self.neighbours.sessions = self  # type: ignore[assignment]
        self.gone: list[PeerId] = []
        self.unreached: set[PeerId] = set()
        """Peers that hear nothing from here."""
        self._everyone = everyone
        everyone[self.peer] = self

    def probe(self) -> None:
        self.neighbours.probe()

    def send_message(self, peer: PeerId, message: bytes) -> None:
        if peer not in self.unreached:
            self._everyone[peer].neighbours.message_received(self.peer, decode(message))

    def want(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """All are met already."""

    def drop(self, peer: PeerId, error: Exception) -> None:
        self.neighbours.session_closed(peer, error)

    def discard_frames(self, _is_meant: object) -> None:
        """There are none."""

    def peer_arrived(self, peer: PeerId) -> None:
        """Nobody waits for it."""

    def peer_gone(self, peer: PeerId) -> None:
        self.gone.append(peer)


def swarm_of(names: str) -> list[Host]:
    everyone: dict[PeerId, Host] = {}
    hosts = [Host(name, everyone) for name in names]
    for host in hosts:
        for other in hosts:
            if other is not host:
                host.neighbours.session_moved(other.peer, "direct")
    for host in hosts:
        for other in hosts:
            if other is not host:
                host.neighbours.session_opened(other.peer, "direct")
    return hosts


def pass_periods(hosts: list[Host], periods: int) -> None:
    for _ in range(periods):
        for host in hosts:
            host.probe()


def stand_still(host: Host, others: list[Host]) -> None:
    host.unreached = {other.peer for other in others}


def test_who_stands_still_is_given_up_by_all_as_soon_as_they_agree():
    still, *others = swarm_of("abcd")
    pass_periods([still, *others], 2)
    stand_still(still, others)

    pass_periods(others, SILENT_PERIODS)
    assert [host.gone for host in others] == [[], [], []]
    pass_periods(others, 2)

    assert [host.gone for host in others] == [[still.peer]] * 3


def test_who_is_held_up_on_the_way_to_one_other_is_given_up_by_that_one_alone_and_late():
    held_up, first, *others = swarm_of("abcd")
    stand_still(held_up, [first])

    pass_periods([held_up, first, *others], FROZEN_PERIODS)
    assert first.gone == []
    pass_periods([held_up, first, *others], 1)

    assert first.gone == [held_up.peer]
    assert [host.gone for host in others] == [[], []]


def test_one_that_is_cut_off_gives_up_nobody_sooner_than_alone():
    cut_off, *others = swarm_of("abcd")
    for host in others:
        stand_still(host, [cut_off])

    pass_periods([cut_off], FROZEN_PERIODS)
    assert cut_off.gone == []
    pass_periods([cut_off], 1)

    assert set(cut_off.gone) == {host.peer for host in others}


def test_who_is_back_after_it_was_given_up_is_not_suspected_any_more():
    still, *others = swarm_of("abc")
    stand_still(still, others)
    pass_periods(others, SILENT_PERIODS + 2)
    assert all(host.gone == [still.peer] for host in others)

    still.unreached = set()
    for host in others:
        still.neighbours.session_opened(host.peer, "direct")
    pass_periods([still, *others], FROZEN_PERIODS)

    assert all(host.gone == [still.peer] for host in others)
    assert all(still.peer in host.neighbours.present() for host in others)
