"""Control messages never queue behind bulk data: heartbeats survive a link that bulk frames fill, both ways."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ciuic_p2p.config import child_environment
from ciuic_p2p.core.membership import RootKey
from ciuic_p2p.lab.lab import Lab, RunningLab
from ciuic_p2p.lab.topology import Host, Topology

pytestmark = pytest.mark.lab

SCRIPT = Path(__file__).with_name("heartbeat_peer.py")
PROJECT = SCRIPT.parents[2]
MBPS, RTT_MS = 10.0, 100.0
TOPOLOGY = Topology(
    hosts=tuple(Host(name=region, region=region, up_mbps=MBPS, down_mbps=MBPS) for region in ("us", "eu")),
    rtt_ms={"us-eu": RTT_MS},
)
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
FRAMES = 12
"""1 MiB each: 10 seconds of this link, in each direction."""


class PeerOfLab:
    """A process of heartbeat_peer.py on one host."""

    def __init__(self, lab: RunningLab, host: str, **settings: Any) -> None:
        argv = [sys.executable, str(SCRIPT), lab.addresses[host]]
        environment = child_environment(PYTHONPATH=str(PROJECT))
        self.process = lab.run(host, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(settings).encode() + b"\n")
        self.process.stdin.flush()

    def says(self) -> dict[str, Any]:
        """The next thing."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def control_congestion(lab: RunningLab, algorithm: str) -> None:
    for host in lab.addresses:
        # sysctl -w may not be installed, and /proc/sys/net is of the namespace in which it is opened
        set_it = lab.run(host, ["sh", "-c", f"echo {algorithm} > {CONGESTION_CONTROL}"], stderr=subprocess.PIPE, text=True)
        complaint = set_it.communicate()[1]
        if set_it.returncode:
            pytest.skip(f"this kernel has no {algorithm} here: {complaint}")


@pytest.mark.parametrize("algorithm", ["reno", "bbr"])  # one that fills every queue until it drops, one that does not
def test_pings_come_through_a_link_that_is_full_of_bulk_frames(capsys: pytest.CaptureFixture[str], algorithm: str) -> None:
    secret = RootKey.generate().to_bytes().hex()
    with Lab(TOPOLOGY) as lab:
        control_congestion(lab, algorithm)

        # when two peers send each other frames for as long as 10 seconds, and one of them pings meanwhile
        answering = PeerOfLab(lab, "us", secret=secret, frames=FRAMES)
        pinging = PeerOfLab(lab, "eu", secret=secret, frames=FRAMES, dial=answering.says())
        pinging.says()
        told = pinging.says()

    # then the link was full all the time that the pings were on their way
    limit_s = FRAMES * (1 << 20) * 8 / (MBPS * 1e6)
    assert told["bulk_seconds"] > 0.95 * limit_s
    assert len(told["busy_s"]) > 10

    # every ping was answered, in order, those of the busy time while bulk frames still waited, and the session lived
    assert told["answered"] == list(range(len(told["quiet_s"]) + len(told["busy_s"])))
    assert told["answered_meanwhile"] >= len(told["busy_s"]) - unanswered_at_the_end(told["busy_s"])
    assert (told["opened"], told["closed"]) == (1, 0)

    # and none waited for the frames before it, as it would in one stream with them
    assert max(told["busy_s"]) < limit_s / 2
    with capsys.disabled():
        print(f"\n{algorithm}: {summary(told)}")


def unanswered_at_the_end(round_trips_s: list[float]) -> int:
    """How many pings may still be on their way when the last frame arrives, at five a second and this slow."""
    return 1 + int(max(round_trips_s) / 0.2)


def summary(told: dict[str, Any]) -> str:
    quiet_s = statistics.median(told["quiet_s"])
    extra_s = sorted(each - quiet_s for each in told["busy_s"])
    return (
        f"heartbeats on a full {MBPS:g} Mbit/s link: {statistics.median(extra_s):.2f} s (median), {extra_s[-1]:.2f} s (most)"
        f" beyond the quiet {quiet_s:.2f} s; {len(extra_s)} pings in {told['bulk_seconds']:.1f} s;"
        f" the path's queues hold {2 * TOPOLOGY.queue_ms / 1000:g} s"
    )
