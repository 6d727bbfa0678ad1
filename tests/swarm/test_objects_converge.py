"""Peers that write apart from each other: what each learns when they meet again, and what becomes of conflicts."""

from __future__ import annotations

from pathlib import Path

from daemon_kit import PeerProcess, daemons, wait_for, wait_until_met
from object_kit import QUICK, addresses, client, make_file
from test_daemons_come_and_go import free_port

ADDRESS = "ciuic://data/shared"


def conflicts(peer: PeerProcess) -> list[str]:
    return [row["author"] for row in client(peer).stat(ADDRESS)["conflicts"]]


def test_what_was_written_apart_converges_and_the_conflict_is_shown(tmp_path: Path) -> None:
    with daemons(tmp_path, **QUICK) as made:
        # given two peers that know the same objects
        fixed = f"/ip4/127.0.0.1/tcp/{free_port()}"
        us = made.new("us")
        us.start(listen=fixed)
        eu = made.started("eu", "--join", us.join)
        wait_until_met([us, eu])
        old, ours, theirs, final = (make_file(tmp_path / name, 5000, seed) for seed, name in enumerate("abcd"))
        for address in (ADDRESS, "ciuic://data/removed"):
            client(us).upload_file(old, address)
        wait_for(lambda: len(addresses(eu)) == 2, "eu knows both")

        # when each writes while the other one is away
        assert eu.terminate() == 0
        wait_for(us.sees, "us is alone")
        written = client(us).upload_file(ours, ADDRESS)
        client(us).upload_file(ours, "ciuic://data/new")
        client(us).remove("ciuic://data/removed")
        assert us.terminate() == 0
        eu.start()
        _ = eu.ready
        written_later = client(eu).upload_file(theirs, ADDRESS)

        # then both know everything once they have met
        us.start(listen=fixed)
        wait_until_met([us, eu])
        for peer in (us, eu):
            wait_for(lambda peer=peer: conflicts(peer) == ["us"], f"{peer.name} shows the conflict")
            wait_for(lambda peer=peer: addresses(peer) == ["ciuic://data/new", ADDRESS], f"{peer.name} lists the same")

        # and read the same: what was written later, with the other version still shown
        assert written["etag"] != written_later["etag"]
        for peer in (us, eu):
            assert client(peer).stat(ADDRESS)["etag"] == written_later["etag"]
            wait_for(lambda peer=peer: client(peer).stat(ADDRESS)["copies"] == 2, "both hold its bytes")
            client(peer).download_file(ADDRESS, tmp_path / "copy")
            assert (tmp_path / "copy").read_bytes() == theirs.read_bytes()

        # and whoever writes next settles it
        client(us).upload_file(final, ADDRESS)
        wait_for(lambda: conflicts(eu) == [], "it is settled on eu")
        assert conflicts(us) == []
