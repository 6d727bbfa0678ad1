"""What is remembered of each other peer, and the link to it while a session is open. Refuses to open or close connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.lane_group import LaneGroup
from ciuic_p2p.net.meters import Meter
from ciuic_p2p.net.moving import Mover
from ciuic_p2p.net.outbox import Outbox
from ciuic_p2p.net.pairing import Pairing
from ciuic_p2p.net.session import Session
from ciuic_p2p.terms import PeerId


@dataclass(eq=False, slots=True)
class Link:
    """A session with its lanes and the frames that wait for them."""

    session: Session
    outbox: Outbox
    lanes: LaneGroup
    mover: Mover
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection became the session; lanes may come a little earlier."""


@dataclass(eq=False, slots=True)
class Contact:
    """A peer that once proved its membership, or that is wanted."""

    peer: PeerId
    pairing: Pairing = field(default_factory=Pairing)
    meter: Meter = field(default_factory=Meter)
    link: Link | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the link opened, moved or closed."""


class Contacts:
    """Reading is thread-safe; all else belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._contacts: dict[PeerId, Contact] = {}

    def get(self, peer: PeerId) -> Contact:
        """Only for peers that proved their membership or are wanted: a contact is kept for good."""
        if peer not in self._contacts:
            # replaced, not changed: other threads may be going through the old one
            self._contacts = {**self._contacts, peer: Contact(peer)}
        return self._contacts[peer]

    def find(self, peer: PeerId) -> Contact | None:
        return self._contacts.get(peer)

    def link_to(self, peer: PeerId) -> Link:
        """Raises PeerUnreachable without an open session."""
        contact = self._contacts.get(peer)
        link = contact.link if contact is not None else None
        if link is None:
            raise PeerUnreachable(f"there is no session with peer {peer}")
        return link

    def __iter__(self) -> Iterator[Contact]:
        return iter(self._contacts.values())
