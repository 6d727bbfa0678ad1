"""Words of the glossary as types, and the few constants that every layer shares. Knows no I/O and no other module."""

from __future__ import annotations

from typing import NewType

PeerId = NewType("PeerId", str)
"""Base58 of the libp2p multihash of an Ed25519 public key (`12D3KooW…`)."""

StateHash = NewType("StateHash", str)
"""64 hexadecimal digits: BLAKE3 over everything that must be identical on all replicas of a run."""

ShardId = NewType("ShardId", str)
"""64 lowercase hexadecimal digits: BLAKE3 over the bytes of a shard as they are stored."""

BlobHash = NewType("BlobHash", str)
"""64 lowercase hexadecimal digits: BLAKE3 over the whole content of a blob, unpacked."""

UNKNOWN_REGION = "unknown"
"""Of a peer that was given none."""

VERSION = "0.1.0"
"""Of the package; pyproject.toml reads it here."""

PROTOCOL_VERSION = 2
"""Version of control messages, frames and records; peers of another version are refused with a line that says so."""

LARGEST_MESSAGE_BYTES = 1 << 20
"""A control message never exceeds this; larger ones end the session."""

LARGEST_FRAME_BYTES = 8 << 20
"""A bulk frame's payload never exceeds this; the length is checked before any memory is set aside."""

LARGEST_SHARD_BYTES = 32 << 20
"""No shard is larger, packed or unpacked; sizes that others announce are checked before any memory is set aside."""
