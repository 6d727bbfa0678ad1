"""One peer: puts its parts together, hears for all of them, and ends them in order. Decides nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import structlog

from ciuic_p2p.config import DaemonConfig, socket_path
from ciuic_p2p.core.frames import FrameHeader, FrameKind
from ciuic_p2p.core.membership import Membership, bind
from ciuic_p2p.core.messages import Line, decode
from ciuic_p2p.core.pacing import FIRST_GUESS_MBPS, Capacity
from ciuic_p2p.core.planning.network import Network
from ciuic_p2p.core.records import PeerRecord, encode_record
from ciuic_p2p.core.sampling import sample_peers
from ciuic_p2p.core.topology import Place
from ciuic_p2p.daemon.addresses import session_addresses
from ciuic_p2p.daemon.capacity import read_capacity
from ciuic_p2p.daemon.neighbours import Neighbours
from ciuic_p2p.daemon.object_requests import answer_request
from ciuic_p2p.daemon.objects import Objects, ObjectSurroundings
from ciuic_p2p.daemon.pacemaker import WINDOW_S, Pacemaker
from ciuic_p2p.daemon.pathfinder import Pathfinder
from ciuic_p2p.daemon.runhost import RunHost, Surroundings
from ciuic_p2p.daemon.runs import Runs
from ciuic_p2p.daemon.showing import Showing
from ciuic_p2p.daemon.snapshotdesk import SnapshotDesk
from ciuic_p2p.daemon.snapshotting import Keeper
from ciuic_p2p.daemon.swarmfile import open_swarm
from ciuic_p2p.errors import LocalError, MalformedMessage, RemoteError
from ciuic_p2p.local.http import HttpServer
from ciuic_p2p.local.protocol import AskLease, Attach, Leased, ObjectRequest, Position, Progress, Ready
from ciuic_p2p.local.server import LocalServer
from ciuic_p2p.local.trainer import Trainer
from ciuic_p2p.net.discovery import Discovery, Pace
from ciuic_p2p.net.forwarding import ForwardLimits
from ciuic_p2p.net.home import Home
from ciuic_p2p.net.identity import Identity
from ciuic_p2p.net.lane_group import LaneLimits
from ciuic_p2p.net.p2p import P2PNetwork, P2PSettings
from ciuic_p2p.net.sessions import Sessions, SessionsSettings
from ciuic_p2p.store.disk import DiskStore
from ciuic_p2p.store.snapshots import Snapshots
from ciuic_p2p.terms import VERSION, PeerId

log = structlog.get_logger(__name__)

TICK_S = 0.05
"""How late a deadline of a round may be noticed."""
LINKS_EVERY_S = 2.0
SAVE_EVERY_S = 30.0
LAG_WINDOW_S = 60.0
POOL_THREADS = 2
"""For what computes: encoding own parts, means, outer steps. numpy lets the interpreter's lock go meanwhile."""

ALONE_SEED_WAIT_S = 1.0
JOINING_SEED_WAIT_S = 8.0
"""A peer that was told to join looks longer for the run's state before it starts the run itself."""

EAGER_PACE = Pace(poll_every_s=0.5)
"""Until the first other peer is known."""
SETTLED_PACE = Pace(poll_every_s=5.0)


class Daemon:
    """`start`, then `run_until_stopped`, then `close`; made in the event loop's thread."""

    def __init__(self, config: DaemonConfig, home: Home) -> None:
        """Raises HomeUnusable, ConfigError."""
        self.config = config
        self._home = home
        self._swarm = open_swarm(config, home)
        self._identity = Identity.of_home(home)
        self.peer_id: PeerId = self._identity.peer_id
        token = bind(self._swarm.invitation, self.peer_id)
        self._membership = Membership(self._swarm.invitation.root_public_key, token)
        self._network = P2PNetwork(self._p2p_settings(), self._membership)
        self._sessions = Sessions(self._identity.private_key, self._membership, self, self._sessions_settings())
        self._neighbours = Neighbours(self.peer_id, self._swarm.swarm_id, self._sealed_record, self)
        self._discovery = Discovery(self._network, self._identity, self._swarm.swarm_id, self._describe, self)
        self._pacemaker = Pacemaker(self._sessions, self.peer_id, self._neighbours.rtt_ms, self._region_of, *self._line())
        self._pathfinder = Pathfinder(
            self.peer_id, self._sessions, self._neighbours, self._name_of, self._pacemaker.path_limit_mbps
        )
        self._sessions.prefer_forwarders(self._pathfinder.order)
        self._discovery.pace = EAGER_PACE if self._swarm.addresses else SETTLED_PACE
        self._store = DiskStore(config.home / "store", config.store_quota_bytes, config.store_reserve_bytes)
        self._snapshots = Snapshots(config.home / "snapshots", self._store)
        self._keeper = Keeper(self.peer_id, self._snapshots, config.snapshot_every_s, self._identity.sign)
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="compute")
        self._hosts: Callable[[], tuple[RunHost, ...]] = tuple
        """Of the runs, once there are some."""
        self._started_at_s = round(time.time())
        self._bound: tuple[str, ...] = ()
        self._stopping = asyncio.Event()
        self._exit = contextlib.AsyncExitStack()
        self.http_url = ""

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises AddressUnusable, HomeUnusable, P2PDown, StoreUnusable, StoreFull."""
        await self._exit.__aenter__()
        self._exit.callback(self._store.close)
        self._exit.callback(self._keeper.close)
        self._objects = Objects(self._object_surroundings(), self._store)  # before sessions, which bring messages for it
        self._objects.keeper.keep_also.append(self._snapshots.reachable)
        self._objects.keeper.want_also.append(self._snapshots.wanting)
        self._keeper.stored = self._objects.stored
        self._exit.push_async_callback(self._objects.close)
        await self._objects.start()
        self._exit.callback(self._pool.shutdown, wait=False, cancel_futures=True)
        work = await self._exit.enter_async_context(_Tasks())
        self._runs = Runs(self._surroundings(work.group), self._seed_wait_s, self._discovery.publish_soon)
        self._hosts = self._runs.hosts
        self._recovering = self._objects.recovering(self._snapshots)
        await self._runs.restore(self._recovering)
        self._exit.push_async_callback(self._network.stop)  # after the sessions: relayed ones say goodbye through it
        self._bound = await self._sessions.start()  # from here on there are messages, for runs as for objects
        self._exit.push_async_callback(self._sessions.stop)
        self._neighbours.sessions = self._sessions
        await self._network.start()
        self._network.set_stream_handler(self._sessions.accept_stream)
        self._sessions.use_relay(self._network.open_stream)
        chores = await self._exit.enter_async_context(_Tasks())
        self._exit.push_async_callback(self._runs.close)  # while the others still hear it
        self._desk = SnapshotDesk(self._runs, self._snapshots, self._recovering)
        self._showing = Showing(
            self.config,
            self._swarm.swarm_id,
            self._neighbours,
            self._runs,
            self._sessions,
            self._network_measured,
            self._pathfinder.show,
            self._objects.describe,
            self._recovering.describe_waiting,
        )
        self._discovery.start()
        self._exit.push_async_callback(self._discovery.stop)
        await self._exit.enter_async_context(LocalServer(socket_path(self.config.home), self))
        await self._serve_http()
        for every_s, act in self._chores():
            chores.spawn(_repeat(every_s, act))
        chores.spawn(self._watch_loop())

    async def run_until_stopped(self) -> None:
        await self._stopping.wait()

    def request_stop(self) -> None:
        self._stopping.set()

    async def close(self) -> None:
        """Leaves the swarm; the others see it at once."""
        await self._exit.aclose()

    def announcement(self) -> dict[str, Any]:
        """What `ciuic-peer start --json` prints when it is ready."""
        import os

        return {
            "peer_id": self.peer_id,
            "name": self.config.name,
            "region": self.config.region,
            "addresses": list(self._network.join_addresses()),
            "join": self._join_string(),
            "http": self.http_url,
            "socket": str(socket_path(self.config.home)),
            "pid": os.getpid(),
        }

    async def _serve_http(self) -> None:
        host, _, port = self.config.http.rpartition(":")
        server = HttpServer(self._showing, host.strip("[]"), int(port))
        bound_host, bound_port = await server.start()
        self._exit.push_async_callback(server.stop)
        shown = f"[{bound_host}]" if ":" in bound_host else bound_host
        self.http_url = f"http://{shown}:{bound_port}"

    def _chores(self) -> tuple[tuple[float, Callable[[], None]], ...]:
        return (
            (TICK_S, self._runs.tick),
            (TICK_S, self._objects.tick),
            (self.config.probe_period_s, self._neighbours.probe),
            (WINDOW_S, self._pacemaker.tick),
            (LINKS_EVERY_S, self._care_for_links),
            (SAVE_EVERY_S, self._remember_addresses),
        )

    def _care_for_links(self) -> None:
        everyone = (self.peer_id, *self._neighbours.present())
        sampled = sample_peers(self.peer_id, {peer: self._region_of(peer) for peer in everyone})
        self._neighbours.report_links(sampled)
        self._pathfinder.tick(time.monotonic())
        self._runs.update_network(self._network_measured())
        if not self._is_busy():
            line_mbps = self._pacemaker.lines_mbps(self.peer_id).get(self.peer_id, FIRST_GUESS_MBPS)
            self._neighbours.time_links(sampled, line_mbps)

    def _network_measured(self) -> Network:
        """What plans are made by."""
        return Network(
            links=self._neighbours.links(),
            places=self._neighbours.places() | {self.peer_id: Place(self.config.name, self.config.region)},
            lines_mbps=self._pacemaker.lines_mbps(self.peer_id),
            cables_mbps=self._pacemaker.cables_mbps(),
        )

    def _region_of(self, peer: PeerId) -> str:
        return self.config.region if peer == self.peer_id else self._neighbours.region_of(peer)

    def _remember_addresses(self) -> None:
        """So that this peer finds the swarm again when everyone it once joined by is gone."""
        known = [
            f"{address}/p2p/{record.peer_id}"
            for record in self._discovery.records()
            for address in record.p2p_addresses[:2]
            if "/p2p-circuit" not in address
        ]
        addresses = tuple(dict.fromkeys((*known, *self._swarm.addresses)))[:16]
        if set(addresses) != set(self._swarm.addresses):
            self._swarm = replace(self._swarm, addresses=addresses)
            self._swarm.save(self._home)

    async def _watch_loop(self) -> None:
        """How late the loop is: its longest delay within a window."""
        window_ends, longest_ms = time.monotonic() + LAG_WINDOW_S, 0.0
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            longest_ms = max(longest_ms, (time.monotonic() - before - TICK_S) * 1000)
            self._showing.loop_lag_ms = max(longest_ms, 0.0)
            if time.monotonic() > window_ends:
                window_ends, longest_ms = time.monotonic() + LAG_WINDOW_S, 0.0

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _p2p_settings(self) -> P2PSettings:
        return P2PSettings(
            identity_file=self._identity.file,
            listen=self.config.listen,
            announce=self.config.announce,
            join=self._swarm.addresses,
        )

    def _sessions_settings(self) -> SessionsSettings:
        lanes = LaneLimits(count=self.config.lanes_per_peer, most_mbps=self.config.lane_mbps)
        return SessionsSettings(
            listen=(self.config.session_listen,),
            name=self.config.name,
            lanes=lanes,
            forwarding=ForwardLimits(is_on=self.config.forward),
        )

    def _surroundings(self, tasks: asyncio.TaskGroup) -> Surroundings:
        return Surroundings(
            me=self.peer_id,
            transport=self._sessions,
            sign=self._identity.sign,
            name_of=self._name_of,
            pool=self._pool,
            tasks=tasks,
            pacemaker=self._pacemaker,
            keeper=self._keeper,
        )

    def _object_surroundings(self) -> ObjectSurroundings:
        return ObjectSurroundings(
            me=self.peer_id,
            swarm=self._swarm.swarm_id,
            config=self.config,
            transport=self._sessions,
            sign=self._identity.sign,
            name_of=self._name_of,
            region_of=self._region_of,
            rtt_ms=self._neighbours.rtt_ms,
            goodput_mbps=self._neighbours.goodput_mbps,
            line_mbps=lambda: self._pacemaker.lines_mbps(self.peer_id).get(self.peer_id, 0.0),
            is_busy=self._is_busy,
        )

    def _is_busy(self) -> bool:
        return any(host.is_busy() for host in self._hosts())

    def _name_of(self, peer: PeerId) -> str:
        return self.config.name if peer == self.peer_id else self._neighbours.name_of(peer)

    def _line(self) -> tuple[Capacity, Capacity]:
        """Up and down: what the user says, else a first guess."""
        told = (self.config.up_mbps, self.config.down_mbps)
        up, down = (Capacity() if mbps is None else Capacity(mbps, is_fixed=True) for mbps in told)
        return up, down

    def _seed_wait_s(self) -> float:
        waits = bool(self._swarm.addresses) and not self._neighbours.present()
        return JOINING_SEED_WAIT_S if waits else ALONE_SEED_WAIT_S

    def _describe(self) -> PeerRecord:
        return PeerRecord(
            peer_id=self.peer_id,
            name=self.config.name,
            region=self.config.region,
            session_addresses=session_addresses(self._bound, self._network.visible_addresses()),
            version=VERSION,
            capacity=read_capacity(self.config.home),
            runs=self._runs.names(),
            started_at_s=self._started_at_s,
        )

    def _sealed_record(self) -> bytes:
        """For an introduction: like the one in the DHT, but of now."""
        record = replace(
            self._describe(), p2p_addresses=self._network.visible_addresses(), sequence=time.time_ns() // 1_000_000
        )
        return encode_record(record, self._swarm.swarm_id, self._identity.sign)

    def _join_string(self) -> str:
        return self._swarm.join_string(self._network.join_addresses())

    # -- what the network tells (net.transport.Receiver, net.discovery.Listener) ------------------------------------------

    def session_opened(self, peer: PeerId, path: str) -> None:
        self._neighbours.session_opened(peer, path)

    def session_moved(self, peer: PeerId, path: str) -> None:
        self._neighbours.session_moved(peer, path)

    def lanes_moved(self, peer: PeerId, path: str) -> None:
        self._neighbours.lanes_moved(peer, path)

    def session_closed(self, peer: PeerId, error: Exception | None) -> None:
        self._objects.session_closed(peer)
        self._neighbours.session_closed(peer, error)

    def message_received(self, peer: PeerId, message: bytes) -> None:
        try:
            decoded = decode(message)
            if isinstance(decoded, Line):
                self._pacemaker.line_told(peer, decoded)
            elif not (self._neighbours.message_received(peer, decoded) or self._objects.message_received(peer, decoded)):
                self._runs.message_received(peer, decoded)
        except MalformedMessage as error:
            log.warning("peer.broke_protocol", peer=peer, error=str(error))
            self._sessions.drop(peer, error)

    def frame_received(self, peer: PeerId, header: FrameHeader, payload: memoryview) -> None:
        """In a lane's thread."""
        self._neighbours.frame_received(peer, header, len(payload))
        if header.kind is FrameKind.SHARD:
            self._objects.frame_received(peer, header, payload)
        elif header.kind is not FrameKind.PROBE:
            try:
                self._runs.frame_received(peer, header, payload)
            except RemoteError as error:
                error.peer = error.peer or peer
                raise

    def record_arrived(self, record: PeerRecord) -> None:
        self._discovery.pace = SETTLED_PACE
        self._neighbours.record_arrived(record)

    def peer_lost(self, peer: PeerId) -> None:
        self._neighbours.lost_in_dht(peer)

    # -- what becomes of peers (daemon.neighbours.Watcher) -----------------------------------------------------------------

    def peer_arrived(self, peer: PeerId) -> None:
        self._pacemaker.introduce(peer)
        self._runs.peer_arrived(peer)
        self._objects.peer_arrived(peer)

    def peer_gone(self, peer: PeerId) -> None:
        self._pacemaker.forget(peer)
        self._sessions.forsake(peer)
        self._runs.peer_gone(peer)
        self._objects.peer_gone(peer)

    # -- what this machine asks (local.server.TrainerHost) -----------------------------------------------------------------

    async def attach(self, trainer: Trainer, attach: Attach) -> None:
        await self._runs.recovered(trainer)
        self._runs.attach(trainer, attach)

    async def progress(self, trainer: Trainer, progress: Progress) -> None:
        self._runs.progress(trainer, progress)

    async def ready(self, trainer: Trainer, ready: Ready) -> None:
        self._runs.ready(trainer, ready)

    async def left(self, trainer: Trainer) -> None:
        self._runs.left(trainer)

    async def position(self, trainer: Trainer) -> Position:
        return self._runs.position(trainer)

    async def lease(self, trainer: Trainer, ask: AskLease) -> Leased:
        return await self._runs.lease(trainer, ask)

    async def view(self, what: str, options: dict[str, Any]) -> Any:
        views: dict[str, Callable[[], Any]] = {
            "status": self._showing.status,
            "peers": self._showing.peers,
            "links": self._showing.links,
            "rounds": self._showing.rounds,
            "invite": lambda: {"join": self._join_string()},
        }
        if what == "plan":
            return await self._showing.plan(options)
        if what not in views:
            raise LocalError(f"this daemon has no view {what!r}", f"ask for one of {', '.join(views)}, plan")
        return views[what]()

    async def objects(self, request: ObjectRequest, moved: Callable[[int, int], None]) -> Any:
        return await answer_request(self._objects, request, moved)

    async def snapshot(self, what: str, options: dict[str, Any]) -> Any:
        return await self._desk.serve(what, options)

    async def stop(self) -> None:
        self.request_stop()


class _Tasks:
    """A TaskGroup for an exit stack: its tasks are cancelled when the stack is left."""

    def __init__(self) -> None:
        self.group = asyncio.TaskGroup()
        self._spawned: set[asyncio.Task[None]] = set()

    def spawn(self, work: Awaitable[None]) -> None:
        self._spawned.add(self.group.create_task(_awaited(work)))

    async def __aenter__(self) -> _Tasks:
        await self.group.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        for task in self._spawned:
            task.cancel()
        await self.group.__aexit__(None, None, None)


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def _repeat(every_s: float, act: Callable[[], None]) -> None:
    """The supervisor of a chore: what goes wrong in it once must not end it."""
    while True:
        await asyncio.sleep(every_s)
        try:
            act()
        except Exception:
            log.exception("daemon.chore_failed", chore=getattr(act, "__name__", "chore"))
