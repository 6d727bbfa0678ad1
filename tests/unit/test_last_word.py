"""A daemon that refuses and hangs up is heard, also by a trainer that only sends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ciuic_p2p.errors import DaemonGone, LayoutMismatch
from ciuic_p2p.local.channel import DaemonChannel
from ciuic_p2p.local.framing import encode
from ciuic_p2p.local.protocol import Message, Progress, Refused, Waiting

PROGRESS = Progress(samples=1, steps=1, loss=None)


def hung_up_after(*messages: Message) -> DaemonChannel:
    ours, theirs = socket.socketpair()
    for message in messages:
        theirs.sendall(encode(message))
    theirs.close()
    return DaemonChannel(ours, Path("/home"))


def test_a_refusal_before_the_end_is_raised_by_send() -> None:
    refused = Refused(kind="LayoutMismatch", what="another model", remedy="use another name")
    with hung_up_after(Waiting(why="a moment"), refused) as channel, pytest.raises(LayoutMismatch, match="another model"):
        channel.send(PROGRESS)


def test_an_end_without_a_reason_is_a_daemon_that_is_gone() -> None:
    with hung_up_after(Waiting(why="a moment")) as channel, pytest.raises(DaemonGone, match="ciuic-peer start"):
        channel.send(PROGRESS)
