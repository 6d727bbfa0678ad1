"""Where others reach this peer's sessions, from what it listens on and what libp2p found out. Pure."""

from __future__ import annotations

import re

MOST_ADDRESSES = 8
_HOST = re.compile(r"^/(ip4|ip6|dns4|dns6|dns)/([^/]+)/")
_ANY = ("0.0.0.0", "::")


def session_addresses(bound: tuple[str, ...], visible: tuple[str, ...]) -> tuple[str, ...]:
    """bound: "host:port" listened on; visible: libp2p multiaddrs of this machine. A wildcard stands for every visible host.

    Others' machines come first, loopback last.
    """
    found: list[str] = []
    for address in bound:
        host, _, port = address.rpartition(":")
        if host.strip("[]") in _ANY:
            found += [f"{_bracketed(visible_host)}:{port}" for visible_host in _hosts(visible)]
        else:
            found.append(address)
    unique = dict.fromkeys(found)
    return tuple(sorted(unique, key=_is_loopback))[:MOST_ADDRESSES]


def _hosts(visible: tuple[str, ...]) -> list[str]:
    matches = [_HOST.match(address) for address in visible if "/p2p-circuit" not in address]
    return [match[2] for match in matches if match is not None]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "[::1]", "localhost"))
