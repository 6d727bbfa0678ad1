"""Objects outlive their holders: deaths, wiped disks, damaged shards, and a put that was broken off."""

from __future__ import annotations

import shutil
from pathlib import Path

from daemon_kit import PeerProcess, daemons, wait_for, wait_until_met
from object_kit import MB, QUICK, addresses, client, command, holds_all, make_file, said, shard_files
from test_daemons_come_and_go import free_port

ADDRESS = "ciuic://data/file.bin"


def wipe(peer: PeerProcess) -> None:
    """kill -9, and its disk with it."""
    peer.kill()
    shutil.rmtree(peer.home)


def test_two_of_three_holders_die_with_their_disks(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK, CIUIC_REPLICAS="3") as made:
        # given five peers, three of which hold each shard of an object
        peers = made.swarm("us", "eu", "as", "sa", "af")
        source = make_file(tmp_path / "source.bin", 10 * MB)
        client(peers[0]).upload_file(source, ADDRESS)
        for peer in peers:
            wait_for(lambda peer=peer: addresses(peer) == [ADDRESS], f"{peer.name} lists it")
        shards = {name for peer in peers for name in shard_files(peer)}
        for shard in shards:
            assert sum(shard in shard_files(peer) for peer in peers) >= 3

        # when two that hold most of it are gone for good, the one that put it among them
        victims = [peers[0], max(peers[1:], key=lambda peer: len(shard_files(peer)))]
        survivors = [peer for peer in peers if peer not in victims]
        for victim in victims:
            wipe(victim)

        # then there are three copies again, one on each of the others
        for peer in survivors:
            wait_for(lambda peer=peer: holds_all(peer, shards), f"{peer.name} holds all shards")
            wait_for(lambda peer=peer: peer.view("status")["store"]["under_replicated"] == 0, "and knows that it is enough")

        # and all read it
        for peer in survivors:
            client(peer).download_file(ADDRESS, tmp_path / "copy.bin")
            assert (tmp_path / "copy.bin").read_bytes() == source.read_bytes()


def test_a_damaged_shard_is_read_from_another_holder_and_replaced(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK, CIUIC_REPLICAS="2") as made:
        # given an object of which some peer lacks a shard
        peers = made.swarm("us", "eu", "as", "sa")
        source = make_file(tmp_path / "source.bin", 20 * MB)
        client(peers[0]).upload_file(source, ADDRESS)
        reader = min(peers, key=lambda peer: len(shard_files(peer)))
        wait_for(lambda: addresses(reader) == [ADDRESS], "the reader lists it")
        wanted = sorted(shard_files(peers[0]).keys() - shard_files(reader).keys())
        assert wanted
        holders = [peer for peer in peers if wanted[0] in shard_files(peer)]
        assert len(holders) >= 2

        # when a bit of it flips on all disks but one
        for holder in holders[1:]:
            file = shard_files(holder)[wanted[0]]
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)

        # then the reader gets the right bytes all the same
        client(reader).download_file(ADDRESS, tmp_path / "copy.bin")
        assert (tmp_path / "copy.bin").read_bytes() == source.read_bytes()

        # and who was asked for a damaged one has set it aside
        asked = [holder for holder in holders[1:] if holder.logged("shard.not_sent")]
        for holder in asked:
            assert (holder.home / "store" / "damaged" / wanted[0]).exists()


def test_a_put_that_is_killed_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK, CIUIC_LANE_MBPS="20") as made:
        # given a put over slow lanes
        fixed = f"/ip4/127.0.0.1/tcp/{free_port()}"
        us = made.new("us")
        us.start(listen=fixed)
        eu = made.started("eu", "--join", us.join)
        wait_until_met([us, eu])
        source = make_file(tmp_path / "source.bin", 40 * MB)
        putting = command(us, "put", str(source), ADDRESS)

        # when the daemon is killed half way
        wait_for(lambda: len(shard_files(eu)) >= 2, "some shards are copied")
        assert len(shard_files(eu)) < 5
        us.kill()

        # then the command says so in a line, and there is no object anywhere
        status, out, err = said(putting)
        assert (status, out, len(err.splitlines())) == (1, "", 1)
        assert addresses(eu) == []

        # and the same put again succeeds, with what is there already
        us.start(listen=fixed)
        wait_until_met([us, eu])
        assert addresses(us) == []
        assert client(us).upload_file(source, ADDRESS)["copies"] == 2
        wait_for(lambda: addresses(eu) == [ADDRESS], "eu lists it")
        client(eu).download_file(ADDRESS, tmp_path / "copy.bin")
        assert (tmp_path / "copy.bin").read_bytes() == source.read_bytes()


def test_a_get_goes_on_when_a_holder_dies(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK, CIUIC_REPLICAS="2", CIUIC_LANE_MBPS="20") as made:
        # given an object of many shards on two peers, and a third that came later
        us, eu = made.swarm("us", "eu")
        source = make_file(tmp_path / "source.bin", 40 * MB)
        client(us).upload_file(source, ADDRESS)
        reader = made.started("as", "--join", eu.join, CIUIC_REPAIR_PERIOD_S="3600")
        wait_until_met([us, eu, reader])
        wait_for(lambda: addresses(reader) == [ADDRESS], "the newcomer lists it")

        # when one of its holders dies in the middle of a get
        copy = tmp_path / "copy.bin"
        getting = command(reader, "get", ADDRESS, str(copy))
        before = reader.view("status")["bytes_received"]
        wait_for(lambda: reader.view("status")["bytes_received"] - before > 8 * MB, "it is in the middle of it")
        assert not copy.exists()
        us.kill()

        # then the other one gives the rest
        status, _, err = said(getting)
        assert (status, err) == (0, "")
        assert copy.read_bytes() == source.read_bytes()
