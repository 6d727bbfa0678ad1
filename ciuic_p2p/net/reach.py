"""Calls and streams to peers whose addresses are in the book. Decides nothing about membership."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hivemind.p2p import PeerID

from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.addressbook import AddressBook, answering
from ciuic_p2p.net.admission import Admission, AdmittingControl
from ciuic_p2p.net.multiaddrs import EncodedMultiaddr
from ciuic_p2p.terms import PeerId


class ReachingControl(AdmittingControl):
    """p2pd itself finds nobody (it runs no DHT that answers), so it is told where to dial."""

    def __init__(self, sockets: tuple[Path, Path], call_limit_s: float, admission: Admission, book: AddressBook) -> None:
        """sockets: of p2pd's control, and where it delivers streams."""
        super().__init__(*sockets, call_limit_s, admission)
        self._book = book

    async def prepare_to_meet(self, peer: PeerId) -> None:
        """Makes a connection if one is needed and an address is known. Raises PeerUnreachable, P2PDown."""
        addresses = self._book.addresses_of(peer)
        if not addresses:
            return  # perhaps the peer has connected to us; the call will tell
        if peer in await self.connected_peers():
            return
        reachable = await answering(addresses)
        if not reachable:
            raise PeerUnreachable(f"peer {peer} takes no connections at {', '.join(addresses)}")
        await self.connect(PeerID.from_base58(peer), map(EncodedMultiaddr, reachable))

    async def open_stream(self, peer: PeerId, proto: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises PeerUnreachable, P2PDown."""
        await self.prepare_to_meet(peer)
        _, reader, writer = await self.stream_open(PeerID.from_base58(peer), (proto,))
        return reader, writer
