"""Objects among real daemons: put on one, read on any; listed, removed, and refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3
from daemon_kit import daemons, wait_for
from object_kit import MB, QUICK, addresses, client, command, make_file, said, shard_files

from ciuic_p2p import ObjectMissing, StoreFull, TooFewCopies

ADDRESS = "ciuic://data/train/part 1.bin"


def test_a_file_that_one_peer_puts_is_read_by_another(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK, CIUIC_REPLICAS="2") as made:
        # given three peers, and a file of several shards
        us, eu, asia = made.swarm("us", "eu", "as")
        source = make_file(tmp_path / "source.bin", 20 * MB)

        # when one puts it
        status, out, err = said(command(us, "put", str(source), ADDRESS, "--json"))
        assert (status, err) == (0, "")
        put = json.loads(out)

        # then the command has waited for both copies of every shard
        assert put["copies"] >= 2
        assert put["shards"] == 3
        assert put["etag"] == blake3(source.read_bytes()).hexdigest()

        # and all know it, and read the same bytes
        for peer in (eu, asia):
            wait_for(lambda peer=peer: addresses(peer) == [ADDRESS], f"{peer.name} lists it")
            copy = tmp_path / f"{peer.name}.bin"
            assert said(command(peer, "get", ADDRESS, str(copy)))[0] == 0
            assert copy.read_bytes() == source.read_bytes()
            assert not list(tmp_path.glob(".ciuic-*"))

        # and what it needs is counted
        store = wait_for(lambda: (s := us.view("status")["store"])["objects"] == 1 and s, "it is counted")
        assert store["shards"] == len(shard_files(us)) == 3
        assert store["used_bytes"] == 20 * MB
        wait_for(lambda: us.view("status")["store"]["under_replicated"] == 0, "all its copies are there")


def test_an_object_is_replaced_and_removed(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK) as made:
        # given an object that two peers know
        us, eu = made.swarm("us", "eu")
        first, second = (make_file(tmp_path / name, 1000, seed) for seed, name in enumerate(("first", "second")))
        client(us).upload_file(first, ADDRESS)
        client(us).upload_file(second, "ciuic://data/other")
        wait_for(lambda: len(addresses(eu)) == 2, "eu knows both")

        # when the other one replaces it
        replaced = client(eu).upload_file(second, ADDRESS)

        # then the first one reads that, and both versions are listed without a conflict
        wait_for(lambda: client(us).stat(ADDRESS)["etag"] == replaced["etag"], "us knows the new version")
        shown = client(us).stat(ADDRESS)
        assert [version["author"] for version in shown["versions"]] == ["eu", "us"]
        assert shown["conflicts"] == []
        client(us).download_file(ADDRESS, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == second.read_bytes()

        # and when it is removed, nobody lists or reads it
        assert said(command(us, "rm", ADDRESS)) == (0, "", "")
        wait_for(lambda: addresses(eu) == ["ciuic://data/other"], "it is gone from eu too")
        with pytest.raises(ObjectMissing, match="there is no object"):
            client(eu).download_file(ADDRESS, tmp_path / "nothing")
        assert not (tmp_path / "nothing").exists()

        # and an empty file is an object like any other
        client(us).upload_file(make_file(tmp_path / "empty", 0), ADDRESS)
        wait_for(lambda: ADDRESS in addresses(eu), "eu knows it again")
        client(eu).download_file(ADDRESS, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b""


def test_what_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK) as made:
        # given a peer with little room
        us = made.started("us", CIUIC_STORE_QUOTA_BYTES=str(MB))
        large = make_file(tmp_path / "large", 2 * MB)
        _ = us.ready

        # when it is asked for what it cannot do, then it says what and why in a line, and goes on
        for words, reason in (
            (("put", str(large), ADDRESS), "quota"),
            (("put", str(tmp_path / "nothing"), ADDRESS), "cannot be read"),
            (("put", str(tmp_path), ADDRESS), "is no file"),
            (("put", str(large), "data/key"), "does not begin with ciuic://"),
            (("get", ADDRESS, str(tmp_path / "copy")), "there is no object"),
            (("rm", ADDRESS), "there is no object"),
        ):
            status, out, err = said(command(us, *words))
            assert (status, out) == (1, ""), words
            assert len(err.splitlines()) == 1, words
            assert reason in err, words
        assert addresses(us) == []

        # and what fits is taken
        client(us).upload_file(make_file(tmp_path / "small", 1000), ADDRESS)
        assert addresses(us) == [ADDRESS]
        target = tmp_path / "is a folder" / "missing" / "copy"
        status, out, err = said(command(us, "get", ADDRESS, str(target)))
        assert (status, len(err.splitlines())) == (1, 1)


def test_a_full_peer_is_passed_over(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK, CIUIC_REPLICAS="2") as made:
        # given one peer of three without room
        us = made.started("us")
        eu = made.started("eu", "--join", us.join, CIUIC_STORE_QUOTA_BYTES="1000")
        asia = made.started("as", "--join", us.join)
        wait_for(lambda: us.sees("eu", "as") and eu.sees("us", "as") and asia.sees("us", "eu"), "they have met")
        file = make_file(tmp_path / "file", MB)

        # when an object is put, then the two others hold it
        put = client(us).upload_file(file, ADDRESS)
        assert put["copies"] == 2
        assert shard_files(eu) == {}
        assert shard_files(asia).keys() == shard_files(us).keys()

        # and without the third peer there is no second copy, which is said
        asia.kill()
        wait_for(lambda: us.sees("eu"), "it is noticed")
        with pytest.raises(TooFewCopies, match=r"only 1 of 2 copies .*eu: its store is full"):
            client(us).upload_file(make_file(tmp_path / "more", MB, seed=2), "ciuic://data/more")
        with pytest.raises(StoreFull, match="quota"):
            client(eu).upload_file(file, "ciuic://data/more")
        assert addresses(us) == [ADDRESS]
