"""A daemon that refuses and hangs up is heard, also by a trainer that only sends."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ciuic_p2p.config import socket_path
from ciuic_p2p.errors import DaemonGone, LayoutMismatch
from ciuic_p2p.local.channel import DaemonChannel, open_channel
from ciuic_p2p.local.framing import encode
from ciuic_p2p.local.protocol import AskView, Message, Progress, Refused, Waiting

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


def test_an_answer_that_came_before_all_was_sent_is_read_by_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path(tmp_path)))
        listener.listen()
        channel = open_channel(tmp_path)
        daemon, _ = listener.accept()
        send_with_descriptor = socket.send_fds

        def send_and_be_refused(*arguments: Any) -> int:
            sent = send_with_descriptor(*arguments)
            daemon.recv(1 << 16)
            daemon.sendall(encode(Refused(kind="LocalError", what="no")))
            daemon.close()
            return sent

        monkeypatch.setattr(socket, "send_fds", send_and_be_refused)
        reading, writing = os.pipe()
        try:
            channel.send(AskView(what="peers"), reading)
            assert channel.receive(20.0) == Refused(kind="LocalError", what="no")
        finally:
            os.close(reading)
            os.close(writing)
            channel.close()
