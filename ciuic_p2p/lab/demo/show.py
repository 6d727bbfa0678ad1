"""The course of the demonstration, and what the viewer sees of it. Knows no process and no network."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ciuic_p2p.errors import ConfigError, LocalError, SwarmError
from ciuic_p2p.lab.demo.peer import DemoPeer
from ciuic_p2p.lab.demo.scenario import Scenario, plain_data_parallel_bytes, shipped_scenario, training_script
from ciuic_p2p.lab.demo.stage import Stage, open_stage
from ciuic_p2p.lab.demo.verdict import PeerResult, Recovery, differing_epochs, draw_results, shortfalls, tell_recovery

TICK_S = 0.1
STATUS_PERIOD_S = 1.0

# How long the viewer waits before something is said to be broken; nothing is expected to take a quarter of it.
STARTING_S = 60.0
MEETING_S = 60.0
TRAINING_S = 400.0
AGREEING_S = 30.0


def run_demo(folder: Path | None, *, keep: bool, loopback: bool) -> int:
    """Shows it on the terminal. Returns 0, or 1 when replicas differ or the accuracy is too low.

    `folder` takes homes and logs; None: a temporary one, which stays only with `keep` or after a failure.
    """
    training_script()
    scenario, console = shipped_scenario(), Console()
    folder = _make_folder(folder)
    with _ends_on_sigterm():
        try:
            with open_stage(scenario.topology, loopback=loopback) as stage:
                console.print(stage.sentence, soft_wrap=True, highlight=False)
                found = _Show(scenario, stage, folder, console).perform()
        except SwarmError:
            console.print(f"Homes and logs are in {folder}")
            raise
        except KeyboardInterrupt:
            if not keep:
                shutil.rmtree(folder)
            raise
    for line in found:
        console.print(f"[red]✗[/red] {line}", highlight=False)
    if keep or found:
        console.print(f"Homes and logs are in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if found else 0


class _Show:
    """One performance."""

    def __init__(self, scenario: Scenario, stage: Stage, folder: Path, console: Console) -> None:
        self._scenario = scenario
        self._console = console
        self._began_s = time.monotonic()
        self._peers = {name: DemoPeer(name, scenario, stage, folder) for name in scenario.peers}
        self._join = ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._bars = {name: self._progress.add_task(name, total=scenario.epochs, note="") for name in scenario.peers}

    def perform(self) -> list[str]:
        """Returns what fell short."""
        try:
            with self._progress:
                self._start_swarm()
                recovery = self._train()
                results = self._compare()
        finally:
            for peer in self._peers.values():
                peer.end()
        self._console.print(draw_results(results))
        self._tell("float32: what plain data parallel would have sent for the same samples, averaging at every step.")
        self._tell(tell_recovery(recovery))
        found = shortfalls(results, recovery, self._scenario.least_accuracy)
        hashes = [peer.tally.hashes for peer in self._peers.values()]
        found += [f"the replicas differed at epoch {epoch}" for epoch in differing_epochs(hashes)]
        if not found:
            self._tell("[green]✓[/green] The replicas were bit-identical after every epoch. The last state hash:")
            self._tell(f"  {results[0].state_hash}")
        return found

    def _start_swarm(self) -> None:
        first, *others = self._peers.values()
        first.start_daemon(None)
        self._until(lambda: first.ready is not None, STARTING_S, f"{first.name} starts")
        assert first.ready is not None
        self._join = first.ready["join"]
        for peer in others:
            peer.start_daemon(self._join)
        self._until(lambda: all(peer.ready for peer in others), STARTING_S, "the others join")
        names = self._scenario.peers
        self._until(lambda: all(peer.sees(names) for peer in self._peers.values()), MEETING_S, "the peers find each other")
        self._say(f"{len(names)} peers found each other")
        for peer in self._peers.values():
            peer.start_trainer()

    def _train(self) -> Recovery:
        scenario, victim = self._scenario, self._peers[self._scenario.killed]
        self._until(lambda: self._epoch_of_all() >= scenario.killed_at_epoch, TRAINING_S, "the first epochs are trained")
        victim.view("status")  # the last count of its bytes
        self._observe()
        victim.kill()
        killed_s = time.monotonic()
        self._observe()
        epoch = self._epoch_of_survivors()
        self._say(f"{victim.name} killed after epoch {epoch}: kill -9, daemon and trainer")

        self._until(lambda: self._epoch_of_survivors() > epoch, TRAINING_S, "the others go on")
        others_s = time.monotonic() - killed_s
        self._say(f"the others finished the next epoch after {others_s:.1f} s")
        back_at = epoch + scenario.back_after_epochs
        self._until(lambda: self._epoch_of_survivors() >= back_at, TRAINING_S, "the others go on")

        state_s, back_s = self._bring_back(victim)
        self._until(lambda: all(peer.finished for peer in self._peers.values()), TRAINING_S, "the run ends")
        return Recovery(killed=victim.name, epoch=epoch, others_s=others_s, state_s=state_s, back_s=back_s)

    def _bring_back(self, victim: DemoPeer) -> tuple[float, float | None]:
        """Seconds from its start until it held the state, and until its contribution was in an epoch's result again."""
        reached = victim.tally.epoch
        started_s = time.monotonic()
        victim.start_daemon(self._join)
        victim.start_trainer()
        self._say(f"{victim.name} started again")
        self._until(lambda: victim.ready is not None and victim.state() is not None, STARTING_S, "it takes the state")
        state_s = time.monotonic() - started_s
        self._say(f"{victim.name} took the others' state after {state_s:.1f} s")
        self._until(lambda: victim.tally.counted_epoch > reached or victim.finished, TRAINING_S, f"{victim.name} comes back")
        if victim.tally.counted_epoch <= reached:
            return state_s, None
        back_s = time.monotonic() - started_s
        self._say(f"{victim.name} took part again after {back_s:.1f} s, at epoch {victim.tally.counted_epoch}")
        return state_s, back_s

    def _compare(self) -> list[PeerResult]:
        """Waits until all replicas are the same, for a while, and takes them as they are."""
        self._observe()
        deadline_s = time.monotonic() + AGREEING_S
        states = self._states()
        while len(set(states.values())) != 1 and time.monotonic() < deadline_s:
            time.sleep(TICK_S)
            states = self._states()
        return [self._result_of(peer, states[name]) for name, peer in self._peers.items()]

    def _states(self) -> dict[str, tuple[int, str] | None]:
        """Asks every daemon that is up, which counts its bytes too."""
        return {name: peer.state() if peer.ready else None for name, peer in self._peers.items()}

    def _result_of(self, peer: DemoPeer, state: tuple[int, str] | None) -> PeerResult:
        scenario, tally = self._scenario, peer.tally
        steps = tally.samples / scenario.batch_size
        return PeerResult(
            name=peer.name,
            epoch=state[0] if state else tally.epoch,
            samples=tally.samples,
            accuracy=tally.accuracy,
            bytes_sent=tally.bytes_sent,
            plain_bytes=plain_data_parallel_bytes(tally.parameters, steps, len(scenario.peers)),
            state_hash=state[1] if state else None,
        )

    def _epoch_of_all(self) -> int:
        return min(peer.tally.epoch for peer in self._peers.values())

    def _epoch_of_survivors(self) -> int:
        return min(self._peers[name].tally.epoch for name in self._scenario.survivors)

    def _until(self, condition: Callable[[], bool], patience_s: float, what: str) -> None:
        """Follows the peers until the condition holds. Raises LocalError when one of them failed, or patience ran out."""
        deadline_s = time.monotonic() + patience_s
        next_status_s = 0.0
        while not condition():
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise LocalError(f"waited {patience_s:.0f} s for this: {what}", "the logs say more")
            self._observe()
            if now_s >= next_status_s:
                self._states()
                next_status_s = now_s + STATUS_PERIOD_S
            time.sleep(TICK_S)

    def _observe(self) -> None:
        for peer in self._peers.values():
            peer.observe()
            self._draw(peer)

    def _draw(self, peer: DemoPeer) -> None:
        tally = peer.tally
        note = "down" if peer.daemon is None else "starts" if peer.ready is None else ""
        if not note and tally.accuracy is not None:
            note = f"accuracy {tally.accuracy:.1%}"
        self._progress.update(self._bars[peer.name], completed=tally.epoch, note=note)

    def _tell(self, what: str) -> None:
        self._console.print(what, highlight=False, soft_wrap=True)

    def _say(self, what: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._began_s:5.1f} s[/dim]  {what}", highlight=False)


def _make_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="ciuic-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"--dir {folder} cannot be used ({error.strerror})", "name a folder that you may write") from None
    if not empty:
        raise ConfigError(f"--dir {folder} is not empty", "name a new folder")
    return folder.absolute()


@contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that everything in it is taken down."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
