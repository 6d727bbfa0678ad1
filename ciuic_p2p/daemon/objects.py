"""The object store of this peer: puts its parts together, brings messages to them, and does what the command line asks.

Decides nothing of placement, reading or merging itself. Knows no runs, but for whether one is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any

from ciuic_p2p.config import DaemonConfig
from ciuic_p2p.core.frames import FrameHeader
from ciuic_p2p.core.heads import find_heads
from ciuic_p2p.core.hedging import UNKNOWN_GOODPUT_MBPS, UNKNOWN_RTT_S, LinkEstimate
from ciuic_p2p.core.messages import Message, encode
from ciuic_p2p.core.objects import ObjectName, ObjectVersion, sign_version
from ciuic_p2p.core.shard_messages import (
    AskEntries,
    AskInventory,
    AskShards,
    AskVersions,
    CancelShards,
    CatalogueTold,
    DeclineShards,
    Entries,
    HeldShards,
    Inventory,
    KeepShards,
    RefuseShard,
    StoreTold,
    VersionsTold,
)
from ciuic_p2p.core.stripes import spare_peers
from ciuic_p2p.core.vectors import VersionVector
from ciuic_p2p.daemon.catalogue import Catalogue
from ciuic_p2p.daemon.holdings import Holdings, StoreLimits
from ciuic_p2p.daemon.ranges import Ranges
from ciuic_p2p.daemon.rebuilding import Rebuilder
from ciuic_p2p.daemon.reconciling import Reconciling
from ciuic_p2p.daemon.recovering import Recovering
from ciuic_p2p.daemon.replicas import Replicas
from ciuic_p2p.daemon.scrubbing import Scrubber
from ciuic_p2p.daemon.shard_reading import ShardReader
from ciuic_p2p.daemon.shard_sending import Restraint, ShardSender
from ciuic_p2p.daemon.storekeeping import CareSettings, Reach, Storekeeper, repeat
from ciuic_p2p.daemon.transfers import Told, Transfers
from ciuic_p2p.errors import LocalError, ObjectMissing, ObjectUnreadable, PeerUnreachable, VersionGone
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.net.transport import Transport
from ciuic_p2p.store import buffers
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.fresh import FreshShards
from ciuic_p2p.store.manifests import BlobManifest, CodedManifest
from ciuic_p2p.store.snapshots import Snapshots
from ciuic_p2p.tensors.erasure import Code
from ciuic_p2p.terms import PeerId, ShardId

CATALOGUE_FOLDER = "objects"

TELL_EVERY_S = 10.0
"""Offers and digests, to all: what a peer did not hear it asks for then."""


@dataclass(frozen=True, slots=True)
class ObjectSurroundings:
    """What the object store needs of its daemon. rtt_ms, line_mbps: 0 while it was not measured."""

    me: PeerId
    swarm: str
    config: DaemonConfig
    transport: Transport
    sign: Callable[[bytes], bytes]
    name_of: Callable[[PeerId], str]
    region_of: Callable[[PeerId], str]
    rtt_ms: Callable[[PeerId], float]
    goodput_mbps: Callable[[PeerId], float]
    """Of the link from a peer to this one."""
    line_mbps: Callable[[], float]
    is_busy: Callable[[], bool]
    """A round's bytes are under way."""


class Objects:
    """Lives in the event loop's thread, but for `frame_received`. `start`, in the end `close`."""

    def __init__(self, around: ObjectSurroundings, store: DiskStore) -> None:
        """store: of the whole daemon; its quota and reserve are those of the configuration. This part alone collects."""
        config, me = around.config, around.me
        self._around = around
        self._tasks = TaskSet()
        self._loop = asyncio.get_running_loop()
        self.store = store
        self.catalogue = Catalogue(config.home / CATALOGUE_FOLDER, around.swarm)
        limits = StoreLimits(quota_bytes=config.store_quota_bytes, reserve_bytes=config.store_reserve_bytes)
        care = CareSettings(replicas=config.replicas, repair_period_s=config.repair_period_s, gone_after_s=config.gone_after_s)
        restraint = Restraint(around.is_busy, around.line_mbps)
        self._holdings = Holdings(me, self.store, limits, self._tell_all, around.region_of, around.line_mbps)
        self._fresh = FreshShards(readers=config.replicas - 1)
        self._sender = ShardSender(around.transport, self._fresh, self.store, restraint, self._tasks, self._note_missing)
        self.reader = ShardReader(around.transport, self._link, self._tasks)
        self.replicas = Replicas(me, self.store, self._holdings, self.reader, self._send, around.rtt_ms, self._tasks)
        self._reconciling = Reconciling(self.catalogue, around.swarm, self._send, self._tell_all, self._tasks)
        rebuilder = Rebuilder(self.store, self._holdings, self.replicas, self.reader)
        self._transfers = Transfers(
            me,
            self.store,
            self._holdings,
            self.replicas,
            self.reader,
            self._send,
            around.name_of,
            config.replicas,
            self._fresh,
            rebuilder,
        )
        self._ranges = Ranges(
            self.store,
            self._holdings,
            self.reader,
            rebuilder,
            self._transfers.wanted,
            self._transfers.unreadable,
            self._tasks,
        )
        self.keeper = Storekeeper(
            self.store, Reach(self.catalogue), self._holdings, self.replicas, rebuilder, care, self._transfers.being_put
        )

        self._scrubber = Scrubber(self.store, self._holdings, config.scrub_period_s, around.is_busy)

    async def start(self) -> None:
        """Raises StoreUnusable, StoreFull."""
        await asyncio.to_thread(self.catalogue.load)
        self._holdings.begin(await asyncio.to_thread(self._holdings.read_store))
        self._tasks.spawn(self._scrubber.run())
        self.keeper.begin(self._tasks)
        self._tasks.spawn(repeat(TELL_EVERY_S, self._tell_often))

    async def close(self) -> None:
        await self._tasks.cancel()

    def recovering(self, snapshots: Snapshots) -> Recovering:
        """What completes snapshots from the other peers' stores."""
        around = self._around
        return Recovering(around.me, snapshots, self._holdings, self.replicas, around.config.gone_after_s, around.name_of)

    def stored(self, manifest: BlobManifest) -> None:
        """Any thread: another part of the daemon put these shards."""
        with contextlib.suppress(RuntimeError):  # the daemon ends
            self._loop.call_soon_threadsafe(self._note_stored, manifest)

    def _note_stored(self, manifest: BlobManifest) -> None:
        for ref in manifest.shards:
            self._holdings.note_came(ref.shard, ref.stored_bytes)

    # -- peers ---------------------------------------------------------------------------------------------------------

    def peer_arrived(self, peer: PeerId) -> None:
        self._holdings.peer_arrived(peer)
        with contextlib.suppress(PeerUnreachable):
            self._send(peer, self._holdings.offer())
        self._reconciling.tell_digests(peer)
        self.reader.peer_arrived(peer)

    def peer_gone(self, peer: PeerId) -> None:
        self._holdings.peer_gone(peer)
        self.session_closed(peer)

    def session_closed(self, peer: PeerId) -> None:
        """What was asked for or on its way is so no more."""
        self._sender.session_ended(peer)
        self.reader.session_ended(peer)

    def tick(self) -> None:
        """Several times a second."""
        self._sender.tick()
        self._fresh.trim()
        buffers.trim()

    def message_received(self, peer: PeerId, message: Message) -> bool:
        """True when the message was for this part of the daemon."""
        match message:
            case AskShards():
                self._sender.asked(peer, message)
            case CancelShards():
                self._sender.cancelled(peer, message)
            case RefuseShard():
                self.reader.refused(peer, message)
            case KeepShards():
                self.replicas.asked_to_keep(peer, message)
            case DeclineShards():
                self._transfers.declined(peer, message)
            case _:
                return self._is_of_holdings(peer, message) or self._is_of_catalogue(peer, message)
        return True

    def _is_of_holdings(self, peer: PeerId, message: Message) -> bool:
        match message:
            case StoreTold():
                question = self._holdings.store_told(peer, message)
                if question is not None:
                    self._answer(peer, [question])
            case HeldShards():
                self._holdings.held(peer, message)
            case AskInventory():
                self._answer(peer, self._holdings.inventory())
            case Inventory():
                self._holdings.inventory_told(peer, message)
            case _:
                return False
        return True

    def _is_of_catalogue(self, peer: PeerId, message: Message) -> bool:
        match message:
            case CatalogueTold():
                self._reconciling.digests_told(peer, message)
            case AskEntries():
                self._reconciling.entries_asked(peer, message)
            case Entries():
                self._reconciling.entries_told(peer, message)
            case AskVersions():
                self._reconciling.versions_asked(peer, message)
            case VersionsTold():
                self._reconciling.versions_told(peer, message)
            case _:
                return False
        return True

    def frame_received(self, peer: PeerId, header: FrameHeader, payload: memoryview) -> None:
        """In a lane's thread: a piece of a shard."""
        self.reader.frame_received(peer, header, payload)

    def _send(self, peer: PeerId, message: Message) -> None:
        self._around.transport.send_message(peer, encode(message))

    def _answer(self, peer: PeerId, messages: Iterable[Message]) -> None:
        with contextlib.suppress(PeerUnreachable):
            for message in messages:
                self._send(peer, message)

    def _tell_all(self, message: Message) -> None:
        for peer in self._holdings.here():
            self._answer(peer, [message])

    def _link(self, peer: PeerId) -> LinkEstimate:
        rtt_ms, goodput_mbps = self._around.rtt_ms(peer), self._around.goodput_mbps(peer)
        return LinkEstimate(
            rtt_s=rtt_ms / 1000 if rtt_ms > 0 else UNKNOWN_RTT_S,
            goodput_mbps=goodput_mbps if goodput_mbps > 0 else UNKNOWN_GOODPUT_MBPS,
        )

    def _note_missing(self, shard: ShardId) -> None:
        if not self.store.has(shard):
            self._holdings.note_damaged(shard)

    async def _tell_often(self) -> None:
        self._tell_all(self._holdings.offer())
        self._reconciling.tell_digests()

    # -- what this machine asks ------------------------------------------------------------------------------------------

    async def put(self, path: Path, name: ObjectName, told: Told, code: Code | None = None) -> dict[str, Any]:
        """The object as `stat` shows it; enough peers hold it when this returns. code: parity instead of copies.

        Raises LocalError, StoreFull, StoreUnusable, TooFewCopies. Nobody ever sees a version without its bytes.
        """
        async with self._transfers.put(path, told, code) as manifest:
            await self._write(name, manifest.encode(), manifest.size_bytes, manifest.blob)
        return self.stat(name)

    async def get(self, name: ObjectName, target: Path, told: Told) -> dict[str, Any]:
        """The target is there whole when this returns. Raises ObjectMissing, ObjectUnreadable, LocalError, StoreFull."""
        version = self._require(name)
        assert version.manifest is not None
        await self._transfers.get(name, BlobManifest.decode(version.manifest), target, told)
        return self._row(version)

    async def read(self, name: ObjectName, offset: int, length: int, etag: str) -> dict[str, Any]:
        """Bytes of the version with this etag, "" for the current one; its etag and size.

        Older versions can be read as long as their shards have not been collected. Raises ObjectMissing, ObjectUnreadable,
        VersionGone, LocalError, StoreUnusable.
        """
        version = self._pinned(name, etag) if etag else self._require(name)
        try:
            data = await self._ranges.read(version, offset, length)
        except ObjectUnreadable:
            if version in find_heads(self.catalogue.versions(name)):
                raise
            raise _gone(name, version.etag) from None
        return {"data": data, "etag": version.etag, "size_bytes": version.size_bytes}

    async def remove(self, name: ObjectName) -> None:
        """Raises ObjectMissing, StoreFull, StoreUnusable."""
        self._require(name)
        await self._write(name, None, 0, "")

    async def _write(self, name: ObjectName, manifest: bytes | None, size_bytes: int, etag: str) -> None:
        """Raises LocalError when one author too many writes the object."""
        vector = VersionVector()
        for version in self.catalogue.versions(name):
            vector = vector.merge(version.vector)
        try:
            unsigned = ObjectVersion(
                bucket=name.bucket,
                key=name.key,
                vector=vector.increment(self._around.me),
                author=self._around.me,
                created_at_ms=time.time_ns() // 1_000_000,
                manifest=manifest,
                size_bytes=size_bytes,
                etag=etag,
            )
        except ValueError as error:
            raise LocalError(f"{name} cannot be written: {error}", "use another key") from None
        await self._reconciling.publish(sign_version(unsigned, self._around.swarm, self._around.sign))

    def list_objects(self, bucket: str, prefix: str, after: ObjectName | None, most: int) -> list[dict[str, Any]]:
        """In the order of their names, those behind `after`. bucket: "" for all of them."""
        rows = [
            (name, version)
            for name, version in self.catalogue.listed()
            if (not bucket or name.bucket == bucket) and name.key.startswith(prefix) and (after is None or name > after)
        ]
        return [self._row(version) for _, version in nsmallest(most, rows, key=lambda row: row[0])]

    def stat(self, name: ObjectName) -> dict[str, Any]:
        """Raises ObjectMissing."""
        version = self._require(name)
        assert version.manifest is not None
        manifest = BlobManifest.decode(version.manifest)
        shards = {ref.shard for ref in manifest.kept}
        present = self._holdings.present()
        versions = self.catalogue.versions(name)
        heads = find_heads(versions)
        return {
            **self._row(version),
            "shards": len(shards),
            "copies": min((len(self._holdings.holders_of(shard) & present) for shard in shards), default=len(present)),
            **self._coding(manifest),
            "versions": [self._row(each) | {"head": each in heads} for each in versions],
            "conflicts": [self._row(head) for head in heads if head != version],
        }

    def _coding(self, manifest: BlobManifest) -> dict[str, Any]:
        """erasure: "K+M", None where there are copies. The others: how many more may be lost, by the stripe that can least."""
        if not isinstance(manifest, CodedManifest):
            return {"erasure": None, "spare_shards": None, "spare_peers": None}
        present = self._holdings.present()
        holders = {ref.shard: self._holdings.holders_of(ref.shard) & present for ref in manifest.kept}
        stripes = manifest.stripes()
        shards = (sum(bool(holders[shard]) for shard in each.shards) - len(each.data) for each in stripes)
        peers = (spare_peers(each, holders, present) for each in stripes)
        return {
            "erasure": str(manifest.code),
            "spare_shards": min(shards, default=manifest.m),
            "spare_peers": min(peers, default=len(present)),
        }

    def _require(self, name: ObjectName) -> ObjectVersion:
        version = self.catalogue.current(name)
        if version is None:
            raise ObjectMissing(f"there is no object {name}", "`ciuic-peer ls` shows those there are")
        return version

    def _pinned(self, name: ObjectName, etag: str) -> ObjectVersion:
        """Of versions with the same bytes any will do."""
        version = next((each for each in self.catalogue.versions(name) if each.etag == etag), None)
        if version is None:
            raise _gone(name, etag)
        return version

    def _row(self, version: ObjectVersion) -> dict[str, Any]:
        return {
            "address": str(version.name),
            "size_bytes": version.size_bytes,
            "etag": version.etag,
            "removed": version.is_tombstone,
            "author": self._around.name_of(version.author),
            "author_id": version.author,
            "created_at_ms": version.created_at_ms,
        }

    def describe(self) -> dict[str, Any]:
        """As `ciuic-peer status --json` prints it under "store"."""
        return {
            "free_disk_bytes": shutil.disk_usage(self.store.folder).free,
            "used_bytes": self.store.used_bytes,
            "quota_bytes": self._around.config.store_quota_bytes,
            "shards": len(self._holdings.mine),
            "objects": len(self.catalogue),
            "kept_bytes": self._ranges.kept_bytes,
            "under_replicated": self.keeper.under_replicated,
            "damaged_shards": self._holdings.damaged,
            "repaired_shards": self._holdings.repaired,
            "scrubbed_shards": self._scrubber.done.shards,
            "scrubbed_bytes": self._scrubber.done.size_bytes,
            "scrubbed_at_s": self._scrubber.standing.ended_at_s or None,
        }


def _gone(name: ObjectName, etag: str) -> VersionGone:
    return VersionGone(
        f"the version {etag[:12]}… of {name} was replaced or removed, and its bytes are not kept", "open it again"
    )
