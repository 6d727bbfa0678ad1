"""What the command line wants done with snapshots. Knows neither sockets nor how a state is saved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ciuic_p2p.daemon.recovering import Recovering
from ciuic_p2p.daemon.runs import Runs
from ciuic_p2p.errors import LocalError, MalformedMessage
from ciuic_p2p.local import checks
from ciuic_p2p.store.snapshots import Snapshot, Snapshots, describe
from ciuic_p2p.terms import ShardId


class SnapshotDesk:
    """Lives in the event loop's thread; disks are used in others. All raise LocalError."""

    def __init__(self, runs: Runs, snapshots: Snapshots, recovering: Recovering) -> None:
        self._runs = runs
        self._snapshots = snapshots
        self._recovering = recovering

    async def serve(self, what: str, options: Mapping[str, Any]) -> Any:
        match what:
            case "ls":
                return await self._list(options.get("run"))
            case "save":
                return self._save(options)
            case "restore":
                return await self._restore(options)
            case "export":
                return await self._export(options)
            case "rm":
                gone = await asyncio.to_thread(self._snapshots.forget, self._run(options), options.get("epoch"))
                return [describe(snapshot, 0) for snapshot in gone]
        raise LocalError(f"this daemon can do nothing {what!r} with snapshots", "ask for ls, save, restore, export or rm")

    async def _list(self, run: str | None) -> list[dict[str, Any]]:
        """The newest first, run by run."""
        found = await asyncio.to_thread(self._find, run)
        return [
            describe(one, len(missing)) | self._recovering.describe(one, self._recovering.shortfall(one, missing))
            for one, missing in found
        ]

    def _find(self, run: str | None) -> list[tuple[Snapshot, list[ShardId]]]:
        """With the shards that are not here. In a thread."""
        runs = self._snapshots.runs() if run is None else [run]
        return [(one, self._snapshots.missing(one)) for name in runs for one in self._snapshots.of_run(name)]

    def _save(self, options: Mapping[str, Any]) -> dict[str, Any]:
        run = self._run(options)
        return {"run": run, "epoch": self._runs.host_of(run).order_snapshot()}

    async def _restore(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Under another name: what the run's peers did since is nobody's to throw away."""
        snapshot, name = await self._chosen(options), options.get("name")
        try:
            checks.run_name("a run's name", name)
        except MalformedMessage as error:
            raise LocalError(f"{name!r} is no name for a run", str(error).partition(": ")[2]) from None
        state = await self._recovering.load(snapshot)
        renamed = replace(snapshot, run=str(name))
        self._runs.begin_from(renamed, state)
        await asyncio.to_thread(self._snapshots.note, renamed)
        return {"run": renamed.run, "epoch": renamed.epoch, "state_hash": renamed.state_hash}

    async def _export(self, options: Mapping[str, Any]) -> dict[str, Any]:
        snapshot, folder = await self._chosen(options), options.get("folder")
        if not isinstance(folder, str) or not Path(folder).is_absolute():
            raise LocalError("a snapshot is exported to a folder with its whole path", "give --to FOLDER")
        state = await self._recovering.load(snapshot)
        written = await asyncio.to_thread(self._snapshots.export, snapshot, state, Path(folder))
        return {"run": snapshot.run, "epoch": snapshot.epoch, "state_hash": snapshot.state_hash, "file": str(written)}

    async def _chosen(self, options: Mapping[str, Any]) -> Snapshot:
        """The epoch that is asked for, else the newest complete one."""
        run, epoch = self._run(options), options.get("epoch")
        found = await asyncio.to_thread(self._snapshots.of_run, run)
        wanted = [one for one in found if (one.is_complete if epoch is None else one.epoch == epoch)]
        if not wanted:
            there = ", ".join(f"{one.epoch}{'' if one.is_complete else ' (not complete)'}" for one in found) or "none"
            which = "that is complete" if epoch is None else f"of epoch {epoch}"
            raise LocalError(f"there is no snapshot of {run!r} {which} on this peer", f"epochs there are: {there}")
        return wanted[0]

    def _run(self, options: Mapping[str, Any]) -> str:
        """The one asked for, or the only one that there is."""
        run = options.get("run")
        if isinstance(run, str):
            return run
        names = sorted({*self._runs.names(), *self._snapshots.runs()})
        if len(names) != 1:
            raise LocalError(f"this peer knows {len(names)} runs", f"name one: {', '.join(names) or 'there is none yet'}")
        return names[0]
