"""Which swarm a home belongs to: made, joined or found again. Its file holds secrets (mode 0600). Knows no network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ciuic_p2p.config import DaemonConfig
from ciuic_p2p.core.joinstring import PREFIX, JoinString, decode_join, encode_join
from ciuic_p2p.core.membership import Invitation, RootKey, swarm_id_of
from ciuic_p2p.errors import ConfigError, HomeUnusable
from ciuic_p2p.net.home import Home

SWARM_FILE = "swarm.json"
MOST_ADDRESSES = 16


@dataclass(frozen=True, slots=True)
class Swarm:
    """What a peer must know to be a member and to invite others."""

    invitation: Invitation
    addresses: tuple[str, ...]
    """Multiaddrs with /p2p/ of peers to find the swarm by."""
    root: RootKey | None = None
    """Only on the peer that made the swarm."""

    @property
    def swarm_id(self) -> str:
        return swarm_id_of(self.invitation.root_public_key)

    def join_string(self, own_addresses: tuple[str, ...]) -> str:
        return encode_join(JoinString(own_addresses[:MOST_ADDRESSES], self.invitation))

    def save(self, home: Home) -> None:
        content = {
            "root_public_key": self.invitation.root_public_key.hex(),
            "token": self.invitation.token.hex(),
            "root_key": self.root.to_bytes().hex() if self.root is not None else None,
            "addresses": list(self.addresses),
        }
        home.write(SWARM_FILE, json.dumps(content, indent=1).encode())


def open_swarm(config: DaemonConfig, home: Home) -> Swarm:
    """By --join, else what the home remembers, else a new swarm. Raises ConfigError, HomeUnusable."""
    remembered = _read(home)
    swarm = _joined(config, remembered) if config.joins else remembered or _made()
    swarm.save(home)
    return swarm


def _made() -> Swarm:
    root = RootKey.generate()
    return Swarm(root.invite(), (), root)


def _joined(config: DaemonConfig, remembered: Swarm | None) -> Swarm:
    strings = [decode_join(text) for text in config.joins if text.strip().startswith(PREFIX)]
    plain = tuple(text for text in config.joins if not text.strip().startswith(PREFIX))
    if config.token is not None:
        strings.append(decode_join(config.token))
    if not strings and remembered is None:
        raise ConfigError(
            "an address alone does not let this peer in",
            "join with the string that starts with ciuic1, or give it by --token-file",
        )
    invitations = {join.invitation.root_public_key: join.invitation for join in strings}
    if remembered is not None:
        invitations.setdefault(remembered.invitation.root_public_key, remembered.invitation)
    if len(invitations) > 1:
        where = "this home and --join" if remembered is not None else "the join strings"
        raise ConfigError(f"{where} belong to different swarms", "give each swarm its own --home")
    invitation = next(iter(invitations.values()))
    addresses = dict.fromkeys((*plain, *(a for join in strings for a in join.addresses)))
    if remembered is not None:
        addresses.update(dict.fromkeys(remembered.addresses))
    return Swarm(invitation, tuple(addresses), remembered.root if remembered is not None else None)


def _read(home: Home) -> Swarm | None:
    file = home.file(SWARM_FILE)
    if not file.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
        root = RootKey.from_bytes(bytes.fromhex(content["root_key"])) if content["root_key"] else None
        invitation = Invitation(bytes.fromhex(content["root_public_key"]), bytes.fromhex(content["token"]))
        return Swarm(invitation, tuple(map(str, content["addresses"])), root)
    except OSError as error:
        raise HomeUnusable(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, ConfigError):
        raise HomeUnusable(f"{file} is damaged", "restore it from a backup, or remove it and join again") from None
