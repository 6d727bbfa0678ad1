"""All objects that this peer knows, with their versions, in memory and on the disk. Knows no peers and no shards' bytes.

    FOLDER/ab/ab12…     one object: msgpack [format, [version, …]], named by the hash of the object's address
    FOLDER/incoming/…   what is being written; leftovers are removed at the next start
    FOLDER/damaged/…    files that were no such thing at a start, for a person to look at

A file is replaced whole or not at all. What is on the disk is checked like what comes from a peer: signatures too.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgpack
import structlog
from blake3 import blake3

from ciuic_p2p.core import wire
from ciuic_p2p.core.heads import MOST_OLDER, Versions, find_heads, merge, winner
from ciuic_p2p.core.objects import LARGEST_VERSION_BYTES, ObjectName, ObjectVersion, decode_version, encode_version
from ciuic_p2p.core.shard_messages import DIGEST_BYTES, ENTRY_BYTES, GROUPS
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.store import files
from ciuic_p2p.store.manifests import BlobManifest

log = structlog.get_logger(__name__)

_FORMAT = 1
_HALF = ENTRY_BYTES // 2
_LARGEST_FILE_BYTES = 64 * LARGEST_VERSION_BYTES
"""Heads and history of one object, all with the largest manifests there can be."""

assert MOST_OLDER < 64


class Catalogue:
    """In the event loop's thread, but for `load` and `save`."""

    def __init__(self, folder: Path, swarm: str) -> None:
        self._folder = folder
        self._swarm = swarm
        self._objects: dict[ObjectName, Versions] = {}
        self._groups: list[dict[bytes, tuple[ObjectName, bytes]]] = [{} for _ in range(GROUPS)]
        """First half of an object's entry → its name and the second half; by the first byte."""
        self._digests: list[bytes | None] = [None] * GROUPS
        self.revision = 0
        """Another one whenever something else is known."""
        self._writing = threading.Lock()
        """One file after the other, each with the newest versions: an older one never replaces a newer one."""

    def __len__(self) -> int:
        """Objects that can be read."""
        return sum(1 for _ in self.listed())

    # -- reading -------------------------------------------------------------------------------------------------------

    def versions(self, name: ObjectName) -> Versions:
        return self._objects.get(name, ())

    def current(self, name: ObjectName) -> ObjectVersion | None:
        """What a reader gets; None when there is no object of this name."""
        found = winner(self.versions(name))
        return None if found is None or found.is_tombstone else found

    def listed(self) -> Iterator[tuple[ObjectName, ObjectVersion]]:
        """In no order."""
        for name, versions in self._objects.items():
            if not versions[0].is_tombstone:  # merge puts the winner first
                yield name, versions[0]

    def heads(self) -> Iterator[ObjectVersion]:
        """All whose bytes are kept: conflicting ones too, older ones not."""
        for versions in self._objects.values():
            yield from (version for version in find_heads(versions) if not version.is_tombstone)

    # -- merging -------------------------------------------------------------------------------------------------------

    def add(self, incoming: Iterable[ObjectVersion]) -> list[ObjectName]:
        """The objects of which something was not known. Who calls this saves them."""
        by_name: dict[ObjectName, list[ObjectVersion]] = {}
        for version in incoming:
            by_name.setdefault(version.name, []).append(version)
        changed = []
        for name, versions in by_name.items():
            merged = merge(self.versions(name), versions)
            if merged != self.versions(name):
                self._set(name, merged)
                changed.append(name)
        return changed

    def _set(self, name: ObjectName, versions: Versions) -> None:
        digest = name_digest(name)
        self._objects[name] = versions
        summary = blake3(b"".join(sorted(version.signature for version in versions))).digest(_HALF)
        self._groups[digest[0]][digest[:_HALF]] = (name, summary)
        self._digests[digest[0]] = None
        self.revision += 1

    # -- comparing with other peers --------------------------------------------------------------------------------------

    def digests(self) -> bytes:
        for group, digest in enumerate(self._digests):
            if digest is None:
                self._digests[group] = blake3(self.entries(bytes([group]))).digest(DIGEST_BYTES)
        return b"".join(digest for digest in self._digests if digest is not None)

    def differing_groups(self, digests: bytes) -> bytes:
        mine = self.digests()
        places = range(0, GROUPS * DIGEST_BYTES, DIGEST_BYTES)
        return bytes(at // DIGEST_BYTES for at in places if mine[at : at + DIGEST_BYTES] != digests[at : at + DIGEST_BYTES])

    def entries(self, groups: bytes) -> bytes:
        """Of the objects in these groups, sorted."""
        return b"".join(half + summary for group in groups for half, (_, summary) in sorted(self._groups[group].items()))

    def unknown_names(self, entries: bytes) -> bytes:
        """Of another peer's entries: the names of objects of which this one knows something else."""
        found = []
        for start in range(0, len(entries), ENTRY_BYTES):
            half, summary = entries[start : start + _HALF], entries[start + _HALF : start + ENTRY_BYTES]
            known = self._groups[half[0]].get(half)
            if known is None or known[1] != summary:
                found.append(half)
        return b"".join(found)

    def versions_of(self, names: bytes) -> Iterator[bytes]:
        """All versions of these objects, encoded; of what is not known, none."""
        for start in range(0, len(names), _HALF):
            known = self._groups[names[start]].get(names[start : start + _HALF])
            if known is not None:
                yield from map(encode_version, self._objects[known[0]])

    # -- on the disk -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Once, before anything else, in any thread. Raises StoreUnusable, StoreFull."""
        with files.translated(self._folder):
            files.make_folder(self._folder)
            for below in ("incoming", "damaged"):
                files.make_folder(self._folder / below)
            for leftover in (self._folder / "incoming").iterdir():
                files.remove(leftover)
            for path in sorted(self._folder.glob("[0-9a-f][0-9a-f]/*")):
                self._load_one(path)

    def save(self, name: ObjectName, versions: Versions | None = None) -> None:
        """Durable when this returns. versions: instead of those that are known. In a thread.

        Raises StoreUnusable, StoreFull.
        """
        with self._writing, files.translated(self._folder):
            data = msgpack.packb([_FORMAT, [encode_version(version) for version in versions or self.versions(name)]])
            path = self._path(name)
            files.make_folder(path.parent)
            temporary = files.write_temporary(self._folder / "incoming", memoryview(data))
            os.replace(temporary, path)
            files.sync_folder(path.parent)

    def _path(self, name: ObjectName) -> Path:
        digest = name_digest(name).hex()
        return self._folder / digest[:2] / digest

    def _load_one(self, path: Path) -> None:
        try:
            versions = [read_version(data, self._swarm) for data in _read_file(path)]
            if not versions or any(self._path(version.name) != path for version in versions):
                raise MalformedMessage(None, "versions of another object")
        except MalformedMessage as error:
            log.warning("catalogue.set_aside", file=path.name, reason=str(error))
            with contextlib.suppress(OSError):
                os.replace(path, self._folder / "damaged" / path.name)
            return
        self.add(versions)


def name_digest(name: ObjectName) -> bytes:
    return blake3(f"ciuic object\0{name}".encode()).digest()


def read_version(data: bytes, swarm: str) -> ObjectVersion:
    """Signed, and of a blob that can be. Raises MalformedMessage."""
    version = decode_version(data, swarm)
    if version.manifest is not None:
        manifest = BlobManifest.decode(version.manifest)
        if (manifest.size_bytes, manifest.blob) != (version.size_bytes, version.etag):
            raise MalformedMessage(version.author, "an object version that says something else than its manifest")
    return version


def _read_file(path: Path) -> list[bytes]:
    """Raises MalformedMessage for a file that is none."""
    data = files.read_whole(path, _LARGEST_FILE_BYTES)
    if data is None:
        raise MalformedMessage(None, "a file that cannot be read")
    value = wire.unpack(data, _LARGEST_FILE_BYTES)
    if not isinstance(value, list) or len(value) != 2 or value[0] != _FORMAT or not isinstance(value[1], list):
        raise MalformedMessage(None, "no file of an object")
    if not all(isinstance(version, bytes) for version in value[1]):
        raise MalformedMessage(None, "no file of an object")
    return value[1]
