"""Where peers can be reached, as they said themselves or as others say. Opens no connection but a probe of a TCP port."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from ciuic_p2p.net.multiaddrs import PeerAddress, is_multiaddr
from ciuic_p2p.terms import PeerId

MOST_PEERS = 1024
MOST_ADDRESSES = 16
PROBE_LIMIT_S = 3.0


class AddressBook:
    """What the peer said itself counts; what others say of it only as long as it said nothing; what the user wrote always."""

    def __init__(self, configured: Iterable[PeerAddress] = ()) -> None:
        self._configured: dict[PeerId, list[str]] = {}
        for entry in configured:
            self._configured.setdefault(entry.peer, []).append(entry.address)
        self._said: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._hearsay: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()

    @property
    def configured_peers(self) -> tuple[PeerId, ...]:
        return tuple(self._configured)

    def peers(self) -> list[PeerId]:
        """Configured ones first."""
        return list(dict.fromkeys([*self._configured, *self._said, *self._hearsay]))

    def learn(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """`peer` itself said so."""
        _remember(self._said, peer, addresses)

    def hear(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Someone else said so."""
        if peer not in self._said:
            _remember(self._hearsay, peer, addresses)

    def forget(self, peer: PeerId) -> None:
        """Keeps what the user wrote."""
        self._said.pop(peer, None)
        self._hearsay.pop(peer, None)

    def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        other = self._said.get(peer) or self._hearsay.get(peer, ())
        return tuple(dict.fromkeys([*self._configured.get(peer, ()), *other]))

    def said(self) -> dict[PeerId, tuple[str, ...]]:
        """What may be passed on."""
        return dict(self._said)


def _remember(book: OrderedDict[PeerId, tuple[str, ...]], peer: PeerId, addresses: Iterable[str]) -> None:
    good = tuple(address for address in list(addresses)[:MOST_ADDRESSES] if is_multiaddr(address))
    if good:
        book[peer] = good
        book.move_to_end(peer)
        if len(book) > MOST_PEERS:
            book.popitem(last=False)


async def answering(addresses: Iterable[str]) -> list[str]:
    """Those whose TCP port takes connections, and those that cannot be tried this way.

    p2pd backs off, up to minutes, from an address that failed; a peer that is not up yet would be found that late.
    """
    tried = list(addresses)
    open_ones = await asyncio.gather(*(_takes_connections(address) for address in tried))
    return [address for address, is_open in zip(tried, open_ones, strict=True) if is_open]


async def _takes_connections(address: str) -> bool:
    parts = address.split("/")
    if len(parts) < 5 or parts[1] not in {"ip4", "ip6", "dns", "dns4", "dns6"} or parts[3] != "tcp":
        return True
    try:
        async with asyncio.timeout(PROBE_LIMIT_S):
            _, writer = await asyncio.open_connection(parts[2], int(parts[4]))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
