"""What a peer does for its store without being asked: surveys copies, repairs, collects what nothing names any more.

Knows no peers by itself, and nothing of how shards travel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import structlog

from ciuic_p2p.daemon.catalogue import Catalogue
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.daemon.replicas import Replicas, Survey
from ciuic_p2p.errors import SwarmError
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.manifests import BlobManifest
from ciuic_p2p.terms import ShardId

log = structlog.get_logger(__name__)

SURVEY_EVERY_S = 5.0
"""How old what `status` says of copies may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CareSettings:
    """replicas: the goal. repair_period_s: between two repairs. gone_after_s: how long a silent peer's copies count."""

    replicas: int
    repair_period_s: float
    gone_after_s: float


@dataclass(slots=True)
class Reach:
    """Which shards objects need: all heads of each, conflicting ones included; older versions' bytes are not kept."""

    catalogue: Catalogue
    _manifests: dict[bytes, dict[ShardId, int]] = field(default_factory=dict)
    """Signature of a version → its shards and their bytes as they are kept; so that none is decoded twice."""
    _revision: int = -1

    def objects(self) -> list[Mapping[ShardId, int]]:
        """The shards of each version that is kept."""
        if self._revision == self.catalogue.revision:
            return list(self._manifests.values())
        self._revision = self.catalogue.revision
        before, self._manifests = self._manifests, {}
        for head in self.catalogue.heads():
            assert head.manifest is not None
            known = before.get(head.signature)
            if known is None:
                known = {ref.shard: ref.stored_bytes for ref in BlobManifest.decode(head.manifest).shards}
            self._manifests[head.signature] = known
        return list(self._manifests.values())


class Storekeeper:
    """Lives in the event loop's thread."""

    def __init__(
        self,
        store: DiskStore,
        reach: Reach,
        holdings: Holdings,
        replicas: Replicas,
        settings: CareSettings,
        being_put: Callable[[], Collection[ShardId]],
    ) -> None:
        """being_put: shards of puts under way, which nothing names yet."""
        self._store = store
        self._reach = reach
        self._holdings = holdings
        self._replicas = replicas
        self._settings = settings
        self._being_put = being_put
        self.under_replicated = 0
        """Objects of which a shard has fewer copies than the goal, when they were last surveyed."""
        self.keep_also: list[Callable[[], Collection[ShardId]]] = []
        """Who knows of shards that no object names, such as those of snapshots: they are not collected. Called in a thread."""
        self.want_also: list[Callable[[], Mapping[ShardId, int]]] = []
        """Who knows of shards that should be here whoever else has them, and are not. Called in a thread."""

    def begin(self, tasks: TaskSet) -> None:
        survey_s = min(SURVEY_EVERY_S, self._settings.repair_period_s)
        tasks.spawn(repeat(survey_s, self.survey))
        tasks.spawn(repeat(self._settings.repair_period_s, self.care))

    async def survey(self) -> Survey:
        """Counts what waits for copies."""
        objects = self._reach.objects()
        survey = await self._replicas.survey(_together(objects), self._settings.replicas, self._settings.gone_after_s)
        self.under_replicated = sum(not survey.short.isdisjoint(shards) for shards in objects)
        return survey

    async def care(self) -> None:
        """Repairs, and collects what nothing needs here."""
        survey = await self.survey()
        await self._replicas.repair(survey.copies, _together(self._reach.objects()))
        await self._replicas.bring_back(_together(await asyncio.to_thread(self._wanting)))
        await self._collect(survey.surplus)

    def _wanting(self) -> list[Mapping[ShardId, int]]:
        return [wanting() for wanting in self.want_also]

    async def _collect(self, surplus: frozenset[ShardId]) -> None:
        """Surplus copies go after the store's grace, if they are surplus all that time."""
        keep = (_together(self._reach.objects()).keys() - surplus) | self._replicas.promised() | set(self._being_put())
        freed_bytes = await asyncio.to_thread(self._collect_but, keep)
        if freed_bytes:
            log.info("store.collected", freed_bytes=freed_bytes)
            for shard in self._holdings.mine.keys() - frozenset(self._store.shards()):
                self._holdings.note_left(shard)

    def _collect_but(self, keep: AbstractSet[ShardId]) -> int:
        also = frozenset[ShardId]().union(*(known() for known in self.keep_also))
        return self._store.collect(keep | also, time.monotonic())


async def repeat(every_s: float, act: Callable[[], Awaitable[object]]) -> None:
    """The supervisor of a chore: what goes wrong in it once must not end it."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await act()
        except SwarmError as error:
            log.warning("store.chore_failed", error=str(error))
        except Exception:
            log.exception("store.chore_failed")


def _together(objects: list[Mapping[ShardId, int]]) -> dict[ShardId, int]:
    return {shard: size_bytes for shards in objects for shard, size_bytes in shards.items()}
