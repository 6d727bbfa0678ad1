"""What is asked of the kernel for a connection."""

from __future__ import annotations

import socket
import sys

import pytest

from ciuic_p2p.net.tcpinfo import limit_rate

SO_MAX_PACING_RATE = 47


def read_rate(connection: socket.socket) -> int:
    return int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8), sys.byteorder)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the rate of a socket")
def test_the_kernel_is_told_the_rate_in_bytes_per_second() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as connection:
        assert limit_rate(connection, 25.0)
        assert read_rate(connection) == 3_125_000
        assert limit_rate(connection, 80_000.0)
        assert read_rate(connection) == 10_000_000_000
        assert limit_rate(connection, None)
        assert read_rate(connection) == 2**64 - 1


def test_a_connection_that_cannot_be_limited_is_used_as_it_is() -> None:
    with socket.socket() as connection:
        connection.close()
        assert not limit_rate(connection, 25.0)
