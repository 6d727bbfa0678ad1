"""Who belongs to a swarm: the root key that invites, tokens bound to one peer, and the gate that admits their bearers.

Tokens are biscuits (https://doc.biscuitsec.org). An invitation is an unbound token: whoever holds it may bind it, offline, to
his own peer id, and only bound tokens are ever shown to others, so a token that was seen is of no use to anyone else.
Refuses to know sockets, files and the clock: `now` is an argument, in seconds since 1970.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from biscuit_auth import (
    Algorithm,
    AuthorizationError,
    AuthorizerBuilder,
    Biscuit,
    BiscuitBuilder,
    BiscuitValidationError,
    BlockBuilder,
    DataLogError,
    KeyPair,
    PrivateKey,
    PublicKey,
    Rule,
    UnverifiedBiscuit,
)
from blake3 import blake3

from ciuic_p2p.core.peerids import public_key_of
from ciuic_p2p.errors import ConfigError, NotAMember
from ciuic_p2p.terms import PeerId

LARGEST_TOKEN_BYTES = 4096
SKEW_ALLOWANCE_S = 300.0
"""A token counts as expired only this long after its time, since clocks of home machines differ by minutes."""

_LONGEST_CHECK = timedelta(milliseconds=300)
"""Of one token's rules. The library's own limit of 1 ms fails on a busy machine."""
_BOUND_TO = re.compile(r'^check if peer\("([1-9A-HJ-NP-Za-km-z]{1,60})"\);$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Invitation:
    """An unbound token: a secret between the one who invites and the one who joins; never shown to a third peer."""

    root_public_key: bytes
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a peer's token says."""

    peer: PeerId
    region: str | None
    """The region the inviter wrote into the token; None when he left it open."""
    revocation_ids: tuple[str, ...]


class RootKey:
    """The private key that makes a swarm. Whoever has it can invite and nobody else can."""

    def __init__(self, private_key: PrivateKey) -> None:
        self._pair = KeyPair.from_private_key(private_key)

    @classmethod
    def generate(cls) -> RootKey:
        return cls(KeyPair().private_key)

    @classmethod
    def from_bytes(cls, secret: bytes) -> RootKey:
        """secret: 32 bytes. Raises ConfigError when it is no private key."""
        try:
            return cls(PrivateKey.from_bytes(secret, Algorithm.Ed25519))  # type: ignore[attr-defined, call-arg] # stubs lag behind
        except ValueError:
            raise ConfigError("the swarm's root key is damaged", "restore it from a backup or start a new swarm") from None

    def to_bytes(self) -> bytes:
        return bytes(self._pair.private_key.to_bytes())

    @property
    def public_bytes(self) -> bytes:
        """32 bytes; the swarm's root public key."""
        return bytes(self._pair.public_key.to_bytes())

    def invite(self, *, expires_at: float | None = None, region: str | None = None) -> Invitation:
        """expires_at: seconds since 1970."""
        authority = BiscuitBuilder("member({swarm})", {"swarm": swarm_id_of(self.public_bytes)})
        if region is not None:
            authority.add_code("region({region})", {"region": region})
        if expires_at is not None:
            authority.add_code("check if time($now), $now <= {end}", {"end": datetime.fromtimestamp(expires_at, UTC)})
        token = bytes(authority.build(self._pair.private_key).to_bytes())
        return Invitation(self.public_bytes, token)


def _public_key(data: bytes) -> PublicKey:
    return PublicKey.from_bytes(data, Algorithm.Ed25519)  # type: ignore[attr-defined, call-arg] # the stubs lag behind


def swarm_id_of(root_public_key: bytes) -> str:
    """The swarm's name in logs and DHT keys: 32 hexadecimal digits, no secret."""
    return blake3(b"ciuic-p2p swarm\0" + root_public_key).hexdigest(length=16)


def bind(invitation: Invitation, peer: PeerId) -> bytes:
    """The token of `peer`, of no use to any other; made offline. Raises ConfigError when the token is of another swarm."""
    public_key_of(peer)  # refuses what is not a peer id before it is written into a token
    try:
        root = _public_key(invitation.root_public_key)
        token = Biscuit.from_bytes(invitation.token, root)
    except (ValueError, BiscuitValidationError):
        raise ConfigError("the invitation's token is not of this swarm", "ask for a new join string") from None
    return bytes(token.append(BlockBuilder("check if peer({peer})", {"peer": peer})).to_bytes())


class Membership:
    """This peer's own token, and the gate at which others show theirs."""

    def __init__(self, root_public_key: bytes, bound_token: bytes, revoked: Set[str] = frozenset()) -> None:
        """revoked: revocation ids; read at every admission, so that the owner of the set may add to it.

        Raises ConfigError when the key is none.
        """
        try:
            self._root = _public_key(root_public_key)
        except ValueError:
            raise ConfigError("the swarm's root public key is damaged", "ask for a new join string") from None
        self.swarm = swarm_id_of(root_public_key)
        self._token = bound_token
        self._revoked = revoked

    def my_token(self) -> bytes:
        return self._token

    def admit(self, peer: PeerId, token: bytes, now: float) -> Member:
        """`peer` has proved to hold the key of its id; `token` is what it showed. Raises NotAMember with the reason."""
        verified = self._verified(peer, token)
        _check_binding(peer, verified)
        if not self._revoked.isdisjoint(verified.revocation_ids):
            raise NotAMember(peer, "its token was revoked")
        region = self._authorised_region(peer, verified, now)
        return Member(peer=peer, region=region, revocation_ids=tuple(verified.revocation_ids))

    def _verified(self, peer: PeerId, token: bytes) -> Biscuit:
        if len(token) > LARGEST_TOKEN_BYTES:
            raise NotAMember(peer, f"a token of {len(token)} bytes, at most {LARGEST_TOKEN_BYTES} are read")
        try:
            return Biscuit.from_bytes(token, self._root)
        except BiscuitValidationError:
            readable = _is_biscuit(token)
        raise NotAMember(peer, "its token is of another swarm or was changed" if readable else "its token is malformed")

    def _authorised_region(self, peer: PeerId, token: Biscuit, now: float) -> str | None:
        try:
            return self._authorise(peer, token, now - SKEW_ALLOWANCE_S)
        except (AuthorizationError, DataLogError):
            pass
        try:
            self._authorise(peer, token, 0.0)
        except (AuthorizationError, DataLogError):
            raise NotAMember(peer, "its token does not make it a member of this swarm") from None
        raise NotAMember(peer, "its token has expired")

    def _authorise(self, peer: PeerId, token: Biscuit, now: float) -> str | None:
        builder = AuthorizerBuilder(
            "time({now}); peer({peer}); allow if member({swarm})",
            {"now": datetime.fromtimestamp(now, UTC), "peer": peer, "swarm": self.swarm},
        )
        limits = builder.limits()  # type: ignore[attr-defined] # the stubs lag behind
        limits.max_time = _LONGEST_CHECK
        builder.set_limits(limits)  # type: ignore[attr-defined] # the stubs lag behind
        authorizer = builder.build(token)
        authorizer.authorize()
        regions = authorizer.query(Rule("found($region) <- region($region)"))
        return str(regions[0].terms[0]) if regions else None


def _is_biscuit(token: bytes) -> bool:
    try:
        UnverifiedBiscuit.from_base64(base64.urlsafe_b64encode(token).decode())
    except BiscuitValidationError:
        return False
    return True


def _check_binding(peer: PeerId, token: Biscuit) -> None:
    """A token that names no peer would pass for everybody, so the library's own checks are not enough."""
    named = {name for block in range(token.block_count()) for name in _BOUND_TO.findall(token.block_source(block))}
    if not named:
        raise NotAMember(peer, "its token is not bound to a peer")
    if named != {peer}:
        raise NotAMember(peer, "its token is bound to another peer")
