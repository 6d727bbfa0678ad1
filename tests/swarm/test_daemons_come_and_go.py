"""Daemons start in any order, leave and die: what the others see of it, and when."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

from daemon_kit import daemons, wait_for, wait_until_met

LEAVING_LIMIT_S = 5.0
"""What is promised of SIGTERM; a person waits for it."""

DEATH_NOTICED_S = 3.0
"""Three probe periods, which is what is promised of kill -9."""

MARGIN_S = 6.0
"""For the period that had begun, and for a busy machine."""


def free_port() -> int:
    """Of which the next one is free too, for the sessions."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = int(first.getsockname()[1])
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port + 1)))
            except (OSError, OverflowError):
                continue
            return port


def test_a_peer_that_starts_before_the_one_it_joins_by(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given a bootstrap peer with a fixed port that is down
        fixed = f"/ip4/127.0.0.1/tcp/{free_port()}"
        bootstrap = made.new("us")
        bootstrap.start(listen=fixed)
        join = bootstrap.join
        assert bootstrap.terminate() == 0

        # when a peer starts by its join string
        joiner = made.started("eu", "--join", join)
        wait_for(lambda: (joiner.home / "daemon.log").exists(), "the joiner has begun")
        assert not joiner.is_over()

        # then it is in the swarm once the bootstrap peer is back
        bootstrap.start(listen=fixed)
        wait_until_met([bootstrap, joiner])


def test_the_swarm_outlives_the_peer_it_began_with(tmp_path: Path) -> None:
    with daemons(tmp_path) as made:
        # given a swarm
        us, eu, asia = made.swarm("us", "eu", "as")

        # when the first peer dies
        us.kill()

        # then the others notice, and stay together
        for peer, other in ((eu, "as"), (asia, "eu")):
            noticed = f"{peer.name} sees only {other}"
            wait_for(lambda peer=peer, other=other: peer.sees(other), noticed, DEATH_NOTICED_S + MARGIN_S)

        # and a new peer joins by one of them
        newcomer = made.started("sa", "--join", eu.join)
        wait_until_met([eu, asia, newcomer])


def test_a_peer_that_is_told_to_end_says_goodbye(tmp_path: Path) -> None:
    # given probes so rare that only a goodbye can tell
    with daemons(tmp_path, CIUIC_PROBE_PERIOD_S="60") as made:
        us, eu = made.swarm("us", "eu")

        # when it is told to end
        began_s = time.monotonic()
        status = eu.terminate()

        # then it has ended well, in the time that is promised, and is gone at once
        assert status == 0
        assert time.monotonic() - began_s < LEAVING_LIMIT_S
        wait_for(us.sees, "us is alone", limit_s=LEAVING_LIMIT_S)
