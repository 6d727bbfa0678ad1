"""An object with parity instead of copies outlives as many peers as it has parity shards, and is whole again after that."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from daemon_kit import daemons, wait_for
from object_kit import MB, QUICK, addresses, client, command, make_file, said, shard_files

from ciuic_p2p.store.shards import shard_id_of

ADDRESS = "ciuic://data/file.bin"


def test_two_of_five_peers_are_lost_of_an_object_of_three_and_two(tmp_path: Path) -> None:
    with daemons(tmp_path, **(QUICK | {"CIUIC_GONE_AFTER_S": "8"})) as made:
        # given an object of five shards, each on another peer
        peers = made.swarm("us", "eu", "as", "sa", "af")
        source = make_file(tmp_path / "source.bin", 6 * MB)
        status, out, err = said(command(peers[0], "put", str(source), ADDRESS, "--erasure", "3+2"))
        assert (status, out) == (0, f"{ADDRESS}: 3+2, 2 peers may be lost\n"), err
        for peer in peers:
            wait_for(lambda peer=peer: addresses(peer) == [ADDRESS], f"{peer.name} lists it")
        shards = set(shard_files(peers[0]))
        assert len(shards) == 5
        held = Counter(shard for peer in peers[1:] for shard in shard_files(peer))
        assert len(held) == 4
        assert set(held.values()) == {1}

        # when two of them are gone for good, the one that put it among them, and one with some of the file itself
        content = source.read_bytes()
        data = {shard_id_of(content[start : start + 2 * MB]) for start in range(0, 6 * MB, 2 * MB)}
        assert data < shards
        victims = [peers[0], next(peer for peer in peers[1:] if data & shard_files(peer).keys())]
        survivors = [peer for peer in peers if peer not in victims]
        assert len({shard for peer in survivors for shard in shard_files(peer)}) == 3
        for victim in victims:
            victim.kill()
            shutil.rmtree(victim.home)

        # then it can be read, though not all of the file itself is anywhere
        reader = survivors[0]
        copy = tmp_path / "copy.bin"
        client(reader).download_file(ADDRESS, copy)
        assert copy.read_bytes() == content
        assert reader.logged("object.decoded")

        # and the survivors make what was lost
        for peer in survivors:
            wait_for(lambda: shards == {s for p in survivors for s in shard_files(p)}, "all five are there again")
            wait_for(lambda peer=peer: client(peer).stat(ADDRESS)["spare_shards"] == 2, f"{peer.name} knows it")
            wait_for(lambda peer=peer: peer.view("status")["store"]["under_replicated"] == 0, "and counts nothing")
        client(survivors[2]).download_file(ADDRESS, copy)
        assert copy.read_bytes() == content
