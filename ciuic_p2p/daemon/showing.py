"""What the daemon shows of itself: the JSON of the commands and of the HTTP API, and Prometheus samples. Changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import psutil

from ciuic_p2p.config import DaemonConfig
from ciuic_p2p.core.planning.network import Network
from ciuic_p2p.daemon.neighbours import Neighbours
from ciuic_p2p.daemon.outlook import Question, foresee
from ciuic_p2p.daemon.pathfinder import Shown
from ciuic_p2p.daemon.runs import Runs
from ciuic_p2p.net.sessions import Sessions
from ciuic_p2p.terms import VERSION, PeerId


class Showing:
    """Implements `local.views.Views`."""

    def __init__(
        self,
        config: DaemonConfig,
        swarm_id: str,
        neighbours: Neighbours,
        runs: Runs,
        sessions: Sessions,
        network: Callable[[], Network],
        show_path: Callable[[str, PeerId | None], Shown],
        show_store: Callable[[], dict[str, Any]],
        show_recovering: Callable[[], list[dict[str, Any]]],
    ) -> None:
        """network: as measured now. show_recovering: runs whose snapshots are not whole."""
        self._config = config
        self._swarm_id = swarm_id
        self._neighbours = neighbours
        self._runs = runs
        self._sessions = sessions
        self._network = network
        self._show_path = show_path
        self._show_store = show_store
        self._show_recovering = show_recovering
        self._process = psutil.Process()
        self.loop_lag_ms = 0.0
        """The longest that the event loop was late in the last minute."""

    def status(self) -> dict[str, Any]:
        traffic = self._sessions.traffic()
        return {
            "peer_id": self._neighbours.me,
            "name": self._config.name,
            "region": self._config.region,
            "swarm": self._swarm_id,
            "version": VERSION,
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "forwarding": asdict(self._sessions.forwarding()),
            "store": self._show_store(),
            "memory_bytes": self._process.memory_info().rss,
            "loop_lag_ms": round(self.loop_lag_ms, 2),
            "runs": self._runs.describe(),
            "recovering": self._show_recovering(),
        }

    def peers(self) -> list[dict[str, Any]]:
        present = self._neighbours.present()
        me = self._neighbours.me
        rows = [self._row(me, self._config.name, self._config.region, VERSION, alive=True, rtt_ms=0.0)]
        for peer, neighbour in self._neighbours.known.items():
            record = neighbour.record
            rows.append(
                self._row(
                    peer,
                    self._neighbours.name_of(peer),
                    record.region if record else "",
                    record.version if record else "",
                    alive=peer in present,
                    rtt_ms=round(neighbour.rtt.median_ms, 2),
                )
            )
        return rows

    def links(self) -> list[dict[str, Any]]:
        name, me = self._neighbours.name_of, self._neighbours.me

        def named(peer: PeerId) -> str:
            return self._config.name if peer == me else name(peer)

        return [
            {
                "from": named(source),
                "to": named(target),
                "rtt_ms": round(link.rtt_ms, 2),
                "jitter_ms": round(link.jitter_ms, 2),
                "goodput_mbps": round(link.goodput_mbps, 2),
                **asdict(self._path(source, target)),
            }
            for (source, target), link in sorted(self._neighbours.links().items())
        ]

    def rounds(self) -> list[dict[str, Any]]:
        names = {peer: self._neighbours.name_of(peer) for peer in self._neighbours.known}
        names[self._neighbours.me] = self._config.name
        return [row for host in self._runs.hosts() for row in host.rounds.view(names)]

    async def plan(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """For all peers that are here. In a thread: a plan for a thousand takes longer than the loop may."""
        question = Question.from_options(options)
        contributors = tuple(sorted({self._neighbours.me, *self._neighbours.present()}))
        return await asyncio.to_thread(foresee, question, contributors, self._network())

    def metrics(self) -> dict[str, float]:
        traffic = self._sessions.traffic()
        store = self._show_store()
        samples: dict[str, float] = {
            "ciuic_peers_alive": len(self._neighbours.present()) + 1,
            "ciuic_bytes_sent_total": traffic.bytes_sent,
            "ciuic_bytes_received_total": traffic.bytes_received,
            "ciuic_forwarded_bytes_total": self._sessions.forwarding().carried_bytes,
            "ciuic_memory_bytes": self._process.memory_info().rss,
            "ciuic_loop_lag_ms": self.loop_lag_ms,
            "ciuic_store_used_bytes": store["used_bytes"],
            "ciuic_store_objects": store["objects"],
            "ciuic_store_objects_under_replicated": store["under_replicated"],
            "ciuic_store_damaged_shards_total": store["damaged_shards"],
            "ciuic_store_repaired_shards_total": store["repaired_shards"],
            "ciuic_store_scrubbed_bytes_total": store["scrubbed_bytes"],
            "ciuic_snapshots_waiting_for_peers": len(self._show_recovering()),
        }
        for host in self._runs.hosts():
            label = f'{{run="{host.run}"}}'
            samples[f"ciuic_epoch{label}"] = host.machine.epoch or 0
            samples[f"ciuic_given_up_samples_total{label}"] = host.given_up_samples
            last = host.rounds.last()
            if last is not None and last.seconds is not None:
                samples[f"ciuic_round_seconds{label}"] = last.seconds
        return samples

    def _row(self, peer: PeerId, name: str, region: str, version: str, *, alive: bool, rtt_ms: float) -> dict[str, Any]:
        mine = peer == self._neighbours.me
        standings = [s for p, s in self._runs.standings() if p == peer]
        hosts = self._runs.hosts()
        training = any(h.seat is not None for h in hosts) if mine else any(s.training for s in standings)
        return {
            "peer_id": peer,
            "name": name,
            "region": region,
            "alive": alive,
            "training": alive and training,
            "participating": alive and any(h.took_part(peer) for h in hosts),
            "rtt_ms": rtt_ms,
            "version": version,
        }

    def _path(self, source: PeerId, target: PeerId) -> Shown:
        """What others say of their own paths is shown without a reason."""
        me = self._neighbours.me
        path = self._neighbours.path(source, target)
        if me in (source, target):
            return self._show_path(path, target if source == me else source)
        return Shown(self._show_path(path, None).path, "")
