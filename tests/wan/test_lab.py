"""A lab carries real TCP with the delay, rate and cuts that its topology says, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ciuic_p2p.errors import ConfigError, LocalError
from ciuic_p2p.lab.lab import Lab, RunningLab, attach_lab
from ciuic_p2p.lab.system import LABS, run_ip
from ciuic_p2p.lab.topology import Host, Topology

pytestmark = pytest.mark.lab

MBPS = 20.0
TOPOLOGY = Topology(
    hosts=tuple(Host(name=f"node-{region}", region=region, up_mbps=MBPS, down_mbps=MBPS) for region in ("us", "eu", "as")),
    rtt_ms={"us-eu": 40, "us-as": 80, "eu-as": 120},
)

SINK = """
    import socket
    server = socket.create_server(("0.0.0.0", 7000))
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        received = 0
        while data := connection.recv(1 << 16):
            received += len(data)
        connection.sendall(received.to_bytes(8, "big"))
        connection.close()
"""
# Prints the seconds of a TCP handshake (one round trip), of a transfer that was answered, and how much arrived.
SOURCE = """
    import socket, sys, time
    size, begin = int(sys.argv[2]), time.perf_counter()
    connection = socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[3]))
    joined = time.perf_counter()
    connection.settimeout(None)
    connection.sendall(bytes(size))
    connection.shutdown(socket.SHUT_WR)
    arrived = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    print(joined - begin, time.perf_counter() - joined, arrived)
"""


def python(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]


@pytest.fixture(scope="module")
def lab() -> Iterator[RunningLab]:
    with Lab(TOPOLOGY) as running:
        for host in running.addresses:
            sink = running.run(host, python(SINK), stdout=subprocess.PIPE)
            assert sink.stdout is not None
            assert sink.stdout.readline() == b"listening\n"
        yield running


def transfer(
    lab: RunningLab, source: str, target: str, size_bytes: int = 0, patience_s: float = 20
) -> tuple[float, float, int]:
    argv = python(SOURCE, lab.addresses[target], size_bytes, patience_s)
    result = subprocess.run(lab.command(source, argv), capture_output=True, text=True, check=False, timeout=60)
    if result.returncode:
        raise ConnectionError(result.stderr)
    joined_s, seconds, arrived = result.stdout.split()
    return float(joined_s), float(seconds), int(arrived)


@pytest.mark.parametrize(("source", "target", "rtt_ms"), [("node-us", "node-eu", 40), ("node-as", "node-eu", 120)])
def test_the_round_trip_is_the_topologys(lab: RunningLab, source: str, target: str, rtt_ms: float) -> None:
    # the least of several: a busy machine adds to a round trip, nothing takes away from it
    fastest_ms = min(transfer(lab, source, target)[0] for _ in range(5)) * 1000
    assert rtt_ms <= fastest_ms < rtt_ms + 40


def test_a_transfer_is_held_to_the_rate_and_counted(lab: RunningLab) -> None:
    size_bytes = 2_000_000
    before = lab.stats()["node-us"].sent_bytes

    _, seconds, arrived = transfer(lab, "node-us", "node-eu", size_bytes)

    assert arrived == size_bytes
    # nothing beats the link, give or take the packets that its queue lets through at once
    assert size_bytes * 8 / seconds / 1e6 < MBPS * 1.1
    while lab.stats()["node-us"].sent_bytes - before < size_bytes:  # written twice a second
        time.sleep(0.05)
    with Lab(TOPOLOGY) as other:
        assert other.stats()["node-us"].sent_bytes < size_bytes


def test_what_comes_from_afar_does_not_hold_up_what_comes_from_near(lab: RunningLab) -> None:
    # Given a stream of packets that have been 60 ms on their way to a host,
    stream = """
        import socket, sys, time
        far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        while True:
            far.sendto(b"far", (sys.argv[1], 9))
            time.sleep(0.002)
    """
    far = lab.run("node-as", python(stream, lab.addresses["node-eu"]))
    try:
        # when it is reached over a path of 20 ms,
        fastest_ms = min(transfer(lab, "node-us", "node-eu")[0] for _ in range(5)) * 1000
    finally:
        far.kill()
        far.wait()
    # then nothing waits for what left earlier and arrives later.
    assert fastest_ms < 60


def test_a_cut_host_is_reached_by_nobody_until_it_is_healed(lab: RunningLab) -> None:
    lab.set(TOPOLOGY.cut_off("node-as"))
    with pytest.raises(ConnectionError, match="timed out"):
        transfer(lab, "node-us", "node-as", patience_s=1.5)
    assert transfer(lab, "node-us", "node-eu", 1000)[2] == 1000

    lab.set(TOPOLOGY)
    assert transfer(lab, "node-us", "node-as", 1000)[2] == 1000


def test_other_hosts_need_another_lab(lab: RunningLab) -> None:
    with pytest.raises(ConfigError, match="cannot change"):
        lab.set(replace(TOPOLOGY, hosts=TOPOLOGY.hosts[:2], rtt_ms={}))
    with pytest.raises(ConfigError, match="no host of this lab"):
        lab.command("node-xx", ["true"])


def test_going_down_kills_what_ran_and_leaves_nothing() -> None:
    with Lab(TOPOLOGY) as lab:
        process = lab.run("node-us", ["sleep", "60"])
        assert lab.folder.name in run_ip("netns", "list")
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert lab.folder.name not in run_ip("netns", "list")
    assert not lab.folder.exists()


def test_a_named_lab_is_attached_to_and_is_up_only_once() -> None:
    with Lab(TOPOLOGY, "pytest"):
        assert attach_lab("pytest").command("node-us", ["true"])
        with pytest.raises(LocalError, match="a lab named pytest is up"), Lab(TOPOLOGY, "pytest"):
            pass
        assert attach_lab("pytest").stats()
    with pytest.raises(LocalError, match="no lab named pytest"):
        attach_lab("pytest")


def test_an_owner_killed_outright_leaves_nothing_once_the_next_lab_comes_up() -> None:
    # given an owner that is killed while its lab is up
    script = """
        from pathlib import Path
        from ciuic_p2p.lab.lab import Lab
        from ciuic_p2p.lab.topology import read_topology, shipped_topology
        lab = Lab(read_topology(shipped_topology("demo"))).up()
        print(lab.folder.name, lab._router_pid, flush=True)
        input()
    """
    owner = subprocess.Popen(python(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name, router_pid = owner.stdout.readline().split()
    router = os.pidfd_open(int(router_pid))
    owner.kill()
    owner.wait()
    # then its router ends by itself
    signalled = select.select([router], [], [], 10)[0]
    os.close(router)
    assert signalled
    # and what it left goes with the next lab
    with Lab(TOPOLOGY):
        assert name not in run_ip("netns", "list")
        assert not (LABS / name).exists()
