"""Two daemons find what their disks changed while nobody reads it, and give each other what was there."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

from daemon_kit import PeerProcess, daemons, wait_for
from object_kit import MB, QUICK, addresses, client, holds_all, make_file, shard_files

from ciuic_p2p.store.shards import shard_id_of

ADDRESS = "ciuic://data/file.bin"


def flip(file: Path) -> None:
    """One bit, as a disk does it: in place, without another time of change."""
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 3)
        changed = stream.read(1)[0] ^ 4
        stream.seek(-1, 1)
        stream.write(bytes([changed]))


def is_sound(peer: PeerProcess, shards: set[str]) -> bool:
    files = shard_files(peer)
    try:
        return shards <= files.keys() and all(shard_id_of(files[shard].read_bytes()) == shard for shard in shards)
    except FileNotFoundError:  # it was set aside this moment
        return False


def has_repaired(peer: PeerProcess, count: int) -> bool:
    return bool(peer.view("status")["store"]["repaired_shards"] == count)


def test_flipped_bits_are_found_and_repaired_from_the_other_holder(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK, CIUIC_SCRUB_PERIOD_S="0.5") as made:
        # given an object on two peers
        us, eu = made.swarm("us", "eu")
        source = make_file(tmp_path / "source.bin", 18 * MB)
        client(us).upload_file(source, ADDRESS)
        wait_for(lambda: addresses(eu) == [ADDRESS], "eu lists it")
        shards = set(shard_files(us))
        wait_for(lambda: holds_all(eu, shards), "eu holds it too")

        # when a bit of it flips on each disk, not the same one, and a file is lost
        first, second, third = sorted(shards)
        flip(shard_files(us)[first])
        flip(shard_files(eu)[second])
        shard_files(eu)[third].unlink()

        # then each finds its own, and both are whole again, though nobody read the object
        for peer, damaged in ((us, 1), (eu, 2)):
            wait_for(lambda peer=peer: is_sound(peer, shards), f"{peer.name} is whole again")
            wait_for(lambda peer=peer, damaged=damaged: has_repaired(peer, damaged), "and counts that")
            store = peer.view("status")["store"]
            assert store["damaged_shards"] == damaged
            assert store["scrubbed_shards"] > 0
            with urlopen(f"{peer.ready['http']}/metrics") as answer:
                assert f"ciuic_store_damaged_shards_total {damaged}" in answer.read().decode()
        assert (us.home / "store" / "damaged" / first).exists()
