"""Snapshots of this peer that its disk has not whole: what they lack is taken from other peers' stores, by its names.

Decides nothing of runs. What is taken is verified and durable shard by shard, so a recovery that was broken off goes on where
it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from ciuic_p2p.core.shortfall import Keeping, Shortfall, find_shortfall
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.daemon.replicas import Replicas
from ciuic_p2p.errors import LocalError, SnapshotDamaged
from ciuic_p2p.store.snapshots import Snapshot, Snapshots
from ciuic_p2p.tensors.outer import OuterState
from ciuic_p2p.terms import PeerId, ShardId

log = structlog.get_logger(__name__)

LOOK_AGAIN_S = 5.0
"""Though nothing is heard: who refused a shard may have it by then."""

Found = tuple[Snapshot, OuterState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A run that cannot go on yet."""

    snapshot: Snapshot
    shortfall: Shortfall


class Recovering:
    """Lives in the event loop's thread; disks are used in others."""

    def __init__(
        self,
        me: PeerId,
        snapshots: Snapshots,
        holdings: Holdings,
        replicas: Replicas,
        gone_after_s: float,
        name_of: Callable[[PeerId], str],
    ) -> None:
        """gone_after_s: how long peers that are away are waited for."""
        self._me = me
        self._snapshots = snapshots
        self._holdings = holdings
        self._replicas = replicas
        self._gone_after_s = gone_after_s
        self._name_of = name_of
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, Waiting | None] = {}
        """By run that is being recovered: what it lacks, as it was when it was last looked at."""
        self._told: dict[str, Shortfall] = {}
        """By a snapshot's state: what the log has of it."""
        self._verified: set[str] = set()
        """States all of whose shards were read, so that what is in the store is known to be right."""

    async def newest(self, run: str) -> Found | None:
        """The one that the run should go on from, if that is certain and all of it is here."""
        candidates = await self._candidates(run)
        if _promising(candidates) is not None:
            return None
        for snapshot in candidates[:1]:
            with contextlib.suppress(SnapshotDamaged):
                return snapshot, await asyncio.to_thread(self._snapshots.load, snapshot)
        return None

    async def recover(self, run: str) -> Found | None:
        """The newest one that this peer and those that are here have together, an older one only where they have not.

        Waits for those that may have what is lacking, but not for ever. None: nothing can be read now.
        """
        deadline_s = self._loop.time() + self._gone_after_s
        self._waiting[run] = None
        try:
            await self._confirm(await self._candidates(run), deadline_s)
            for snapshot in await self._candidates(run):
                found = await self._complete_and_load(snapshot, deadline_s)
                if found is not None:
                    return snapshot, found
            return None
        finally:
            del self._waiting[run]

    async def load(self, snapshot: Snapshot) -> OuterState:
        """Raises SnapshotDamaged that says who must return, StoreUnusable, StoreFull."""
        try:
            return await asyncio.to_thread(self._snapshots.load, snapshot)
        except SnapshotDamaged:
            self._verified.discard(snapshot.state_hash)
            if not await self._complete(snapshot, self._loop.time()):
                raise self._lacking(snapshot, self.shortfall(snapshot, self._missing(snapshot))) from None
        return await asyncio.to_thread(self._snapshots.load, snapshot)

    def shortfall(self, snapshot: Snapshot, missing: list[ShardId]) -> Shortfall:
        """missing: here."""
        held = {peer: shards for peer, shards in self._holdings.everyone() if peer != self._me}
        here = self._holdings.here()
        others = [
            Keeping(
                peer=peer,
                is_here=peer in here,
                shards=held.get(peer, {}) if self._holdings.has_told_all(peer) or peer not in snapshot.witnesses else None,
            )
            for peer in {*held, *snapshot.witnesses} - {self._me}
        ]
        return find_shortfall(missing, others)

    def describe(self, snapshot: Snapshot, shortfall: Shortfall) -> dict[str, object]:
        """What `ciuic-peer snapshot ls` shows of it beside the snapshot itself."""
        here = self._holdings.present()
        return {
            "obtainable_shards": len(shortfall.obtainable),
            "lost_shards": list(shortfall.lost),
            "saved_by": [{"name": self._name_of(each), "peer_id": each, "here": each in here} for each in snapshot.witnesses],
            "may_help": self._names(shortfall.may_help),
            "must_return": self._names(shortfall.must_return),
            "unaccounted_shards": len(shortfall.unaccounted),
        }

    def describe_waiting(self) -> list[dict[str, object]]:
        """Runs that cannot go on yet, as `ciuic-peer status --json` prints them."""
        return [
            {
                "run": run,
                "epoch": waiting.snapshot.epoch,
                "complete": waiting.snapshot.is_complete,
                "missing_shards": len(waiting.shortfall.missing),
                **self.describe(waiting.snapshot, waiting.shortfall),
            }
            for run, waiting in self._waiting.items()
            if waiting is not None
        ]

    # -- one snapshot --------------------------------------------------------------------------------------------------

    async def _candidates(self, run: str) -> list[Snapshot]:
        """Best first: complete ones, the newest of them; others may have saved the same as those that are not."""
        known = await asyncio.to_thread(self._snapshots.of_run, run)
        return sorted(known, key=lambda one: (one.is_complete, one.epoch), reverse=True)

    async def _confirm(self, candidates: list[Snapshot], deadline_s: float) -> None:
        """A newer one than the newest complete one may be as good: its peers died before they had told each other. Who holds
        all shards of it has saved the same, and tells so in its inventory."""
        newer = _promising(candidates)
        while newer is not None:
            self._holdings.changed.clear()
            supporters = {self._me, *newer.witnesses, *self._holders_of_all(newer)}
            if len(supporters) >= newer.quorum:
                await self._note_complete(newer, len(supporters))
                return
            self._waiting[newer.run] = Waiting(
                snapshot=newer, shortfall=self.shortfall(newer, await asyncio.to_thread(self._snapshots.missing, newer))
            )
            others = {peer for one in candidates for peer in one.witnesses} - {self._me}
            if all(self._is_here_and_told(peer) for peer in others) or self._loop.time() >= deadline_s:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await self._holdings.changed.wait()

    async def _note_complete(self, snapshot: Snapshot, peers: int) -> None:
        log.info("snapshot.confirmed", run=snapshot.run, epoch=snapshot.epoch, peers=peers)
        try:
            await asyncio.to_thread(self._snapshots.note, replace(snapshot, is_complete=True))
        except LocalError as error:  # then an older one is taken; this one stays for later
            log.error("snapshot.not_noted", run=snapshot.run, epoch=snapshot.epoch, error=str(error))

    def _holders_of_all(self, snapshot: Snapshot) -> set[PeerId]:
        shards = {ref.shard for ref in snapshot.blob.shards}
        return {peer for peer, held in self._holdings.everyone() if peer != self._me and shards <= held.keys()}

    def _is_here_and_told(self, peer: PeerId) -> bool:
        return peer in self._holdings.here() and self._holdings.has_told_all(peer)

    async def _complete_and_load(self, snapshot: Snapshot, deadline_s: float) -> OuterState | None:
        try:
            if await self._complete(snapshot, deadline_s):
                return await asyncio.to_thread(self._snapshots.load, snapshot)
        except LocalError as error:
            self._verified.discard(snapshot.state_hash)
            log.warning("snapshot.damaged", run=snapshot.run, epoch=snapshot.epoch, error=str(error))
        return None

    async def _complete(self, snapshot: Snapshot, deadline_s: float) -> bool:
        """Whether all its shards are here. Raises StoreUnusable, StoreFull."""
        await self._verify(snapshot)
        while missing := self._missing(snapshot):
            self._holdings.changed.clear()
            shortfall = self.shortfall(snapshot, missing)
            self._tell(snapshot, shortfall)
            if await self._fetch(snapshot, shortfall):
                continue
            if not (shortfall.obtainable or shortfall.may_help) or self._loop.time() >= deadline_s:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(deadline_s, self._loop.time() + LOOK_AGAIN_S)):
                    await self._holdings.changed.wait()
        if self._told.pop(snapshot.state_hash, None) is not None:
            log.info("snapshot.recovered", run=snapshot.run, epoch=snapshot.epoch)
        return True

    async def _verify(self, snapshot: Snapshot) -> None:
        """What the disk has not right is missing from then on. Raises StoreUnusable."""
        if snapshot.state_hash not in self._verified:
            for shard in await asyncio.to_thread(self._snapshots.verify, snapshot):
                self._holdings.note_damaged(shard)
            self._verified.add(snapshot.state_hash)

    def _missing(self, snapshot: Snapshot) -> list[ShardId]:
        return [ref.shard for ref in snapshot.blob.shards if ref.shard not in self._holdings.mine]

    async def _fetch(self, snapshot: Snapshot, shortfall: Shortfall) -> bool:
        """From several at once; whether anything came. Raises StoreUnusable, StoreFull."""
        sizes = {ref.shard: ref.stored_bytes for ref in snapshot.blob.shards}
        wanted = {shard: sizes[shard] for shard in shortfall.obtainable}
        return bool(wanted) and len(await self._replicas.fetch(wanted)) < len(wanted)

    def _tell(self, snapshot: Snapshot, shortfall: Shortfall) -> None:
        if snapshot.run in self._waiting:
            self._waiting[snapshot.run] = Waiting(snapshot=snapshot, shortfall=shortfall)
        if self._told.get(snapshot.state_hash) != shortfall:
            self._told[snapshot.state_hash] = shortfall
            log.info("snapshot.recovering", **self._facts(snapshot, shortfall))

    def _facts(self, snapshot: Snapshot, shortfall: Shortfall) -> dict[str, object]:
        return {
            "run": snapshot.run,
            "epoch": snapshot.epoch,
            "missing": len(shortfall.missing),
            "lost": [shard[:12] for shard in shortfall.lost],
            "must_return": self._names(shortfall.must_return),
        }

    def _names(self, peers: tuple[PeerId, ...]) -> list[str]:
        return sorted(map(self._name_of, peers))

    def _lacking(self, snapshot: Snapshot, shortfall: Shortfall) -> SnapshotDamaged:
        count = len(snapshot.blob.shards)
        lost = ", ".join(f"{shard[:12]}…" for shard in shortfall.lost[:3])
        who = " and ".join(self._names(shortfall.must_return)) or "nobody that is known"
        why = f"{len(shortfall.lost)} of its {count} shards ({lost}) are with nobody here, and with {who} elsewhere"
        return SnapshotDamaged(snapshot.run, snapshot.epoch, why)


def _promising(candidates: list[Snapshot]) -> Snapshot | None:
    """The newest that is not known to be complete, where an older one is: best first as `_candidates` has them."""
    if not candidates or not candidates[0].is_complete:
        return None
    newer = [one for one in candidates if not one.is_complete and one.epoch > candidates[0].epoch and one.quorum]
    return max(newer, key=lambda one: one.epoch, default=None)
