"""Envelopes over TLS over asyncio streams, which may be a TCP connection or a relayed stream.

Refuses to know tokens and sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.envelopes import LARGEST_HELLO_BYTES, Envelope, EnvelopeReader, Kind, pack_envelope
from ciuic_p2p.net.meters import Meter
from ciuic_p2p.net.tls import TlsChannel
from ciuic_p2p.net.wires import Streams
from ciuic_p2p.terms import PeerId

_READ_BYTES = 65536
_PARTING_S = 1.0


class SecureStream:
    """Used in the event loop's thread only."""

    def __init__(self, streams: Streams, channel: TlsChannel, meter: Meter) -> None:
        self.channel = channel
        self.envelopes = EnvelopeReader(LARGEST_HELLO_BYTES)
        self._reader, self._writer = streams
        self._left: asyncio.StreamWriter | None = None
        self.meter = meter

    async def shake_hands(self, first_bytes: bytes = b"") -> PeerId:
        """first_bytes: ciphertext that was read before. Returns who is there. Raises RemoteError, PeerUnreachable."""
        self._feed(first_bytes)
        while not self._step():
            self._feed(await self._read())
        self.envelopes.peer = self.channel.verify_peer(time.time())
        return self.envelopes.peer

    async def receive(self) -> Envelope | None:
        """The next envelope; None when the stream ended. Raises RemoteError."""
        while True:
            self.envelopes.feed(self.channel.read())
            self._flush()
            envelope = self.envelopes.next()
            if envelope is not None:
                return envelope
            try:
                self._feed(await self._read())
            except PeerUnreachable:
                return None

    def send(self, kind: Kind, body: bytes = b"") -> None:
        self.channel.write(pack_envelope(kind, body))
        self._flush()

    def send_over(self, streams: Streams) -> None:
        """From now on. What comes is still read where it came from before, until `receive_over`.

        The TLS connection goes on as it is: its records are in order and nobody else can make them, whatever carries them."""
        self._left, self._writer = self._writer, streams[1]

    def receive_over(self, streams: Streams) -> None:
        """From now on, after `send_over`: closes what is left, after what was sent over it."""
        self._reader = streams[0]
        if self._left is not None:
            self._left.close()
            self._left = None

    @property
    def backlog_bytes(self) -> int:
        """What the peer did not take yet."""
        return self._writer.transport.get_write_buffer_size()

    def end_sending(self) -> None:
        """After what was sent has left. Closing instead would lose it if the peer's last bytes were unread (TCP reset)."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            with contextlib.suppress(OSError):  # the connection is broken; the reading side is about to notice
                self._writer.write_eof()

    async def part(self) -> None:
        """Lets the peer read what was sent last, for a moment: what it sends meanwhile is not looked at."""
        self.end_sending()
        with contextlib.suppress(TimeoutError, PeerUnreachable):
            async with asyncio.timeout(_PARTING_S):
                while True:
                    await self._read()

    def close(self) -> None:
        """After what was sent has left."""
        self._writer.close()

    def abort(self) -> None:
        """At once."""
        self._writer.transport.abort()
        if self._left is not None:
            self._left.transport.abort()

    def _step(self) -> bool:
        try:
            return self.channel.shake_hands()
        finally:
            self._flush()  # also the alert that tells the peer what was wrong

    async def _read(self) -> bytes:
        try:
            data = await self._reader.read(_READ_BYTES)
        except OSError as error:
            raise PeerUnreachable(f"the connection broke ({error.strerror or error})") from error
        if not data:
            raise PeerUnreachable("the connection was closed")
        return data

    def _feed(self, ciphertext: bytes) -> None:
        self.meter.count_received(len(ciphertext))
        self.channel.feed(ciphertext)

    def _flush(self) -> None:
        ciphertext = self.channel.take()
        if ciphertext and not self._writer.is_closing():
            self._writer.write(ciphertext)
            self.meter.count_sent(len(ciphertext))
