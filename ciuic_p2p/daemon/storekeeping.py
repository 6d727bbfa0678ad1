"""What a peer does for its store without being asked: surveys copies, repairs, collects what nothing names any more.

Knows no peers by itself, and nothing of how shards travel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import structlog

from ciuic_p2p.core.stripes import Stripe
from ciuic_p2p.daemon.catalogue import Catalogue
from ciuic_p2p.daemon.holdings import Holdings
from ciuic_p2p.daemon.rebuilding import Rebuilder
from ciuic_p2p.daemon.replicas import Replicas, StripeSurvey, Survey
from ciuic_p2p.errors import SwarmError
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.manifests import BlobManifest, CodedManifest
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


@dataclass(frozen=True, slots=True)
class Kept:
    """One version that is kept."""

    shards: Mapping[ShardId, int]
    """All of them, and their bytes as they are kept."""
    stripes: tuple[Stripe, ...]
    """Where it has parity: then it has no copies."""


@dataclass(slots=True)
class Reach:
    """Which shards objects need: all heads of each, conflicting ones included; older versions' bytes are not kept."""

    catalogue: Catalogue
    _kept: dict[bytes, Kept] = field(default_factory=dict)
    """By a version's signature, so that no manifest is decoded twice."""
    _revision: int = -1

    def objects(self) -> list[Kept]:
        if self._revision != self.catalogue.revision:
            self._revision = self.catalogue.revision
            before, self._kept = self._kept, {}
            for head in self.catalogue.heads():
                assert head.manifest is not None
                self._kept[head.signature] = before.get(head.signature) or _kept(BlobManifest.decode(head.manifest))
        return list(self._kept.values())


def _kept(manifest: BlobManifest) -> Kept:
    stripes = tuple(manifest.stripes()) if isinstance(manifest, CodedManifest) else ()
    return Kept({ref.shard: ref.stored_bytes for ref in manifest.kept}, stripes)


@dataclass(frozen=True, slots=True)
class Wanting:
    """What a look at all objects showed."""

    copied: Survey
    striped: StripeSurvey


class Storekeeper:
    """Lives in the event loop's thread."""

    def __init__(
        self,
        store: DiskStore,
        reach: Reach,
        holdings: Holdings,
        replicas: Replicas,
        rebuilder: Rebuilder,
        settings: CareSettings,
        being_put: Callable[[], Collection[ShardId]],
    ) -> None:
        """being_put: shards of puts under way, which nothing names yet."""
        self._store = store
        self._reach = reach
        self._holdings = holdings
        self._replicas = replicas
        self._rebuilder = rebuilder
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

    async def survey(self) -> Wanting:
        """Counts what waits for copies, or for shards that must be rebuilt."""
        objects, gone_after_s = self._reach.objects(), self._settings.gone_after_s
        copied = await self._replicas.survey(_copied(objects), self._settings.replicas, gone_after_s)
        striped = await self._replicas.survey_stripes(_stripes(objects), gone_after_s)
        short = copied.short | striped.short
        self.under_replicated = sum(not short.isdisjoint(kept.shards) for kept in objects)
        return Wanting(copied, striped)

    async def care(self) -> None:
        """Repairs, and collects what nothing needs here."""
        wanting = await self.survey()
        shards = _together(kept.shards for kept in self._reach.objects())
        await self._replicas.repair(wanting.copied.copies, shards)
        await self._replicas.bring({shard: shards[shard] for shard in wanting.striped.fetches if shard in shards})
        await self._rebuilder.repair(wanting.striped.rebuilds)
        await self._replicas.bring_back(_together(await asyncio.to_thread(self._wanting)))
        await self._collect(wanting)

    def _wanting(self) -> list[Mapping[ShardId, int]]:
        return [wanting() for wanting in self.want_also]

    async def _collect(self, wanting: Wanting) -> None:
        """Surplus copies go after the store's grace, if they are surplus all that time."""
        objects = self._reach.objects()
        copied = _copied(objects).keys() - wanting.copied.surplus
        striped = {shard for stripe in _stripes(objects) for shard in stripe.shards} - wanting.striped.surplus
        keep = copied | striped | self._replicas.promised() | set(self._being_put())
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


def _copied(objects: Iterable[Kept]) -> dict[ShardId, int]:
    return _together(kept.shards for kept in objects if not kept.stripes)


def _stripes(objects: Iterable[Kept]) -> list[Stripe]:
    """Each once, in however many objects it is."""
    return list(dict.fromkeys(stripe for kept in objects for stripe in kept.stripes))


def _together(sizes: Iterable[Mapping[ShardId, int]]) -> dict[ShardId, int]:
    return {shard: size_bytes for each in sizes for shard, size_bytes in each.items()}
