"""Envelopes over TLS over asyncio streams, which may be a TCP connection or a relayed stream.

Refuses to know tokens and sessions.
"""

from __future__ import annotations

import time

from ciuic_p2p.errors import PeerUnreachable
from ciuic_p2p.net.envelopes import LARGEST_HELLO_BYTES, Envelope, EnvelopeReader, Kind, pack_envelope
from ciuic_p2p.net.meters import Meter
from ciuic_p2p.net.tls import TlsChannel
from ciuic_p2p.net.wires import Streams
from ciuic_p2p.terms import PeerId

_READ_BYTES = 65536


class SecureStream:
    """Used in the event loop's thread only."""

    def __init__(self, streams: Streams, channel: TlsChannel, meter: Meter) -> None:
        self.channel = channel
        self.envelopes = EnvelopeReader(LARGEST_HELLO_BYTES)
        self._reader, self._writer = streams
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

    @property
    def backlog_bytes(self) -> int:
        """What the peer did not take yet."""
        return self._writer.transport.get_write_buffer_size()

    def end_sending(self) -> None:
        """After what was sent has left. Closing instead would lose it if the peer's last bytes were unread (TCP reset)."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    def close(self) -> None:
        """After what was sent has left; for a connection on which the peer sends no more."""
        self._writer.close()

    def abort(self) -> None:
        """At once."""
        self._writer.transport.abort()

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
