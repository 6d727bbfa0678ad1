"""What the kernel says of a real connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ciuic_p2p.net.tcpinfo import limit_rate, prepare_for_bulk, read_tcp_info

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="not Linux")

Pair = tuple[socket.socket, socket.socket]
PAYLOAD = bytes(range(256)) * 2000


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 10) as one:
        other, _ = server.accept()
        other.settimeout(10)
        with other:
            yield one, other


def transfer(sender: socket.socket, receiver: socket.socket, payload: bytes) -> None:
    """In pieces that fit the kernel's buffers. Ends with a byte back, by which what came was acknowledged."""
    received = bytearray()
    for start in range(0, len(payload), 16_000):
        sender.sendall(payload[start : start + 16_000])
        while len(received) < min(start + 16_000, len(payload)):
            received += receiver.recv(1 << 16)
    assert received == payload
    receiver.sendall(b"!")
    assert sender.recv(1) == b"!"


def test_bytes_are_counted_exactly(pair: Pair) -> None:
    sender, receiver = pair
    before = read_tcp_info(sender)
    assert before is not None
    transfer(sender, receiver, PAYLOAD)
    sending, receiving = read_tcp_info(sender), read_tcp_info(receiver)
    assert sending is not None
    assert receiving is not None
    assert len(PAYLOAD) <= sending.delivered_bytes(before) < 40 * len(PAYLOAD)  # each message's last segment counts in full
    assert (sending.received_bytes, receiving.received_bytes) == (1, len(PAYLOAD))
    assert sending.retransmitted_bytes <= len(PAYLOAD)


def test_loopback_has_a_short_round_trip(pair: Pair) -> None:
    transfer(*pair, PAYLOAD)
    info = read_tcp_info(pair[0])
    assert info is not None
    assert 0 < info.least_rtt_ms <= 1000
    assert info.least_rtt_ms <= 1.5 * info.rtt_ms + 1


def test_nothing_is_known_of_other_sockets() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert read_tcp_info(one) is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        assert read_tcp_info(datagrams) is None


def test_nothing_is_known_of_a_closed_connection(pair: Pair) -> None:
    pair[0].close()
    assert read_tcp_info(pair[0]) is None


def test_a_connection_made_for_bulk_still_carries_bytes_both_ways(pair: Pair) -> None:
    for connection in pair:
        prepare_for_bulk(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") != b""
    transfer(*pair, PAYLOAD)
    transfer(pair[1], pair[0], PAYLOAD)


def test_a_near_connection_is_not_left_to_bbr(pair: Pair) -> None:
    transfer(*pair, b"so that the round trip is known")
    info = read_tcp_info(pair[0])
    assert info is not None
    if info.least_rtt_ms >= 2.0:
        pytest.skip("a machine too busy for a near path")
    prepare_for_bulk(pair[0])
    assert pair[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") != b"bbr"


def test_what_is_no_tcp_connection_is_prepared_without_harm() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        prepare_for_bulk(one)
        one.sendall(b"through")
        assert other.recv(16) == b"through"
        assert not limit_rate(one, 10.0)


def test_a_rate_is_taken_and_taken_back(pair: Pair) -> None:
    so_max_pacing_rate = 47
    assert limit_rate(pair[0], 800.0)
    assert int.from_bytes(pair[0].getsockopt(socket.SOL_SOCKET, so_max_pacing_rate, 8), "little") == 100_000_000
    assert limit_rate(pair[0], None)
    assert int.from_bytes(pair[0].getsockopt(socket.SOL_SOCKET, so_max_pacing_rate, 8), "little") >= (1 << 32) - 1
    transfer(*pair, PAYLOAD)


def test_a_closed_connection_takes_no_rate(pair: Pair) -> None:
    pair[0].close()
    assert not limit_rate(pair[0], 10.0)
