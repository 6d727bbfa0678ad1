"""hivemind's DHT, made fit for members that may be hostile: every record is checked, nothing is cached, the store is bounded.

Caching is off because a cached answer counts by its expiry alone: one member could have an empty answer kept for ever.
Knows keys and their rules, not what the values mean.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgpack
from hivemind.dht.crypto import DHTRecord, RecordValidatorBase
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.p2p import P2P, PeerID
from hivemind.utils.timed_storage import ValueWithExpiration

from ciuic_p2p.terms import PeerId

LARGEST_KEY_BYTES = 1 << 20
"""Of all records under one key on one peer: a reply has to fit into one unary message with some others."""
REPLICAS = 5
BEAM = 8
"""Peers asked in one search."""
RPC_LIMIT_S = 4.0

Rule = Callable[[str, bytes, float], bool]
"""(subkey, value, expiry in seconds since 1970) → whether such a record may exist. Must not raise."""


class SwarmValidator(RecordValidatorBase):  # type: ignore[misc]  # hivemind has no types
    """Asked at every store and for every record that is read. Keys without a rule do not exist."""

    def __init__(self) -> None:
        self._rules: dict[bytes, Rule] = {}

    def set_rule(self, key: str, rule: Rule) -> None:
        self._rules[DHTID.generate(source=key).to_bytes()] = rule

    def validate(self, record: DHTRecord) -> bool:
        """Records are subkey → bytes, nothing else."""
        rule = self._rules.get(bytes(record.key))
        expires_at = record.expiration_time
        if rule is None or not isinstance(expires_at, float) or not math.isfinite(expires_at):
            return False
        try:
            subkey = msgpack.unpackb(record.subkey)
            value = msgpack.unpackb(record.value)
        except (ValueError, msgpack.UnpackException):
            return False
        return isinstance(subkey, str) and isinstance(value, bytes) and rule(subkey, value, expires_at)


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind has no types
    """Holds dictionaries only, each up to LARGEST_KEY_BYTES: what would go over it is refused, what is there stays."""

    def store(self, key: DHTID, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """Whether it was stored."""
        if subkey is None and not isinstance(value, DictionaryDHTValue):
            return False
        return bool(super().store(key, value, expiration_time, subkey))

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Whether it was stored."""
        held = self.get(key)
        if held is not None:
            size = sum(len(entry.value) for other, entry in held.value.items() if other != subkey)
            if size + len(value) > LARGEST_KEY_BYTES:
                return False
        return bool(super().store_subkey(key, subkey, value, expiration_time))


class SwarmDHT:
    """A DHTNode on a P2P of ours. Made anew when the child process was restarted, with the records of the one before."""

    def __init__(self, node: DHTNode) -> None:
        self._node = node
        self._storage: BoundedStorage = node.protocol.storage

    @classmethod
    async def create(cls, p2p: P2P, validator: SwarmValidator, before: SwarmDHT | None = None) -> SwarmDHT:
        """Starts alone; `ping` makes contacts. Its place in the DHT follows from the peer id."""
        node = await DHTNode.create(
            p2p,
            node_id=_place_of(p2p.peer_id),
            num_replicas=REPLICAS,
            wait_timeout=RPC_LIMIT_S,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            cache_refresh_before_expiry=0,
            record_validator=validator,
        )
        storage = BoundedStorage() if before is None else before._storage
        # "Cached" records that a member sends land in the same place, where they cannot hide the others.
        node.protocol.storage = node.protocol.cache = storage
        node.protocol.update_routing_table = _in_their_places(node.protocol.update_routing_table)
        node.protocol.call_find = _without_claims(node.protocol)
        return cls(node)

    def retire(self) -> None:
        """The child process is gone; no goodbye is possible."""
        self._node.is_alive = False

    async def shutdown(self) -> None:
        await self._node.shutdown()

    def knows(self, peer: PeerId) -> bool:
        return PeerID.from_base58(peer) in self._node.protocol.routing_table

    def contacts(self) -> int:
        """Peers in the routing table."""
        return len(self._node.protocol.routing_table.peer_id_to_uid)

    async def ping(self, peer: PeerId) -> bool:
        """Whether it answered; it is a contact then, and so are we to it."""
        found = await self._node.protocol.call_ping(PeerID.from_base58(peer))
        return found is not None

    async def find_neighbours(self) -> None:
        """Asks contacts for the peers nearest to this one."""
        await self._node.find_nearest_nodes([self._node.node_id])

    async def store(self, key: str, subkey: str, value: bytes, expires_at_s: int) -> bool:
        """Whether some peer, perhaps only this one, took it. Not when the record breaks its rule or a later one is there."""
        return bool(await self._node.store(key, value, float(expires_at_s), subkey=subkey))

    async def fetch(self, key: str) -> dict[str, bytes]:
        """All records under the key that the nearest peers hold, each the one that expires last."""
        found = await self._node.get(key, latest=True, beam_size=BEAM)
        if found is None or not isinstance(found.value, dict):
            return {}
        return {subkey: entry.value for subkey, entry in found.value.items()}


def _place_of(peer: PeerID) -> DHTID:
    """Where the peer stands in the DHT. Were it free to choose, one could surround a key, or take many places at once."""
    return DHTID.generate(source=peer.to_bytes())


Update = Callable[..., Awaitable[None]]


def _in_their_places(update: Update) -> Update:
    """The routing table takes a peer at its own place only."""

    async def update_routing_table(node_id: DHTID | None, peer: PeerID, responded: bool = True) -> None:
        if node_id is None or node_id == _place_of(peer):
            await update(node_id, peer, responded=responded)

    return update_routing_table


Find = Callable[[PeerID, Collection[DHTID]], Awaitable[Any]]


def _without_claims(protocol: DHTProtocol) -> Find:
    """Of an answer, only what can be checked: its signed records, and neighbours that this peer has met itself.

    A search ends at the first answer that claims to live long enough, and never asks those who are farther away than neighbours
    that may not exist: one peer could hide the records of all others.
    """
    call_find: Find = protocol.call_find

    async def find(peer: PeerID, keys: Collection[DHTID]) -> Any:
        answers = await call_find(peer, keys)
        if answers is None:
            return None
        return {
            key: (
                _dated(value),
                {node: who for node, who in nearest.items() if protocol.routing_table.get(node_id=node) == who},
            )
            for key, (value, nearest) in answers.items()
        }

    return find


def _dated(value: ValueWithExpiration | None) -> ValueWithExpiration | None:
    """The answer expires when its last record does. Reads the plain dictionary: the other fields are the sender's."""
    if value is None or not isinstance(value.value, DictionaryDHTValue):
        return None
    records = DictionaryDHTValue()
    for subkey, entry in value.value.data.items():
        records.store(subkey, entry.value, entry.expiration_time)
    return ValueWithExpiration(records, records.latest_expiration_time) if records else None
