"""Who is admitted: a bearer of a token of this swarm, bound to him, in time and not revoked; nobody else."""

from __future__ import annotations

import pytest
from biscuit_auth import Algorithm, Biscuit, BlockBuilder, PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.membership import LARGEST_TOKEN_BYTES, SKEW_ALLOWANCE_S, Invitation, Membership, RootKey, bind, swarm_id_of
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.errors import ConfigError, MalformedMessage, NotAMember
from ciuic_p2p.terms import PeerId

NOW = 1_800_000_000.0
ROOT = RootKey.from_bytes(bytes(range(32)))
INVITATION = ROOT.invite()


def make_peer(seed: int) -> PeerId:
    return peer_id_of(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32).public_key())


ANNA, BERT = make_peer(1), make_peer(2)
GATE = Membership(ROOT.public_bytes, bind(INVITATION, ANNA))


def append(token: bytes, code: str) -> bytes:
    parsed = Biscuit.from_bytes(token, PublicKey.from_bytes(ROOT.public_bytes, Algorithm.Ed25519))
    return bytes(parsed.append(BlockBuilder(code)).to_bytes())


def test_bearer_of_his_own_token_is_admitted() -> None:
    member = GATE.admit(BERT, bind(ROOT.invite(region="eu"), BERT), NOW)
    assert (member.peer, member.region) == (BERT, "eu")
    assert GATE.admit(ANNA, GATE.my_token(), NOW).region is None


def test_root_key_survives_bytes() -> None:
    assert RootKey.from_bytes(ROOT.to_bytes()).public_bytes == ROOT.public_bytes
    assert swarm_id_of(ROOT.public_bytes) != swarm_id_of(RootKey.generate().public_bytes)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (INVITATION.token, "not bound"),
        (bind(INVITATION, ANNA), "another peer"),
        (append(bind(INVITATION, ANNA), f'check if peer("{BERT}")'), "another peer"),
        (append(INVITATION.token, "check if peer($anyone)"), "not bound"),
        (append(bind(INVITATION, BERT), 'check if peer("x") or true'), None),
        (append(bind(INVITATION, BERT), "check if false"), "does not make it a member"),
        (bind(RootKey.generate().invite(), BERT), "another swarm"),
        (bind(INVITATION, BERT)[:-1], "malformed"),
        (b"", "malformed"),
        (b"\0" * (LARGEST_TOKEN_BYTES + 1), "at most"),
    ],
)
def test_reason_of_a_refusal(token: bytes, reason: str | None) -> None:
    if reason is None:
        GATE.admit(BERT, token, NOW)
        return
    with pytest.raises(NotAMember, match=reason) as refused:
        GATE.admit(BERT, token, NOW)
    assert refused.value.peer == BERT


def test_a_changed_byte_is_noticed() -> None:
    token = bytearray(bind(INVITATION, BERT))
    token[len(token) // 2] ^= 1
    with pytest.raises(NotAMember):
        GATE.admit(BERT, bytes(token), NOW)


def test_membership_of_another_swarm_cannot_be_claimed_by_appending() -> None:
    """Facts in appended blocks do not count: only the root says who is a member."""
    other = RootKey.generate()
    gate = Membership(other.public_bytes, b"")
    claimed = append(bind(INVITATION, BERT), f'member("{gate.swarm}")')
    with pytest.raises(NotAMember):
        gate.admit(BERT, claimed, NOW)


def test_expiry_allows_for_clocks_that_differ() -> None:
    token = bind(ROOT.invite(expires_at=NOW), BERT)
    GATE.admit(BERT, token, NOW + SKEW_ALLOWANCE_S - 1)
    with pytest.raises(NotAMember, match="expired"):
        GATE.admit(BERT, token, NOW + SKEW_ALLOWANCE_S + 1)


def test_revocation_counts_at_once_for_a_token_and_for_all_that_stem_from_it() -> None:
    revoked: set[str] = set()
    gate = Membership(ROOT.public_bytes, b"", revoked)
    token = bind(INVITATION, ANNA)
    invitation_id, own_id = gate.admit(ANNA, token, NOW).revocation_ids
    revoked.add(own_id)
    with pytest.raises(NotAMember, match="revoked"):
        gate.admit(ANNA, token, NOW)
    gate.admit(BERT, bind(INVITATION, BERT), NOW)
    revoked.add(invitation_id)
    with pytest.raises(NotAMember, match="revoked"):
        gate.admit(BERT, bind(INVITATION, BERT), NOW)


def test_only_peer_ids_and_true_invitations_are_bound() -> None:
    with pytest.raises(MalformedMessage):
        bind(INVITATION, PeerId('x") or peer($y'))
    with pytest.raises(ConfigError):
        bind(Invitation(RootKey.generate().public_bytes, INVITATION.token), ANNA)
    with pytest.raises(ConfigError):
        Membership(b"short", b"")
    with pytest.raises(ConfigError):
        RootKey.from_bytes(b"short")
