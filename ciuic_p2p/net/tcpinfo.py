"""What the kernel knows of a TCP connection (linux/tcp.h, struct tcp_info), and what is asked of it for bulk. Linux only."""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass

_SIZE = 232
_SEGMENT_BYTES, _RTT, _BYTES_RECEIVED, _LEAST_RTT = 16, 68, 128, 148
_BUSY_TIME, _DELIVERED, _BYTES_RETRANSMITTED = 168, 192, 208
_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")

_SEGMENTS = 1 << 32
"""After so many the kernel counts from 0 again."""

_SO_MAX_PACING_RATE = 47
"""Bytes per second in 64 bits (since Linux 4.20); asm-generic/socket.h. TCP paces by itself since 4.13."""
_UNPACED = (1 << 64) - 1
_TCP_CONGESTION = 13
_TCP_NOTSENT_LOWAT = 25
NEAR_MS = 2.0
UNSENT_BYTES = 256 << 10
"""A lane whose kernel buffer holds more that has not left is not free: the next frame goes to another."""


@dataclass(frozen=True, slots=True)
class TcpInfo:
    rtt_ms: float
    """Smoothed."""
    least_rtt_ms: float
    segment_bytes: int
    """Of a full one."""
    delivered_segments: int
    """Those behind a lost one count when they arrive. By what is acknowledged in order, all of a window would seem to arrive in
    one moment, and nothing before."""
    received_bytes: int
    busy_s: float
    """So long, in all, there was something on its way."""
    retransmitted_bytes: int

    def delivered_bytes(self, before: TcpInfo | None) -> int:
        """Since then, or since the connection was made; the last segment of a message counts as a full one."""
        segments = self.delivered_segments - (before.delivered_segments if before else 0)
        return segments % _SEGMENTS * self.segment_bytes


def read_tcp_info(connection: socket.socket) -> TcpInfo | None:
    """None where the kernel does not tell: another system, an older one, no TCP, closed."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
        return None
    if len(raw) < _BYTES_RETRANSMITTED + _U64.size:
        return None
    return TcpInfo(
        rtt_ms=_U32.unpack_from(raw, _RTT)[0] / 1000,
        least_rtt_ms=_U32.unpack_from(raw, _LEAST_RTT)[0] / 1000,
        segment_bytes=_U32.unpack_from(raw, _SEGMENT_BYTES)[0],
        delivered_segments=_U32.unpack_from(raw, _DELIVERED)[0],
        received_bytes=_U64.unpack_from(raw, _BYTES_RECEIVED)[0],
        busy_s=_U64.unpack_from(raw, _BUSY_TIME)[0] / 1e6,
        retransmitted_bytes=_U64.unpack_from(raw, _BYTES_RETRANSMITTED)[0],
    )


def prepare_for_bulk(connection: socket.socket) -> None:
    """BBR where the kernel has it (loss alone does not slow it down), and little waiting in the kernel.

    Not over a near path: every 10 s BBR stops for 0.2 s to measure the round trip, which there is longer than many a round.
    """
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, b"cubic" if is_near(connection) else b"bbr")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def is_near(connection: socket.socket) -> bool:
    info = read_tcp_info(connection)
    return info is not None and 0.0 < info.least_rtt_ms < NEAR_MS


def limit_rate(connection: socket.socket, most_mbps: float | None) -> bool:
    """The kernel sends no faster from now on; None: as fast as it can. False when it does not do that."""
    rate = _UNPACED if most_mbps is None else int(most_mbps * 125_000)
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _U64.pack(rate))
        return connection.family in (socket.AF_INET, socket.AF_INET6)
    except OSError:
        return False
