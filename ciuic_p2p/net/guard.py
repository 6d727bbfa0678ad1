"""hivemind's client of p2pd without the defects that hang it. Knows nothing of admission or of restarts.

What hivemind 1.1.12 does, and what holds here instead (tests/swarm/test_p2p_guard.py shows each on the original):
- its reader ends for good when a reply comes for a call that was cancelled in the same turn of the loop: every reply is offered
  to calls that still wait;
- a reply over p2pd's limit makes the caller wait for ever: it is replaced by an error, and every call has a time limit;
- when p2pd dies, calls hang: they fail at once with P2PDown;
- a stream frame may announce any length and be read into memory: it is refused over LARGEST_STREAM_FRAME_BYTES.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import structlog
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient, DaemonConnector
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from ciuic_p2p.errors import P2PDown, PeerUnreachable
from ciuic_p2p.net.multiaddrs import EncodedMultiaddr
from ciuic_p2p.net.p2pd import LARGEST_UNARY_BYTES
from ciuic_p2p.terms import PeerId

log = structlog.get_logger()

LARGEST_REPLY_BYTES = LARGEST_UNARY_BYTES - 1024
"""Leaves room for p2pd's envelope."""
LARGEST_STREAM_FRAME_BYTES = 4 << 20
MOST_REQUESTS_AT_ONCE = 256
"""Incoming unary requests being answered; more get an error at once."""


class GuardedControl(ControlClient):  # type: ignore[misc]  # hivemind has no types
    """Use `GuardedControl.attach`."""

    def __init__(self, control_socket: Path, listener_socket: Path, call_limit_s: float) -> None:
        super().__init__(
            DaemonConnector(Multiaddr(f"/unix{control_socket}")),
            Multiaddr(f"/unix{listener_socket}"),
            _initialized_with_create=True,
            persistent_conn_max_msg_size=LARGEST_UNARY_BYTES,
        )
        self.call_limit_s = call_limit_s
        self.lost = asyncio.Event()
        """Set when p2pd closed the connection; no call succeeds from then on."""
        self._listener: asyncio.Server | None = None

    async def attach(self) -> None:
        """Connects to p2pd and takes its streams. Raises P2PDown."""
        try:
            await self._ensure_persistent_conn()
            listener = self.listen_maddr.value_for_protocol("unix")
            self._listener = await asyncio.start_unix_server(self._handler, path=f"/{listener.lstrip('/')}")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise P2PDown(f"the libp2p process does not answer: {error!r}") from None

    def close(self) -> None:
        super().close()
        if self._listener is not None:
            self._listener.close()
        self._fail_all()

    async def call_unary_handler(self, peer_id: PeerID, proto: str, data: bytes) -> bytes:
        """Raises PeerUnreachable when there is no reply within the limit, P2PDown, P2PHandlerError when the peer says no."""
        if self.lost.is_set():
            raise P2PDown("the libp2p process is down")
        try:
            async with asyncio.timeout(self.call_limit_s):
                reply: bytes = await super().call_unary_handler(peer_id, proto, data)
                return reply
        except TimeoutError:
            raise PeerUnreachable(f"peer {peer_id} did not reply to {proto} within {self.call_limit_s} s") from None
        except P2PDaemonError as error:
            raise PeerUnreachable(f"peer {peer_id} cannot be called: {_first_line(error)}") from None

    async def stream_open(
        self, peer_id: PeerID, protocols: tuple[str, ...]
    ) -> tuple[StreamInfo, asyncio.StreamReader, asyncio.StreamWriter]:
        """As hivemind's, but leaves no connection behind when it fails. Raises PeerUnreachable, P2PDown."""
        wanted = p2pd_pb2.StreamOpenRequest(peer=peer_id.to_bytes(), proto=list(protocols))
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=wanted)
        response, reader, writer = await self._ask(request, f"peer {peer_id}")
        return StreamInfo.from_protobuf(response.streamInfo), reader, writer

    async def connect(self, peer_id: PeerID, maddrs: Iterable[EncodedMultiaddr]) -> None:
        """Returns at once when there is a connection. Raises PeerUnreachable, P2PDown."""
        wanted = p2pd_pb2.ConnectRequest(peer=peer_id.to_bytes(), addrs=[address.to_bytes() for address in maddrs])
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=wanted)
        _, _, writer = await self._ask(request, f"peer {peer_id}")
        writer.close()

    async def connected_peers(self) -> frozenset[PeerId]:
        """Members and strangers. Raises P2PDown."""
        response, _, writer = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS), "the list of peers")
        writer.close()
        return frozenset(PeerId(PeerID(peer.id).to_base58()) for peer in response.peers)

    async def answer(self, remote: PeerID, proto: str, data: bytes) -> bytes:
        """What the handler registered for `proto` replies. Subclasses decide here who gets an answer."""
        reply: bytes = await self.unary_handlers[proto](data, remote)
        return reply

    async def _ask(
        self, request: p2pd_pb2.Request, wanted: str
    ) -> tuple[p2pd_pb2.Response, asyncio.StreamReader, asyncio.StreamWriter]:
        """One request on a connection of its own, which is the caller's when p2pd said yes."""
        try:
            reader, writer = await self.daemon_connector.open_connection()
        except OSError:
            raise P2PDown("the libp2p process is down") from None
        response = p2pd_pb2.Response()
        try:
            async with asyncio.timeout(self.call_limit_s):
                await write_pbmsg(writer, request)
                await read_pbmsg_safe(reader, response)
            if response.type == p2pd_pb2.Response.ERROR:
                raise PeerUnreachable(f"{wanted} cannot be reached: {_first_line(response.error.msg)}")
        except TimeoutError:
            writer.close()
            raise PeerUnreachable(f"{wanted} cannot be reached within {self.call_limit_s} s") from None
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            raise P2PDown("the libp2p process is down") from None
        except BaseException:
            writer.close()
            raise
        return response, reader, writer

    async def _read_from_persistent_conn(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                response = p2pd_pb2.PersistentConnectionResponse()
                await read_pbmsg_safe(reader, response)
                self._take(UUID(bytes=response.callId), response)
        except (asyncio.IncompleteReadError, OSError):
            pass  # p2pd has ended
        finally:
            self._fail_all()

    async def _write_to_persistent_conn(self, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # p2pd has ended; the reader sees it too and tells everybody
            await super()._write_to_persistent_conn(writer)

    def _take(self, call_id: UUID, response: p2pd_pb2.PersistentConnectionResponse) -> None:
        if response.HasField("requestHandling"):
            if len(self._handler_tasks) >= MOST_REQUESTS_AT_ONCE:
                self._reply(call_id, p2pd_pb2.CallUnaryResponse(error=b"busy"))
                return
            task = asyncio.create_task(self._handle_persistent_request(call_id, response.requestHandling))
            self._handler_tasks[call_id] = task
            task.add_done_callback(lambda _: self._handler_tasks.pop(call_id, None))
        elif response.HasField("cancel") and (running := self._handler_tasks.get(call_id)):
            running.cancel()
        elif (call := self._pending_calls.get(call_id)) and not call.done():
            _settle(call, response)

    async def _handle_persistent_request(self, call_id: UUID, request: p2pd_pb2.CallUnaryRequest) -> None:
        self._reply(call_id, await self._respond(request))

    def _reply(self, call_id: UUID, response: p2pd_pb2.CallUnaryResponse) -> None:
        self._pending_messages.put_nowait(p2pd_pb2.PersistentConnectionRequest(callId=call_id.bytes, unaryResponse=response))

    async def _respond(self, request: p2pd_pb2.CallUnaryRequest) -> p2pd_pb2.CallUnaryResponse:
        try:
            reply = await self.answer(PeerID(request.peer), request.proto, request.data)
        except Refused as refusal:
            return p2pd_pb2.CallUnaryResponse(error=str(refusal).encode())
        except Exception as error:
            # The boundary to handlers of any kind: one that fails must not leave its caller waiting, and the caller is told
            # no more than the kind of failure.
            log.debug("p2p.handler_failed", proto=request.proto, error=repr(error))
            return p2pd_pb2.CallUnaryResponse(error=type(error).__name__.encode())
        if len(reply) > LARGEST_REPLY_BYTES:
            log.warning("p2p.reply_too_large", proto=request.proto, size_bytes=len(reply))
            return p2pd_pb2.CallUnaryResponse(error=b"the reply is over the size limit")
        return p2pd_pb2.CallUnaryResponse(response=reply)

    def _fail_all(self) -> None:
        self.lost.set()
        for call in self._pending_calls.values():
            if not call.done():
                call.set_exception(P2PDown("the libp2p process is down"))
        for task in list(self._handler_tasks.values()):
            task.cancel()


class Refused(Exception):
    """Raised by `answer`: its text, and no more, is what the caller is told."""


class GuardedP2P(P2P):  # type: ignore[misc]  # hivemind has no types
    """hivemind's P2P on top of a GuardedControl; the child process belongs to someone else."""

    def __init__(self, control: GuardedControl) -> None:
        super().__init__()
        self._client = Client(_initialized_with_create=True)
        self._client.control = control
        self._alive = True

    @classmethod
    def create(cls, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("GuardedP2P is made from a GuardedControl")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs as of the last `identify`."""
        return tuple(map(str, self._visible_maddrs))

    async def identify(self) -> None:
        """Learns this peer's id and addresses from p2pd. Raises P2PDown."""
        try:
            await self._ping_daemon()
        except (OSError, asyncio.IncompleteReadError, P2PDaemonError) as error:
            raise P2PDown(f"the libp2p process does not answer: {error!r}") from None

    async def add_binary_stream_handler(self, name: str, handler: Any, balanced: bool = False) -> None:
        async def handle(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await handler(info, CappedReader(reader), writer)

        await super().add_binary_stream_handler(name, handle, balanced=balanced)

    async def call_binary_stream_handler(
        self, peer_id: PeerID, handler_name: str
    ) -> tuple[StreamInfo, CappedReader, asyncio.StreamWriter]:
        info, reader, writer = await super().call_binary_stream_handler(peer_id, handler_name)
        return info, CappedReader(reader), writer

    def _start_listening(self) -> None:
        """The control listens already."""

    def _terminate(self) -> None:
        self._alive = False
        if self._client is not None:
            self._client.close()


class CappedReader:
    """A StreamReader for hivemind's stream frames, whose length the remote announces: too large a one ends the stream."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def readexactly(self, count: int) -> bytes:
        if count > LARGEST_STREAM_FRAME_BYTES:
            # IncompleteReadError is what hivemind's loops take for the end of a stream.
            raise asyncio.IncompleteReadError(b"", count)
        return await self._reader.readexactly(count)


def _settle(call: asyncio.Future[bytes | None], response: p2pd_pb2.PersistentConnectionResponse) -> None:
    if response.HasField("daemonError"):
        call.set_exception(P2PDaemonError(response.daemonError.message))
    elif not response.HasField("callUnaryResponse"):
        call.set_result(None)  # p2pd has done what was asked
    elif response.callUnaryResponse.HasField("error"):
        call.set_exception(P2PHandlerError(response.callUnaryResponse.error[:256].decode(errors="replace")))
    else:
        call.set_result(response.callUnaryResponse.response)


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0]
