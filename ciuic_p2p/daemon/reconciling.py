"""Peers tell each other of objects until all know the same: news at once, and the rest by comparing digests.

Whoever was away finds out group by group what it does not know. Knows no shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

import structlog

from ciuic_p2p.core.heads import merge
from ciuic_p2p.core.messages import Message
from ciuic_p2p.core.objects import ObjectName, ObjectVersion, encode_version
from ciuic_p2p.core.shard_messages import (
    ENTRY_BYTES,
    MOST_ENTRIES,
    MOST_NAMES_ASKED,
    MOST_VERSIONS,
    AskEntries,
    AskVersions,
    CatalogueTold,
    Entries,
    VersionsTold,
)
from ciuic_p2p.daemon.catalogue import Catalogue, read_version
from ciuic_p2p.errors import LocalError, MalformedMessage, PeerUnreachable
from ciuic_p2p.net.tasks import TaskSet
from ciuic_p2p.terms import LARGEST_MESSAGE_BYTES, PeerId

log = structlog.get_logger(__name__)

MOST_VERSIONS_BYTES = LARGEST_MESSAGE_BYTES - (64 << 10)
"""In one message, beside what surrounds them. One version always fits."""
REST_S = 0.02
"""Between two large messages of an answer: others' pings go in between."""


class Reconciling:
    """Lives in the event loop's thread."""

    def __init__(
        self,
        catalogue: Catalogue,
        swarm: str,
        send: Callable[[PeerId, Message], None],
        tell_all: Callable[[Message], None],
        tasks: TaskSet,
    ) -> None:
        """send: raises PeerUnreachable."""
        self._catalogue = catalogue
        self._swarm = swarm
        self._send = send
        self._tell_all = tell_all
        self._tasks = tasks

    def tell_digests(self, peer: PeerId | None = None) -> None:
        """To one, or to all."""
        message = CatalogueTold(digests=self._catalogue.digests())
        if peer is None:
            self._tell_all(message)
        else:
            self._answer(peer, [message])

    async def publish(self, version: ObjectVersion) -> None:
        """It is durable here, and on its way to all, when this returns. Raises StoreFull, StoreUnusable; then it never was."""
        name = version.name
        merged = merge(self._catalogue.versions(name), [version])
        await asyncio.to_thread(self._catalogue.save, name, merged)
        self._catalogue.add([version])
        if self._catalogue.versions(name) != merged:  # another one came meanwhile, and its file was just written over
            await asyncio.to_thread(self._catalogue.save, name)
        self._tell_all(VersionsTold(versions=(encode_version(version),)))

    # -- what peers say --------------------------------------------------------------------------------------------------

    def digests_told(self, peer: PeerId, message: CatalogueTold) -> None:
        groups = self._catalogue.differing_groups(message.digests)
        if groups:
            self._answer(peer, [AskEntries(groups=groups)])

    def entries_asked(self, peer: PeerId, message: AskEntries) -> None:
        self._answer(peer, map(_entries, _cut(self._catalogue.entries(message.groups), MOST_ENTRIES * ENTRY_BYTES)))

    def entries_told(self, peer: PeerId, message: Entries) -> None:
        names = self._catalogue.unknown_names(message.entries)
        self._answer(peer, map(_names, _cut(names, MOST_NAMES_ASKED * ENTRY_BYTES // 2)))

    def versions_asked(self, peer: PeerId, message: AskVersions) -> None:
        self._answer(peer, _packed(self._catalogue.versions_of(message.names)))

    def versions_told(self, peer: PeerId, message: VersionsTold) -> None:
        self._tasks.spawn(self._read(peer, message.versions))

    async def _read(self, peer: PeerId, encoded: tuple[bytes, ...]) -> None:
        """What another version of this program takes for a version, and this one does not, is left out."""
        versions = await asyncio.to_thread(_readable, encoded, self._swarm)
        if len(versions) < len(encoded):
            log.warning("object.version_refused", peer=peer, versions=len(encoded) - len(versions))
        try:
            await self._learn(versions)
        except LocalError as error:  # it is known in memory, and asked for again at the next start
            log.warning("object.not_saved", error=str(error))

    async def _learn(self, versions: Iterable[ObjectVersion]) -> None:
        changed: list[ObjectName] = self._catalogue.add(versions)
        if changed:
            await asyncio.to_thread(self._save, changed)

    def _save(self, names: list[ObjectName]) -> None:
        for name in names:
            self._catalogue.save(name)

    def _answer(self, peer: PeerId, messages: Iterable[Message]) -> None:
        self._tasks.spawn(self._send_each(peer, iter(messages)))

    async def _send_each(self, peer: PeerId, messages: Iterator[Message]) -> None:
        for message in messages:
            try:
                self._send(peer, message)
            except PeerUnreachable:
                return
            await asyncio.sleep(REST_S)


def _readable(encoded: tuple[bytes, ...], swarm: str) -> list[ObjectVersion]:
    versions = []
    for data in encoded:
        try:
            versions.append(read_version(data, swarm))
        except MalformedMessage as error:
            log.debug("object.version_malformed", error=str(error))
    return versions


def _entries(entries: bytes) -> Entries:
    return Entries(entries=entries)


def _names(names: bytes) -> AskVersions:
    return AskVersions(names=names)


def _cut(data: bytes, most_bytes: int) -> Iterator[bytes]:
    return (data[start : start + most_bytes] for start in range(0, len(data), most_bytes))


def _packed(versions: Iterable[bytes]) -> Iterator[VersionsTold]:
    """As many in each message as it takes."""
    gathered: list[bytes] = []
    for version in versions:
        if gathered and (len(gathered) == MOST_VERSIONS or sum(map(len, gathered)) + len(version) > MOST_VERSIONS_BYTES):
            yield VersionsTold(versions=tuple(gathered))
            gathered = []
        gathered.append(version)
    if gathered:
        yield VersionsTold(versions=tuple(gathered))
