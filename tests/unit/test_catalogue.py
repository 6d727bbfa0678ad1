"""The catalogue of objects: kept on the disk, rebuilt from it, and compared with another peer's until both are alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ciuic_p2p.core.objects import ObjectName, ObjectVersion, encode_version, sign_version
from ciuic_p2p.core.peerids import peer_id_of
from ciuic_p2p.core.shard_messages import ENTRY_BYTES, GROUPS
from ciuic_p2p.core.vectors import VersionVector
from ciuic_p2p.daemon.catalogue import Catalogue, read_version
from ciuic_p2p.errors import MalformedMessage
from ciuic_p2p.store.blobs import write_blob
from ciuic_p2p.store.memory import MemoryStore

SWARM = "swarm"
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2)]


def write(catalogue: Catalogue, key: str, content: bytes | None, author: int = 0, **changed: object) -> ObjectVersion:
    """What the author writes that knows this catalogue; content None: a tombstone."""
    name, peer = ObjectName("data", key), peer_id_of(KEYS[author].public_key())
    vector = VersionVector()
    for version in catalogue.versions(name):
        vector = vector.merge(version.vector)
    fields = {
        "bucket": name.bucket,
        "key": key,
        "vector": vector.increment(peer),
        "author": peer,
        "created_at_ms": 1,
        "manifest": None,
    }
    if content is not None:
        manifest = write_blob(MemoryStore(), [content])
        fields |= {"manifest": manifest.encode(), "size_bytes": manifest.size_bytes, "etag": manifest.blob}
    return sign_version(ObjectVersion(**(fields | changed)), SWARM, KEYS[author].sign)  # type: ignore[arg-type]


def opened(folder: Path) -> Catalogue:
    catalogue = Catalogue(folder, SWARM)
    catalogue.load()
    return catalogue


def saved(folder: Path, *versions: ObjectVersion) -> Catalogue:
    catalogue = opened(folder)
    for name in catalogue.add(versions):
        catalogue.save(name)
    return catalogue


def addresses(catalogue: Catalogue) -> list[str]:
    return sorted(str(name) for name, _ in catalogue.listed())


def test_what_was_saved_is_there_after_a_start(tmp_path: Path) -> None:
    catalogue = opened(tmp_path)
    saved(tmp_path, write(catalogue, "a", b"one"), write(catalogue, "b/c", b"two"), write(catalogue, "gone", None))
    again = opened(tmp_path)
    assert addresses(again) == ["ciuic://data/a", "ciuic://data/b/c"]
    assert len(again.versions(ObjectName("data", "gone"))) == 1
    assert len(again) == 2
    assert again.digests() == saved(tmp_path).digests()


def test_damaged_files_are_set_aside_and_leftovers_removed(tmp_path: Path) -> None:
    # given files of three objects
    catalogue = saved(tmp_path, *(write(opened(tmp_path), key, b"x") for key in "abc"))
    files = sorted(tmp_path.glob("[0-9a-f][0-9a-f]/*"))
    assert len(files) == 3

    # when one is torn, one lies under another's name, and a write was broken off
    files[0].write_bytes(files[0].read_bytes()[:-1])
    files[1].write_bytes(files[2].read_bytes())
    (tmp_path / "incoming" / "leftover").write_bytes(b"half")

    # then the third is read, and the others can be looked at
    again = opened(tmp_path)
    assert len(addresses(again)) == 1
    assert set(addresses(again)) < set(addresses(catalogue))
    assert sorted(path.name for path in (tmp_path / "damaged").iterdir()) == [files[0].name, files[1].name]
    assert list((tmp_path / "incoming").iterdir()) == []


def test_a_version_that_contradicts_its_manifest_is_refused(tmp_path: Path) -> None:
    catalogue = opened(tmp_path)
    assert read_version(encode_version(write(catalogue, "a", b"one")), SWARM).size_bytes == 3
    for changed in ({"size_bytes": 4}, {"etag": "00" * 32}, {"manifest": b"none"}):
        with pytest.raises(MalformedMessage):
            read_version(encode_version(write(catalogue, "a", b"one", **changed)), SWARM)
    with pytest.raises(MalformedMessage):
        read_version(encode_version(write(catalogue, "a", b"one")), "another swarm")


def test_conflicting_heads_are_kept_and_older_versions_bytes_are_not(tmp_path: Path) -> None:
    catalogue = opened(tmp_path)
    name = ObjectName("data", "a")
    ours, theirs = write(catalogue, "a", b"ours"), write(catalogue, "a", b"theirs", author=1)
    catalogue.add([ours, theirs])
    assert {head.etag for head in catalogue.heads()} == {ours.etag, theirs.etag}
    settled = write(catalogue, "a", b"settled")
    catalogue.add([settled])
    assert [head.etag for head in catalogue.heads()] == [settled.etag]
    assert len(catalogue.versions(name)) == 3


def exchange(one: Catalogue, other: Catalogue) -> int:
    """What `one` learns when it hears the other's digests; returns how many versions were sent."""
    groups = one.differing_groups(other.digests())
    names = one.unknown_names(other.entries(groups))
    versions = [read_version(data, SWARM) for data in other.versions_of(names)]
    one.add(versions)
    return len(versions)


def test_two_catalogues_become_alike_and_send_only_what_differs(tmp_path: Path) -> None:
    # given two peers that know a hundred objects alike
    us, eu = opened(tmp_path / "us"), opened(tmp_path / "eu")
    same = [write(us, f"same {number}", b"x") for number in range(100)]
    us.add(same)
    eu.add(same)
    assert us.digests() == eu.digests()
    assert us.differing_groups(eu.digests()) == b""

    # when each writes something that the other does not know, one object both
    us.add([write(us, "ours", b"1"), write(us, "same 7", b"2"), write(us, "same 9", None)])
    eu.add([write(eu, "theirs", b"3", author=1), write(eu, "same 7", b"4", author=1)])

    # then they learn just that from each other, and are alike
    assert exchange(us, eu) < 10
    assert exchange(eu, us) < 10
    assert us.digests() == eu.digests()
    assert addresses(us) == addresses(eu)
    assert len({head.etag for head in us.heads() if head.key == "same 7"}) == 2
    assert exchange(us, eu) == exchange(eu, us) == 0


def test_entries_of_nonsense_name_nothing_that_is_known(tmp_path: Path) -> None:
    catalogue = opened(tmp_path)
    catalogue.add([write(catalogue, "a", b"one")])
    assert catalogue.unknown_names(bytes(3 * ENTRY_BYTES)) == bytes(3 * ENTRY_BYTES // 2)
    assert list(catalogue.versions_of(bytes(5 * ENTRY_BYTES // 2))) == []
    assert len(catalogue.entries(bytes(range(GROUPS)))) == ENTRY_BYTES
