"""Listen addresses, tried before the libp2p child process gets them: it says nothing of one bad address among several."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from ciuic_p2p.errors import AddressUnusable
from ciuic_p2p.net.multiaddrs import is_multiaddr

_FAMILIES = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}
_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def settle_ports(listen: Iterable[str]) -> tuple[str, ...]:
    """The same multiaddrs with port 0 replaced by a free port, so that a restarted child process listens where it did before.

    Raises AddressUnusable for an address that is none, is taken, or does not exist on this machine.
    """
    return tuple(_settle(address) for address in listen)


def _settle(address: str) -> str:
    parts = address.split("/")
    if not is_multiaddr(address) or len(parts) < 5 or parts[1] not in _FAMILIES or parts[3] not in _KINDS:
        raise AddressUnusable(f"{address!r} is not an address to listen on", "it looks like /ip4/0.0.0.0/tcp/4001")
    parts[4] = str(_bind_once(address, parts))
    return "/".join(parts)


def _bind_once(address: str, parts: list[str]) -> int:
    """Without SO_REUSEPORT, which the child process sets: two of them would share a port in silence."""
    with socket.socket(_FAMILIES[parts[1]], _KINDS[parts[3]]) as probe:
        if parts[3] == "tcp":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a port used a minute ago counts as taken
        try:
            probe.bind((parts[2], int(parts[4])))
        except OSError as error:
            raise _unusable(address, error) from None
        port: int = probe.getsockname()[1]
        return port


def _unusable(address: str, error: OSError) -> AddressUnusable:
    match error.errno:
        case errno.EADDRINUSE:
            return AddressUnusable(f"{address} is in use by another program", "end it, or choose another port with --listen")
        case errno.EADDRNOTAVAIL:
            return AddressUnusable(f"{address} is no address of this machine", "choose another one with --listen")
        case errno.EACCES:
            return AddressUnusable(f"{address} may not be used by this user", "choose a port above 1023 with --listen")
    return AddressUnusable(f"{address} cannot be listened on: {error.strerror}", "choose another one with --listen")
